"""What a user's type checker sees: pyright reads this file, strictly (test_built.py)."""

# pyright: strict, reportUnusedCallResult=false

from __future__ import annotations

import datetime as dt
from typing import assert_type

import savegame
from savegame import AsyncVault, Checkpoint, Conversation, Message, Retention, Run, Strategy, Thread, Toolbox, Vault

tools = Toolbox()


@tools.tool
def add(left: int, right: int) -> int:
    return left + right


def use(url: str) -> None:
    with savegame.open(url, retention=Retention(max_checkpoints=3)) as vault:
        assert_type(vault, Vault)
        thread = vault.thread("t")
        assert_type(thread, Thread)
        saved = thread.save({"n": 1}, label="first", tags=["a"], metadata={"k": 1})
        assert_type(saved, Checkpoint)
        assert_type(saved.created_at, dt.datetime)
        assert_type(thread.latest(), Checkpoint | None)
        assert_type([entry.step for entry in thread.history(limit=2)], list[int])
        assert_type(thread.prune(keep=1), int)
        vault.save_conversation(Conversation("helper", [Message.user("hello")]))
        with vault.run("t", tools=tools, strategy=Strategy.every(3)) as run:
            assert_type(run, Run)
            assert_type(list(run.stream(lambda messages: ["a"], system="Be brief.")), list[str])
        assert_type(add(1, 2), int)


async def use_awaited(vault: AsyncVault) -> None:
    assert_type(await vault.thread("t").save({"n": 1}), Checkpoint)
    async for entry in vault.thread("t").history():
        assert_type(entry, Checkpoint)
