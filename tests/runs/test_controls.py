"""The negative controls: with one safeguard taken away, the checks of the other files must notice, or they prove nothing."""

from __future__ import annotations

import pytest
from agents import LEASE, Log, broken_promises, finished, killed
from broken_stores import Forgetful, Unfenced, Unleased, opened
from rivals import overtaken, raced

from savegame.testing.provider import Rejected, check_messages


def test_without_the_fence_a_process_that_was_stopped_is_seen_to_write(address: str, log: Log) -> None:
    assert overtaken(address, log, "inside the model", (Unfenced,)) == ("wrote", True)


def test_without_the_lease_several_processes_are_seen_to_run_at_once(address: str, log: Log) -> None:
    assert raced(address, log, rounds=10, workers=4, broken=(Unleased,)) != []


def test_without_the_record_of_a_start_an_effect_is_seen_to_happen_twice(address: str, log: Log) -> None:
    forgetful = (0, "", LEASE, (Forgetful,))
    assert killed(address, "t", log, "after the effect of mail", *forgetful[1:])
    assert finished(address, ["t"], log, *forgetful) == []
    assert broken_promises(address, ["t"], log) == ["mail is done and took effect 2 times"]


def test_a_provider_that_is_given_what_a_crash_left_behind_is_seen_to_refuse_it(address: str, log: Log) -> None:
    assert killed(address, "t", log, "after the effect of mail")
    with opened(address) as vault:
        messages = vault.thread("t").state()["messages"]
    with pytest.raises(Rejected, match="end without the results"):
        check_messages(messages)
