"""autosave: what it saves and what it leaves alone, beside whom, how it ends, what it does with errors."""

from __future__ import annotations

import datetime as dt
import inspect
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from addresses import Opener

from savegame import AlreadyExistsError, Autosave, ClosedError, ConflictError, InvalidInputError, Thread, ThreadNotFound, Vault

OFTEN = dt.timedelta(milliseconds=1)
HOUR = dt.timedelta(hours=1)
PATIENCE_S = 60


def until(happened: Callable[[], Any]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


class Source:
    """A state that a test changes, and how often it was asked for."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.asked = 0
        self.error: Exception | None = None

    def __call__(self) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.state

    def asked_again(self, times: int = 2) -> None:
        """Wait until whatever began before this call has ended."""
        before = self.asked
        until(lambda: self.asked >= before + times)


def states(thread: Thread) -> list[Any]:
    return [cp.load().state for cp in thread.history(newest_first=False)]


# -- what it saves ---------------------------------------------------------------------------------


@pytest.mark.requirement("D61", "D62")
def test_it_saves_at_once_as_an_automatic_checkpoint(vault: Vault) -> None:
    with vault.thread("t", agent="helper").autosave(lambda: {"n": 1}, HOUR, tags=["a"], metadata={"b": 1}) as autosave:
        until(lambda: autosave.saved)
    cp = vault.thread("t").load()
    assert (cp.kind, cp.description, cp.state) == ("automatic", "Automatic checkpoint", {"n": 1})
    assert (cp.tags, cp.metadata, cp.agent_id, cp.label) == (("a",), {"b": 1}, "helper", None)


def test_a_block_that_is_left_at_once_has_saved_once(vault: Vault) -> None:
    with vault.thread("t").autosave(lambda: {"n": 1}, HOUR):
        pass
    assert states(vault.thread("t")) == [{"n": 1}]


@pytest.mark.requirement("D43c", "D61", "Z33")
def test_it_saves_what_changed_and_writes_nothing_else(vault: Vault) -> None:
    source = Source({"n": 0})
    with vault.thread("t").autosave(source, OFTEN) as autosave:
        for number in range(1, 4):
            until(lambda number=number: autosave.saved == number)
            source.asked_again(5)
            source.state = {"n": number}
        until(lambda: autosave.saved == 4)
        source.asked_again(5)
    assert states(vault.thread("t")) == [{"n": number} for number in range(4)]
    assert autosave.saved == vault.stats().checkpoints == 4


def test_what_was_saved_by_hand_is_not_saved_again(vault: Vault) -> None:
    vault.thread("t").save({"n": 1})
    source = Source({"n": 1})
    with vault.thread("t").autosave(source, OFTEN) as autosave:
        source.asked_again()
    assert (autosave.saved, vault.stats().checkpoints) == (0, 1)


def test_a_state_of_none_is_a_state(vault: Vault) -> None:
    source = Source(None)
    with vault.thread("t").autosave(source, OFTEN):
        source.asked_again()
    assert states(vault.thread("t")) == [None]


@pytest.mark.requirement("D43c", "D61", "Z33")
def test_keep_takes_neither_labelled_nor_other_checkpoints(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"n": -1})
    source = Source({"n": 0})
    with thread.autosave(source, OFTEN, keep=2) as autosave:
        for number in range(1, 7):
            until(lambda number=number: autosave.saved == number)
            if number == 2:
                thread.label("head", "mark")
            source.state = {"n": number}
        until(lambda: autosave.saved == 7)
    assert autosave.errors == ()
    assert [state["n"] for state in states(thread)] == [-1, 1, 5, 6]


@pytest.mark.parametrize("wrong", [{"every": dt.timedelta(0)}, {"every": -OFTEN}, {"keep": 0}, {"keep": -1}, {"keep": "1"}])
def test_what_makes_no_sense_is_refused_at_once(vault: Vault, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        vault.thread("t").autosave(lambda: 1, **{"every": HOUR, **wrong})
    vault.thread("t").autosave(lambda: 1, HOUR).stop()


# -- beside whom -----------------------------------------------------------------------------------


def test_its_saves_and_those_of_its_handle_follow_one_another(vault: Vault) -> None:
    thread = vault.thread("t")
    source = Source({"by itself": 0})
    with thread.autosave(source, dt.timedelta(microseconds=1)) as autosave:
        for number in range(300):
            source.state = {"by itself": number}
            if number % 2:
                thread.save({"by hand": number})
            else:
                thread.update(set={"by hand": number})
        until(lambda: autosave.saved > 1)
    assert autosave.errors == ()
    assert [cp.kind for cp in thread.history()].count("manual") == 300


def test_it_never_covers_up_what_its_handle_saved_meanwhile(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save("first")
    taken, saved = threading.Event(), threading.Event()

    def slow() -> str:
        taken.set()
        assert saved.wait(PATIENCE_S)
        return "older"

    with thread.autosave(slow, HOUR) as autosave:
        assert taken.wait(PATIENCE_S)
        thread.save("newer")
        saved.set()
    assert (states(thread), autosave.errors) == (["first", "newer"], ())


def test_what_somebody_else_saved_is_a_conflict_until_the_handle_reads_it(vault: Vault) -> None:
    thread = vault.thread("t")
    source = Source("mine")
    with thread.autosave(source, OFTEN) as autosave:
        until(lambda: autosave.saved == 1)
        vault.thread("t").save("theirs")
        source.state = "mine again"
        until(lambda: autosave.last_error)
        assert isinstance(autosave.last_error, ConflictError)
        assert vault.thread("t").state() == "theirs"
        assert thread.state() == "theirs"
        until(lambda: autosave.saved == 2)
    assert states(thread) == ["mine", "theirs", "mine again"]


def test_two_processes_worth_of_vaults_do_not_cover_each_other_up(in_database: Opener) -> None:
    one, other = in_database(), in_database()
    source = Source("one")
    with one.thread("t").autosave(source, OFTEN) as autosave:
        until(lambda: autosave.saved == 1)
        other.thread("t").save("other")
        source.state = "one again"
        until(lambda: autosave.last_error)
    assert states(other.thread("t")) == ["one", "other"]


def test_a_save_inside_a_transaction_does_not_disturb_it(in_database: Opener) -> None:
    vault = in_database()
    thread = vault.thread("t")
    source = Source(0)
    with thread.autosave(source, OFTEN) as autosave:
        until(lambda: autosave.saved == 1)
        with vault.connection():
            thread.save("inside")
            source.state = 1
        until(lambda: autosave.saved == 2)
    assert (states(thread), autosave.errors) == ([0, "inside", 1], ())


@pytest.mark.requirement("D61", "D63", "Z35")
def test_a_thread_takes_no_second_one(vault: Vault) -> None:
    with vault.thread("t").autosave(lambda: 1, HOUR) as first:
        with pytest.raises(AlreadyExistsError, match="already has a running autosave"):
            vault.thread("t").autosave(lambda: 2, HOUR)
        with vault.thread("u").autosave(lambda: 3, HOUR):
            assert first.running
    vault.thread("t").autosave(lambda: 4, HOUR).stop()
    assert states(vault.thread("t")) == [1, 4]


# -- how it ends -----------------------------------------------------------------------------------


@pytest.mark.requirement("D61", "D63", "Z35")
def test_nothing_is_saved_after_stop(vault: Vault) -> None:
    source = Source(0)
    autosave = vault.thread("t").autosave(source, OFTEN)
    until(lambda: autosave.saved)
    autosave.stop()
    asked = source.asked
    source.state = 1
    autosave.stop()
    assert (autosave.running, source.asked, states(vault.thread("t"))) == (False, asked, [0])


@pytest.mark.requirement("D61", "D63", "Z35")
def test_stop_does_not_wait_for_the_interval(vault: Vault) -> None:
    """Else this test would take an hour."""
    with vault.thread("t").autosave(lambda: 1, HOUR) as autosave:
        until(lambda: autosave.saved)
    assert not autosave.running


def test_stop_waits_for_a_save_that_is_under_way(vault: Vault) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        assert release.wait(PATIENCE_S)
        return 1

    autosave = vault.thread("t").autosave(slow, HOUR)
    assert begun.wait(PATIENCE_S)
    stopping = threading.Thread(target=autosave.stop)
    stopping.start()
    assert autosave.running
    release.set()
    stopping.join(PATIENCE_S)
    assert (stopping.is_alive(), autosave.running, states(vault.thread("t"))) == (False, False, [1])


def test_it_can_be_stopped_from_inside(vault: Vault) -> None:
    made: list[Autosave] = []

    def last() -> int:
        until(lambda: made)
        made[0].stop()
        return 1

    made.append(vault.thread("t").autosave(last, OFTEN))
    until(lambda: not made[0].running)
    assert states(vault.thread("t")) == [1]


def test_an_error_in_the_block_stops_it_and_comes_out(vault: Vault) -> None:
    with pytest.raises(KeyError), vault.thread("t").autosave(lambda: 1, HOUR) as autosave:
        raise KeyError
    assert not autosave.running


@pytest.mark.requirement("Z35")
def test_a_closed_vault_ends_it(opened: Opener) -> None:
    vault = opened()
    source = Source(0)
    autosave = vault.thread("t").autosave(source, OFTEN)
    until(lambda: autosave.saved)
    vault.close()
    until(lambda: not autosave.running)
    assert isinstance(autosave.last_error, ClosedError)


@pytest.mark.parametrize("by_its_handle", [True, False])
def test_a_deleted_thread_ends_it_and_is_not_made_anew(vault: Vault, by_its_handle: bool) -> None:
    thread = vault.thread("t")
    autosave = thread.autosave(lambda: 0, OFTEN)
    until(lambda: autosave.saved)
    (thread if by_its_handle else vault.thread("t")).delete()
    until(lambda: not autosave.running)
    assert isinstance(autosave.last_error, ThreadNotFound)
    assert vault.thread("t").latest() is None


@pytest.mark.parametrize("get_state", ["lambda: 1", "lambda: time.sleep(3600)"], ids=["waiting", "hanging"])
def test_the_end_of_the_program_does_not_wait_for_it(get_state: str) -> None:
    script = f"""
import time, savegame
thread = savegame.open("memory:").thread("t")
thread.autosave({get_state})
print("done")
"""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.requirement("Z34")
def test_errors_are_logged_kept_and_handed_on_and_the_loop_goes_on(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "savegame")
    source = Source(0)
    source.error = KeyError("lost")
    told: list[Exception] = []
    with vault.thread("t").autosave(source, OFTEN, on_error=told.append) as autosave:
        until(lambda: told)
        source.error = None
        source.state = {"bad": object()}
        until(lambda: isinstance(autosave.last_error, InvalidInputError))
        source.state = 1
        until(lambda: autosave.saved)
    assert isinstance(autosave.errors[0], KeyError)
    assert told == list(autosave.errors)[: len(told)]
    assert states(vault.thread("t")) == [1]
    assert "thread 't': an automatic save failed: KeyError('lost')" in caplog.messages


def test_an_on_error_that_fails_is_logged_and_does_not_end_it(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    source = Source(0)
    source.error = KeyError("lost")

    def fails(error: Exception) -> None:
        raise OSError("no mail today") from error

    with vault.thread("t").autosave(source, OFTEN, on_error=fails) as autosave:
        until(lambda: autosave.errors)
        source.error = None
        until(lambda: autosave.saved)
    assert "thread 't': on_error of its autosave failed" in caplog.messages


def test_only_the_newest_errors_are_kept(vault: Vault) -> None:
    source = Source(0)
    source.error = KeyError("lost")
    with vault.thread("t").autosave(source, dt.timedelta(microseconds=1)) as autosave:
        until(lambda: source.asked > 200)
    assert len(autosave.errors) == 100


@pytest.mark.requirement("D43a", "D43b", "D43c", "D76")
def test_the_defaults_save_every_five_minutes_and_keep_everything() -> None:
    parameters = inspect.signature(Thread.autosave).parameters
    assert (parameters["every"].default, parameters["keep"].default) == (dt.timedelta(seconds=300), None)
