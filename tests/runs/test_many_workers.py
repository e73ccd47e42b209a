"""Many processes resume one thread at the same moment, after the one that held it was killed."""

from __future__ import annotations

from agents import Log
from rivals import raced


def test_of_eight_processes_that_resume_a_thread_one_runs_and_every_effect_happens_once(address: str, log: Log) -> None:
    assert raced(address, log, rounds=20, workers=8) == []
