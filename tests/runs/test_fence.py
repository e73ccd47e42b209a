"""After losing its lease a run writes nothing more: stopped processes that wake up, and clocks that jump."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents import Log, broken_promises
from clocks import CLOCKED, HOUR_US, Clock, clocked
from rivals import overtaken

from savegame import Busy, Fenced, Toolbox, Vault


@pytest.mark.parametrize("moment", ["inside the model", "after the effect of mail", "after the effect of refund"])
def test_a_process_that_was_stopped_past_its_lease_finds_its_next_write_refused(moment: str, address: str, log: Log) -> None:
    assert overtaken(address, log, moment) == ("fenced", False)
    assert broken_promises(address, ["t"], log) == []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=CLOCKED)
def rivals(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> tuple[Vault, Vault]:
    """Two vaults over what one store keeps, by one clock."""
    opens = clocked(request.param, tmp_path, clock)
    return opens(), opens()


def test_a_clock_that_jumps_back_leaves_the_owner_alone_in_charge(rivals: tuple[Vault, Vault], clock: Clock) -> None:
    ours, theirs = rivals
    with ours.run("t") as run:
        run.user("one")
        clock.now -= HOUR_US
        with pytest.raises(Busy), theirs.run("t"):
            pass
        run.user("two")
    assert [message["content"] for message in theirs.thread("t").state()["messages"]] == ["one", "two"]


def test_a_clock_that_jumps_forward_gives_one_owner_after_the_other_never_two(
    rivals: tuple[Vault, Vault], clock: Clock
) -> None:
    ours, theirs = rivals
    with ours.run("t") as run:
        run.user("one")
        clock.now += HOUR_US
        run.user("slow, but nobody else has come")
        clock.now += HOUR_US
        with theirs.run("t") as other:
            other.user("theirs")
            clock.now -= 2 * HOUR_US
            with pytest.raises(Fenced):
                run.user("lost")
            with pytest.raises(Fenced):
                run.model(lambda messages: "lost too")
            other.user("still theirs")
    said = [message["content"] for message in theirs.thread("t").state()["messages"]]
    assert said == ["one", "slow, but nobody else has come", "theirs", "still theirs"]


def test_whoever_lost_the_lease_begins_nothing_that_must_not_happen_twice(rivals: tuple[Vault, Vault], clock: Clock) -> None:
    ours, theirs = rivals
    tools, effects = Toolbox(), []

    @tools.tool
    def mail() -> None:
        effects.append("sent")

    call = {"id": "1", "name": "mail", "arguments": {}}
    with ours.run("t", tools=tools) as run:
        run.user("Write to me.")
        run.model(lambda messages: {"role": "assistant", "content": "", "tool_calls": [call]})
        clock.now += HOUR_US
        with theirs.run("t"):
            with pytest.raises(Fenced):
                run.tools()
            with pytest.raises(Fenced):
                run.step("step", lambda: 1)
    assert effects == []
    assert list(theirs.calls("t")) == []
    assert theirs.thread("t").records("step") == {}
