"""Records whose bytes are sound and whose content is not: told with thread, kind and name, found by verify, set aside."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame import AsyncVault, CorruptionError, Paused, SavegameError, Toolbox, Vault
from savegame.adapters.langgraph import SavegameSaver
from savegame.model import ThreadKey
from savegame.runs.ledger import CallEntry

tools = Toolbox()


@tools.tool(ask=True)
def wire(to: str) -> str:
    return f"sent to {to}"


ASKS = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "wire", "arguments": {"to": "ada"}}]}


def play(vault: Vault, thread_id: str = "t") -> Any:
    with vault.run(thread_id, tools=tools) as run:
        if not run.messages:
            run.user("pay")
        run.step("plan", lambda: 1)
        while not run.done:
            run.tools()
            run.model(lambda messages: "done" if messages[-1]["role"] == "tool" else ASKS)
        return run.reply


def waiting(vault: Vault) -> CallEntry:
    with pytest.raises(Paused):
        play(vault)
    (call,) = vault.calls("t")
    return call


def changed(**fields: Any) -> Callable[[Any], Any]:
    return lambda kept: {**kept, **fields}


def without(name: str) -> Callable[[Any], Any]:
    return lambda kept: {field: value for field, value in kept.items() if field != name}


CALLS: dict[str, Callable[[Any], Any]] = {
    "a number": lambda _: 5,
    "a list": lambda _: ["wire"],
    "nothing in it": lambda _: {},
    "no status": without("status"),
    "no name": without("name"),
    "no arguments": without("arguments"),
    "a status that never was": changed(status="maybe"),
    "a status that is a list": changed(status=["done"]),
    "a name that is a number": changed(name=5),
    "arguments that are a list": changed(arguments=["ada"]),
    "arguments with other names": changed(arguments={1: "ada"}),
    "an attempt that is a text": changed(attempt="1"),
    "a time that is a text": changed(noted_at="2026-01-01"),
    "a time without a zone": changed(noted_at=dt.datetime(2026, 1, 1)),
    "tokens that are a text": changed(status="done", tokens_used="many"),
    "a cost that is a text": changed(status="done", cost="much"),
    "a question that is a number": changed(asked=5),
    "a kind that is a number": changed(kind=5),
    "the time of an undo that is a text": changed(undone_at="yesterday"),
    "a number of a checkpoint below zero": changed(after=-1),
    "an effect before it without a status": changed(before={}),
}
OTHERS: dict[str, tuple[str, str | None, Any]] = {
    "a call that only has a name": ("call", "x", {"name": "wire"}),
    "an answer that is a list": ("answer", None, [True]),
    "an answer without a value": ("answer", None, {"comment": "yes"}),
    "a step that is a number": ("step", "plan", 5),
    "a step without a value": ("step", "plan", {"at": None}),
    "a step that was kept at a number": ("step", "plan", {"value": 1, "at": 5}),
    "a root that is a number": ("run", "root", 5),
    "takeovers that are a number": ("run", "takeovers", 5),
    "takeovers without a head": ("run", "takeovers", {"count": 1}),
    "takeovers that are counted in words": ("run", "takeovers", {"count": "one", "head": None}),
    "a generation that is a text": ("run", "generation:{reply}", "1"),
    "a generation below zero": ("run", "generation:{reply}", -1),
    "an undo without a checkpoint": ("run", "undo", {"to": None, "skip": []}),
    "an undo of numbers": ("run", "undo", {"to": "x", "skip": [1]}),
    "effects to repeat that are a text": ("run", "rerun:x", "x:0"),
    "a removed checkpoint that is a text": ("run", "pruned", "1"),
    "an effect that is a number": ("effect", "x:0", 5),
    "an effect of which nobody knows how it is known": ("effect", "x:0", {"name": "wire", "status": "done"}),
    "an effect that is known in a new way": ("effect", "x:0", {"name": "wire", "status": "done", "how": "hearsay"}),
}


def misshape(vault: Vault, what: str) -> tuple[str, str]:
    """Put a record there that is not of the shape of its kind; its kind and name."""
    call = waiting(vault)
    if what in CALLS:
        kind, name, value = "call", call.key, CALLS[what](vault.thread("t").records("call")[call.key])
    else:
        kind, given, value = OTHERS[what]
        name = (given or call.key).format(reply=call.key.partition(":")[0])
    vault.thread("t").put_records({(kind, name): value})
    return kind, name


def everything_that_reads(vault: Vault, tmp_path: Path) -> list[Callable[[], Any]]:
    return [
        lambda: play(vault),
        lambda: vault.thread("t").fork("fork"),
        lambda: list(vault.calls("t")),
        lambda: vault.answer("t", "x", value=True),
        lambda: vault.resolve("t", "x", 1),
        lambda: vault.thread("t").rewind(2, rerun_tools=True),
        lambda: list(vault.runs()),
        lambda: list(vault.stale()),
        lambda: vault.supervise(lambda thread_id: play(vault, thread_id), once=True),
        lambda: vault.export(tmp_path / "e.jsonl"),
        lambda: [vault.thread("t").records(kind) for kind in ("call", "answer", "step", "run", "effect")],
    ]


def raised_by(work: Callable[[], Any]) -> SavegameError | None:
    """What is raised, if anything; it must be ours."""
    try:
        work()
    except SavegameError as error:
        return error
    return None


@pytest.mark.parametrize("what", [*CALLS, *OTHERS])
def test_whoever_meets_it_says_so_and_repair_sets_it_aside(path: str, tmp_path: Path, what: str) -> None:
    with savegame.open(path) as vault:
        vault.thread("sound").save(1)
        kind, name = misshape(vault, what)
        raised = [raised_by(read) for read in everything_that_reads(vault, tmp_path)]
        told = [error for error in raised if isinstance(error, CorruptionError)]
        assert {error.thread_id for error in told} == {"t"}
        assert {str(error).partition(" is damaged: ")[0] for error in told} == {f"thread 't': record {name!r} of kind {kind!r}"}
        (problem,) = vault.verify().problems
        assert (problem.thread_id, problem.place) == ("t", f"record {kind} {name}")
        report = vault.repair()
        assert report.ok
        assert any(f"thread 't': set aside: record {kind} {name}: " in line for line in report.repaired)
        assert list(vault.thread("t").records("set aside")) == [f"{kind} {name}"]
        assert vault.repair().repaired == ()
        with pytest.raises(SavegameError) as caught:  # it waits, or its outcome is unknown: no raw error
            play(vault)
        assert caught.value.kind in ("paused", "unknown")


@pytest.mark.parametrize("what", ["a number", "a step that is a number"])
def test_what_is_misshapen_is_not_brought_elsewhere(path: str, what: str) -> None:
    with savegame.open(path) as vault, savegame.open("memory:") as copy:
        kind, name = misshape(vault, what)
        vault.thread("sound").save(1)
        with pytest.raises(CorruptionError, match="is damaged") as caught:
            vault.copy_to(copy)
        assert caught.value.place == f"record {kind} {name}"
        assert [info.id for info in copy.threads()] == ["sound"]
        vault.repair()
        vault.copy_to(copy)
        assert copy.thread("t").records("set aside") == {}
        assert copy.verify().ok


def test_pruning_takes_nothing_that_somebody_may_need(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with savegame.open(path) as vault:
        misshape(vault, "a step that is a number")
        assert vault.thread("t").prune(keep=1) == 1
        assert "thread 't' keeps its whole ledger" in caplog.text
        assert len(list(vault.calls("t"))) == 1


def test_a_copy_that_knows_nothing_sensible_says_so(path: str) -> None:
    with savegame.open("memory:") as source, savegame.open(path) as copy:
        source.thread("t").save(1)
        source.copy_to(copy)
        marks = copy.thread("savegame:copied")
        (name,) = marks.records("copied")
        marks.put_records({("copied", name): ["far"]})
        with pytest.raises(CorruptionError, match="of kind 'copied' is damaged"):
            source.copy_to(copy)
        assert [problem.place for problem in copy.verify().problems] == [f"record copied {name}"]
        assert copy.repair().ok
        source.thread("t").save(2)
        assert source.copy_to(copy) == 1


@pytest.mark.parametrize("value", [5, ["task", "path"], ["task", "path", [["0", "channel", 1]]], ["task", 5, []], [1, "", []]])
def test_writes_of_a_framework_have_a_shape_too(path: str, value: Any) -> None:
    with savegame.open(path) as vault:
        saver = SavegameSaver(vault)
        config = saver.put(
            {"configurable": {"thread_id": "t", "checkpoint_ns": ""}},
            {"v": 4, "id": "1", "ts": "", "channel_values": {}, "channel_versions": {}, "versions_seen": {}},
            {},
            {},
        )
        saver.put_writes(config, [("channel", 1)], "task")
        (thread,) = (info.id for info in vault.threads())
        kind = next(kind for kind in vault.store.kinds(ThreadKey("default", thread)) if kind.startswith("writes"))
        vault.thread(thread).put_records({(kind, "task"): value})
        with pytest.raises(CorruptionError, match="expected what a task wrote"):
            saver.get_tuple(config)
        with pytest.raises(CorruptionError, match="expected what a task wrote"):
            saver.put_writes(config, [("channel", 1)], "task")
        assert [problem.place for problem in vault.verify().problems] == [f"record {kind} task"]
        assert vault.repair().ok
        assert saver.get_tuple(config) is not None


async def _read(vault: AsyncVault) -> list[CallEntry]:
    return [call async for call in vault.calls("t")]


def test_the_asynchronous_vault_says_the_same(path: str) -> None:
    with savegame.open(path) as vault:
        misshape(vault, "a number")

    async def main() -> None:
        async with savegame.open_async(path) as vault:
            with pytest.raises(CorruptionError, match="of kind 'call' is damaged"):
                await _read(vault)
            with pytest.raises(CorruptionError, match="of kind 'call' is damaged"):
                async with vault.run("t", tools=tools) as run:
                    await run.tools()

    asyncio.run(main())
