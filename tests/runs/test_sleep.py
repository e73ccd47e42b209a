"""Sleeping without a process: by the store's clock, woken by time or by a message, and what a supervisor finds to do."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from addresses import Opener
from clocks import CLOCKED, HOUR_US, Clock, clocked

import savegame
from savegame import Busy, InvalidInputError, Paused, Stopped, Toolbox, Vault
from savegame.model import ThreadKey
from savegame.runs.idle import until_of

HOUR = dt.timedelta(hours=1)
REPLY = "Good morning."


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=CLOCKED)
def open_vault(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Callable[[], Vault]:
    return clocked(request.param, tmp_path, clock)


def moment(clock: Clock) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=clock.now)


def agent(vault: Vault, thread_id: str = "t", duration: dt.timedelta = HOUR) -> Any:
    """Asks once, sleeps, and asks again."""
    with vault.run(thread_id) as run:
        run.user("Remind me.", key="start")
        if run.reply is None:
            run.model(lambda _: {"role": "assistant", "content": "I will.", "tool_calls": []})
            run.user("(waiting)", key="wait")
        run.sleep(duration, name="reminder")
        if run.reply != REPLY:
            run.model(lambda _: REPLY)
        return run.reply


def stale(vault: Vault) -> list[tuple[str, str]]:
    return [(run.thread_id, run.reason) for run in vault.stale()]


def test_a_sleep_ends_by_the_stores_clock(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()
    due = moment(clock) + HOUR
    with pytest.raises(Paused) as paused:
        agent(vault)
    assert (paused.value.until, paused.value.call) == (due, None)
    assert vault.thread("t").latest().status == "in_progress"  # type: ignore[union-attr]
    row = vault.store.thread(ThreadKey("default", "t"))
    assert row is not None
    assert row.lease is None
    assert (stale(vault), list(vault.runs())) == ([], [])
    clock.now += HOUR_US // 2
    head = vault.thread("t").timeline.row()
    with pytest.raises(Paused) as paused:
        agent(vault, duration=3 * HOUR)
    assert (paused.value.until, vault.thread("t").timeline.row()) == (due, head), "the same time, and nothing was written"
    clock.now += HOUR_US // 2
    assert stale(vault) == [("t", "due")]
    run = next(iter(vault.stale()))
    assert (run.owner, run.expired_at, run.takeovers) == (None, None, 0)
    assert agent(vault) == REPLY
    assert stale(vault) == []


def test_a_sleep_that_ended_stays_ended_when_the_clock_jumps_back(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()
    with pytest.raises(Paused):
        agent(vault)
    clock.now += 2 * HOUR_US
    with vault.run("t") as run:
        run.sleep(HOUR, name="reminder")
        clock.now -= 5 * HOUR_US
        run.sleep(HOUR, name="reminder")
    assert agent(open_vault()) == REPLY


def test_a_clock_that_jumps_back_prolongs_a_sleep_and_loses_none(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()
    with pytest.raises(Paused):
        agent(vault)
    clock.now -= HOUR_US
    assert stale(vault) == []
    with pytest.raises(Paused):
        agent(vault)
    clock.now += 2 * HOUR_US
    assert stale(vault) == [("t", "due")]
    assert agent(vault) == REPLY


def test_a_message_wakes_and_so_does_a_persons_next_word(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()
    with pytest.raises(Paused):
        agent(vault)
    vault.send("t", "never mind")
    assert stale(vault) == [("t", "mail")]
    assert agent(vault) == REPLY
    assert [message["content"] for message in vault.thread("t").state()["messages"]][-2:] == ["never mind", REPLY]
    with pytest.raises(Paused):
        agent(vault, "u")
    with vault.run("u") as run:
        run.user("Hello?")
        run.sleep(HOUR, name="reminder")
        run.model(lambda _: "yes")
    assert (stale(vault), until_of(vault.thread("u").timeline)) == ([], None)


def test_a_message_that_comes_before_the_sleep_keeps_it_from_beginning(open_vault: Callable[[], Vault]) -> None:
    """The model has not seen it."""
    vault = open_vault()
    with vault.run("t") as run:
        run.user("hi")
        vault.send("t", "wait")
        run.sleep(HOUR, name="reminder")
        assert [message["content"] for message in run.messages] == ["hi", "wait"]
    with vault.run("t") as run:
        run.sleep(HOUR, name="reminder")


def test_a_message_that_cannot_be_taken_in_yet_wakes_too(open_vault: Callable[[], Vault]) -> None:
    vault = open_vault()
    reply = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "look", "arguments": {}}]}
    tools = Toolbox()

    @tools.tool(read_only=True)
    def look() -> str:
        return "seen"

    def work() -> None:
        with vault.run("t", tools=tools) as run:
            run.user("hi", key="start")
            if run.reply is None:
                run.model(lambda _: reply)
            run.sleep(HOUR, name="before the tools")
            run.tools()
            run.model(lambda _: "done")

    with pytest.raises(Paused):
        work()
    vault.send("t", "hurry")
    assert stale(vault) == [("t", "mail")]
    work()
    assert [message["content"] for message in vault.thread("t").state()["messages"]] == ["hi", "", "seen", "hurry", "done"]


def test_what_is_over_already_does_not_sleep(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()
    with vault.run("t") as run:
        run.user("hi")
        before = vault.thread("t").timeline.row()
        for duration in (dt.timedelta(0), -HOUR):
            run.sleep(duration, name="reminder")
        run.sleep_until(moment(clock) - HOUR, name="reminder")
        assert vault.thread("t").timeline.row() == before
        with pytest.raises(Paused) as paused:
            run.sleep_until((moment(clock) + HOUR).astimezone(dt.timezone(dt.timedelta(hours=5))), name="reminder")
    assert paused.value.until == moment(clock) + HOUR


def test_what_is_no_time_is_refused(vault: Vault) -> None:
    with vault.run("t") as run:
        run.user("hi")
        for wrong in (5, None, "1h"):
            with pytest.raises(InvalidInputError):
                run.sleep(wrong, name="a")  # type: ignore[arg-type]
        for when in (dt.datetime(2030, 1, 1), 5):
            with pytest.raises(InvalidInputError):
                run.sleep_until(when, name="a")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="year 9999"):
            run.sleep(dt.timedelta.max, name="a")
        with pytest.raises(InvalidInputError):
            run.sleep(HOUR, name="")
        run.model(lambda _: "still here")


def test_two_names_are_two_sleeps(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()

    def work() -> str:
        with vault.run("t") as run:
            run.user("hi", key="start")
            run.sleep(HOUR, name="one")
            run.sleep(2 * HOUR, name="two")
            return "over"

    for wait in (0, HOUR_US, 2 * HOUR_US):
        clock.now += wait
        if wait < 2 * HOUR_US:
            with pytest.raises(Paused):
                work()
    assert work() == work() == "over"


@pytest.mark.parametrize("end", ["stop", "halt"])
def test_ending_a_run_ends_its_sleep(open_vault: Callable[[], Vault], clock: Clock, end: str) -> None:
    vault = open_vault()
    with pytest.raises(Paused):
        agent(vault)
    if end == "stop":
        assert vault.stop("t", "no need")
    else:
        with vault.run("t") as run:
            run.halt("no need")
    clock.now += 2 * HOUR_US
    assert (stale(vault), until_of(vault.thread("t").timeline)) == ([], None)


def test_a_stop_while_a_run_falls_asleep_is_obeyed(open_vault: Callable[[], Vault]) -> None:
    vault = open_vault()
    with pytest.raises(Stopped), vault.run("t") as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        vault.stop("t", "no need")
        run.sleep(HOUR, name="reminder")


def test_a_sleeper_that_waits_for_a_person_is_left_alone(open_vault: Callable[[], Vault], clock: Clock) -> None:
    """Its code asks the tools first, so it does not come to its sleep before a person has answered."""
    vault = open_vault()
    tools = Toolbox()

    @tools.tool(ask=True)
    def wire() -> str:
        return "sent"

    with pytest.raises(Paused), vault.run("t", tools=tools) as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        run.model(lambda _: {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "wire", "arguments": {}}]})
        run.sleep(HOUR, name="reminder")
    with pytest.raises(Paused) as asked, vault.run("t", tools=tools) as run:
        run.tools()
    clock.now += 2 * HOUR_US
    assert stale(vault) == []
    vault.answer("t", asked.value.call, True)
    assert stale(vault) == [("t", "due")]


def test_copies_sleep_on_and_forks_know_which_sleeps_are_over(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()
    with vault.run("t") as run:
        run.user("hi", key="start")
        with pytest.raises(Paused):
            run.sleep(HOUR, name="one")
    clock.now += HOUR_US
    with vault.run("t") as run:
        run.sleep(HOUR, name="one")
        run.save(label="after one")
        with pytest.raises(Paused):
            run.sleep(HOUR, name="two")
    vault.thread("t").fork("f", at="after one")
    assert until_of(vault.thread("f").timeline) is None
    with vault.run("f") as run:
        run.sleep(HOUR, name="one")
        with pytest.raises(Paused) as paused:
            run.sleep(HOUR, name="two")
    assert paused.value.until == moment(clock) + HOUR
    with savegame.open("memory:") as other:
        vault.copy_to(other)
        assert until_of(other.thread("t").timeline) == clock.now + HOUR_US
        with other.run("t") as run:
            run.sleep(HOUR, name="one")


def test_a_sleep_of_a_line_that_was_discarded_begins_again(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()
    with vault.run("t") as run:
        run.user("hi")
        run.save(label="start")
        run.user("later")
        with pytest.raises(Paused):
            run.sleep(HOUR, name="one")
    clock.now += HOUR_US
    with vault.run("t") as run:
        run.sleep(HOUR, name="one")
        run.save()
    vault.thread("t").rewind("start", discard=True)
    with pytest.raises(Paused), vault.run("t") as run:
        run.sleep(HOUR, name="one")


# -- supervisors -----------------------------------------------------------------------------------


def test_a_supervisor_resumes_what_crashed_what_has_mail_and_what_is_due(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()
    with pytest.raises(ZeroDivisionError), vault.run("crashed") as run:  # noqa: PT012 - it leaves the run
        run.user("hi")
        raise ZeroDivisionError
    with pytest.raises(Paused):
        agent(vault, "due")
    vault.send("mail", "hi")
    vault.send("crashed", "are you there?")
    clock.now += HOUR_US
    assert stale(vault) == [("crashed", "crashed"), ("due", "due"), ("mail", "mail")]
    done: list[str] = []

    def resume(thread_id: str) -> None:
        if thread_id == "due":
            agent(vault, "due")
        else:
            with vault.run(thread_id) as run:
                run.model(lambda _: "done")
        done.append(thread_id)

    assert vault.supervise(resume, once=True) == 3
    assert (done, stale(vault)) == (["crashed", "due", "mail"], [])


def test_waking_up_is_no_takeover(open_vault: Callable[[], Vault], clock: Clock) -> None:
    """A resume that fails before it has begun does not use up the thread's chances."""
    vault = open_vault()
    vault.send("mail", "hi")
    with pytest.raises(Paused):
        agent(vault, "due")
    clock.now += HOUR_US

    def fails(_: str) -> None:
        raise ConnectionError

    for _ in range(5):
        assert vault.supervise(fails, once=True, give_up_after=2) == 0
    assert [(run.thread_id, run.reason, run.takeovers) for run in vault.stale()] == [("due", "due", 0), ("mail", "mail", 0)]


def test_a_run_that_is_given_up_is_not_reopened_by_the_mail_that_waits(open_vault: Callable[[], Vault], clock: Clock) -> None:
    vault = open_vault()
    reply = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "look", "arguments": {}}]}

    def work(thread_id: str) -> None:
        with vault.run(thread_id) as run:
            if run.reply is None:
                run.user("hi")
                run.model(lambda _: reply)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work("t")
    vault.send("t", "are you there?")
    for _ in range(4):
        clock.now += 1_000_000
        vault.supervise(work, once=True, give_up_after=2)
    assert vault.thread("t").latest().status.reason.startswith("stuck")  # type: ignore[union-attr]
    assert (stale(vault), len(list(vault.inbox("t")))) == ([], 1)
    vault.send("t", "still there?")
    assert stale(vault) == [("t", "mail")]


def test_a_supervisor_sleeps_until_the_next_sleep_is_over(vault: Vault) -> None:
    """Its poll is an hour: without that, this test would run out of time."""
    with pytest.raises(Paused):
        agent(vault, duration=dt.timedelta(milliseconds=300))
    stop = threading.Event()

    def resume(thread_id: str) -> None:
        agent(vault, thread_id)
        stop.set()

    assert vault.supervise(resume, poll=HOUR, stop=stop) == 1


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=[pytest.mark.campaign, pytest.mark.timeout(3600)])])
def test_two_supervisors_take_each_thread_once_and_forget_none(opened: Opener, count: int) -> None:
    first = opened()
    second = first if first.store.scheme == "memory" else opened()
    threads = [f"t {number:04}" for number in range(count)]
    for number, thread_id in enumerate(threads):
        if number % 2:
            first.send(thread_id, "hi", key="k")
        else:
            with pytest.raises(Paused):
                agent(first, thread_id, dt.timedelta(milliseconds=1))
    answered: Counter[str] = Counter()
    stop = threading.Event()

    def resume_with(vault: Vault) -> Callable[[str], None]:
        def resume(thread_id: str) -> None:
            try:
                with vault.run(thread_id) as run:
                    if not run.done:
                        if run.reply:
                            run.sleep(HOUR, name="reminder")
                        run.model(lambda _: REPLY)
                        answered[thread_id] += 1
            except Busy:
                pass
            if len(answered) == count:
                stop.set()

        return resume

    how = {"poll": dt.timedelta(milliseconds=20), "stop": stop}
    rivals = [threading.Thread(target=vault.supervise, args=(resume_with(vault),), kwargs=how) for vault in (first, second)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert answered == Counter(threads)
    assert stale(first) == []
