"""The agent, with its vault closed and opened again after every single checkpoint: what is kept is all that a run needs."""

from __future__ import annotations

from collections.abc import Sequence

from agents import Agent, Log
from broken_stores import opened

from savegame import CallStatus, Paused
from savegame.store import Append, PutKeyframe, Store, StoreChange


class Enough(BaseException):
    """This opening of the vault has had its checkpoint."""


class OneCheckpoint(Store):
    """Takes one checkpoint and what comes before it, then nothing more."""

    full = False

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        if self.full and not isinstance(changes[0], PutKeyframe):
            raise Enough
        made = super().commit(changes)
        self.full = self.full or any(isinstance(change, Append) for change in changes)
        return made


def worked_once(address: str, log: Log) -> bool:
    """Open the vault, work until a checkpoint was made, close it; whether there was nothing left to do."""
    with opened(address, OneCheckpoint) as vault:
        try:
            return Agent(vault, "t", log).work() == "finished"
        except Paused as paused:
            vault.answer("t", paused.call, True)
        except Enough:
            pass
        return False


def test_an_agent_gets_to_its_end_in_a_new_vault_for_every_checkpoint(address: str, log: Log) -> None:
    openings = next(number for number in range(1, 100) if worked_once(address, log))
    with opened(address) as vault:
        assert Agent(vault, "t", log).broken_promises() == []
        assert all(call.status == CallStatus.DONE for call in vault.calls("t"))
        assert openings >= len(vault.thread("t").state()["messages"])
