"""No verb crosses a namespace, on any store: two tenants with the same ids, every public verb used by one of them.

A verb that is in none of the tables fails the first test: say of it what it must do in its own namespace, and it is shown
that the other tenant's data neither comes out of it nor changes by it.
"""

from __future__ import annotations

import datetime as dt
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kept import kept

import savegame
from savegame import Checkpoint, Paused, Run, Thread, Toolbox, Vault
from savegame.model import Page, Record, ThreadKey
from savegame.store import Capability
from savegame.stores.memory import MemoryStore

Opener = Callable[..., Vault]
Act = Callable[[Any], Any]

MENTIONS = "the result tells of the tenant's own data"
CHANGES = "the tenant's own data is changed"
SHORT = dt.timedelta(milliseconds=1)


def tools() -> Toolbox:
    box = Toolbox()

    @box.tool(ask=True)
    def pay(cents: int) -> int:
        return cents

    @box.tool(timeout=SHORT)
    def send() -> None:
        time.sleep(2)  # longer than anybody is ever held up

    return box


def asking(name: str, **arguments: Any) -> Act:
    calls = [{"id": "c", "name": name, "arguments": arguments}]
    return lambda messages: {"role": "assistant", "content": "", "tool_calls": calls}


def settled(vault: Vault, thread_id: str, name: str, **arguments: Any) -> None:
    """A run whose only call waits for a person, or ended with an unknown outcome."""
    with vault.run(thread_id, tools=tools()) as run:
        run.user(f"for {vault.namespace}")
        run.model(asking(name, **arguments))
        with pytest.raises(savegame.OutcomeError):
            run.tools()


def moved_in(vault: Vault) -> Vault:
    """Everything that a tenant can have, with the tenant's name in it and ids that all tenants have alike."""
    word = vault.namespace
    thread = vault.thread("t", agent="a")
    thread.save({"messages": [{"role": "user", "content": f"{word} one"}]}, id="t-1", label="mark", tags=["tag"])
    thread.update(append={"messages": [{"role": "user", "content": f"{word} two"}]}, id="t-2", status=f"failed({word})")
    thread.put_records({("k", "n"): word})
    thread.attach_subject("somebody")
    vault.thread(f"only {word}", agent="a").save({"messages": [{"role": "user", "content": f"only {word}"}]})
    for number in range(len(word)):
        vault.thread(f"{number} {word}").save({"number": number}, tokens_used=len(word))
    vault.save_agent({"agent_id": "a", "name": word, "agent_type": "scripted"})
    vault.save_conversation({"id": "c", "agent_id": "a", "title": word, "messages": [{"role": "user", "content": word}]})
    vault.checkpoint_agent("a", word)
    settled(vault, "asked", "pay", cents=len(word))
    settled(vault, "sent", "send")
    vault.send("asked", f"{word} waits", key="k-1")
    vault.thread("left").save({"messages": []})
    vault.store.lease(ThreadKey(word, "left"), f"a holder in {word}", 1)
    return vault


def call_of(vault: Vault, thread_id: str) -> Any:
    return next(vault.calls(thread_id))


def resumed(vault: Vault) -> list[str]:
    seen: list[str] = []
    vault.supervise(lambda thread_id: seen.append(f"{thread_id} of {next(vault.stale()).owner}"), once=True)
    return seen


def exported(vault: Vault, tmp_path: Path) -> str:
    vault.export(tmp_path / "export.jsonl")
    return (tmp_path / "export.jsonl").read_text()


def imported(vault: Vault, tmp_path: Path) -> int:
    with savegame.open("memory:") as other:
        other.thread("new").save(1)
        other.export(tmp_path / "import.jsonl")
    return vault.import_(tmp_path / "import.jsonl")


def copied(vault: Vault) -> Any:
    with savegame.open("memory:", namespace="elsewhere") as other:
        vault.copy_to(other)
        return kept(other)


def saved_agents(vault: Vault) -> None:
    vault.add_message("c", {"role": "user", "content": "since"})
    with vault.autosave_agents(["a"], every=dt.timedelta(hours=1)):
        deadline = time.monotonic() + 60
        while len(list(vault.agent_checkpoints("a"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)


def saved_by_itself(thread: Thread) -> None:
    with thread.autosave(lambda: "by itself", every=dt.timedelta(hours=1)):
        deadline = time.monotonic() + 60
        while thread.state() != "by itself" and time.monotonic() < deadline:
            time.sleep(0.01)


def restored(vault: Vault) -> Any:
    vault.add_message("c", {"role": "user", "content": "since"})
    return vault.restore_agent(next(vault.agent_checkpoints("a")).id)


def own_run(vault: Vault) -> Any:
    with vault.run("t") as run:
        return run.messages


def asleep(sleep: Callable[..., None], until: Any) -> None:
    with pytest.raises(Paused):
        sleep(until, name="nap")


VAULT: dict[str, tuple[Act, Any]] = {
    "thread": (lambda vault: vault.thread("t").latest(), MENTIONS),
    "threads": (lambda vault: vault.threads(limit=None), MENTIONS),
    "info": (lambda vault: vault.info("t"), MENTIONS),
    "fingerprints": (lambda vault: vault.fingerprints(), MENTIONS),
    "find": (lambda vault: [vault.find("t-2"), vault.find("only there")], MENTIONS),
    "load": (lambda vault: vault.load("t-1"), MENTIONS),
    "diff": (lambda vault: vault.diff("t-1", "t-2"), MENTIONS),
    "search": (lambda vault: [*vault.search("red"), *vault.search("blue"), *vault.search("")], MENTIONS),
    "drop_search_index": (lambda vault: [vault.search("red"), vault.drop_search_index(), vault.search("red")], MENTIONS),
    "save_agent": (lambda vault: vault.save_agent({"agent_id": "a", "name": "n", "agent_type": "t"}), CHANGES),
    "load_agent": (lambda vault: vault.load_agent("a"), MENTIONS),
    "delete_agent": (lambda vault: vault.delete_agent("a"), CHANGES),
    "agents": (lambda vault: vault.agents(), MENTIONS),
    "save_conversation": (lambda vault: vault.save_conversation({"id": "c", "agent_id": "a", "messages": []}), CHANGES),
    "load_conversation": (lambda vault: vault.load_conversation("c"), MENTIONS),
    "add_message": (lambda vault: vault.add_message("c", {"role": "user", "content": "x"}), CHANGES),
    "delete_conversation": (lambda vault: vault.delete_conversation("c"), CHANGES),
    "conversations": (lambda vault: vault.conversations(), MENTIONS),
    "checkpoint_agent": (lambda vault: vault.checkpoint_agent("a", "now"), CHANGES),
    "autosave_agents": (saved_agents, CHANGES),
    "agent_checkpoints": (lambda vault: vault.agent_checkpoints("a"), MENTIONS),
    "restore_agent": (restored, CHANGES),
    "delete_checkpoint": (lambda vault: vault.delete_checkpoint("t-1"), CHANGES),
    "run": (own_run, MENTIONS),
    "calls": (lambda vault: [call.arguments for call in vault.calls("asked")], [{"cents": 3}]),
    "answer": (lambda vault: vault.answer("asked", call_of(vault, "asked"), value=True), CHANGES),
    "effects": (lambda vault: [effect.name for effect in vault.effects("sent")], ["send"]),
    "undo": (lambda vault: vault.undo("sent", to=1, tools=Toolbox()), CHANGES),
    "resolve": (lambda vault: vault.resolve("sent", call_of(vault, "sent"), "done"), CHANGES),
    "send": (lambda vault: vault.send("t", "more", key="k-1"), CHANGES),
    "inbox": (lambda vault: vault.inbox("asked"), MENTIONS),
    "unsend": (lambda vault: vault.unsend("asked", "k-1"), CHANGES),
    "stop": (lambda vault: vault.stop("asked", "enough"), CHANGES),
    "stale": (lambda vault: vault.stale(), MENTIONS),
    "runs": (lambda vault: vault.runs(), MENTIONS),
    "supervise": (resumed, MENTIONS),
    "erase": (lambda vault: vault.erase("somebody"), CHANGES),
    "stats": (lambda vault: vault.stats().threads, 10),
    "usage": (lambda vault: sum(usage.tokens_used for usage in vault.usage()), 9),
    "verify": (lambda vault: vault.verify().threads, 10),
    "repair": (lambda vault: vault.repair().threads, 10),
    "prune": (lambda vault: vault.prune(keep=1, include_labelled=True), CHANGES),
    "copy_to": (copied, MENTIONS),
}
WITH_FILES: dict[str, tuple[Callable[[Vault, Path], Any], Any]] = {
    "export": (exported, MENTIONS),
    "import_": (imported, CHANGES),
}
WHOLE_STORE = {
    "close": "ends the use of the store",
    "register": "classes are those of this object, nothing is stored",
    "compact": "makes the whole store smaller, every state stays",
    "backup": "is of the whole store, by its own word",
    "connection": "is to the whole database, by its own word",
}
THREAD: dict[str, tuple[Act, Any]] = {
    "save": (lambda thread: thread.save("new"), CHANGES),
    "update": (lambda thread: thread.update(set={"x": 1}), CHANGES),
    "modify": (lambda thread: thread.modify(lambda state: [state]), CHANGES),
    "latest": (lambda thread: thread.latest(), MENTIONS),
    "has_checkpoint": (lambda thread: thread.has_checkpoint(), True),
    "load": (lambda thread: thread.load("mark"), MENTIONS),
    "state": (lambda thread: thread.state(), MENTIONS),
    "history": (lambda thread: thread.history(branches=True), MENTIONS),
    "noted": (lambda thread: thread.noted(), MENTIONS),
    "replay": (lambda thread: thread.replay(thread.history()), MENTIONS),
    "diff": (lambda thread: thread.diff(1, 2), MENTIONS),
    "rewind": (lambda thread: thread.rewind(1, discard=True), CHANGES),
    "fork": (lambda thread: thread.fork("what-if").state(), CHANGES),
    "label": (lambda thread: thread.label("t-1", "other"), CHANGES),
    "note": (lambda thread: thread.note("t-1", lambda label, tags: ("other", tags)), CHANGES),
    "tag": (lambda thread: thread.tag("t-1", "other"), CHANGES),
    "untag": (lambda thread: thread.untag("t-1", "tag"), CHANGES),
    "records": (lambda thread: thread.records("k"), MENTIONS),
    "put_records": (lambda thread: thread.put_records({("k", "n"): None}), CHANGES),
    "attach_subject": (lambda thread: thread.attach_subject("another"), CHANGES),
    "subjects": (lambda thread: thread.subjects(), ["somebody"]),
    "remove": (lambda thread: thread.remove("t-1"), CHANGES),
    "prune": (lambda thread: thread.prune(keep=1, include_labelled=True), CHANGES),
    "prunable": (lambda thread: thread.prunable(keep=1, include_labelled=True), MENTIONS),
    "delete": (lambda thread: thread.delete(), CHANGES),
    "autosave": (saved_by_itself, CHANGES),
    "watch": (lambda thread: thread.watch(since="t-1", timeout=SHORT), MENTIONS),
}
RUN: dict[str, tuple[Act, Any]] = {
    "user": (lambda run: run.user("more"), CHANGES),
    "model": (lambda run: run.model(lambda messages: f"heard: {messages}"), MENTIONS),
    "stream": (lambda run: list(run.stream(lambda messages: [f"heard: {messages}"])), MENTIONS),
    "sleep": (lambda run: asleep(run.sleep, dt.timedelta(hours=1)), CHANGES),
    "sleep_until": (lambda run: asleep(run.sleep_until, dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)), CHANGES),
    "tools": (lambda run: [run.model(asking("look")), run.tools(), run.messages], MENTIONS),
    "step": (lambda run: run.step("once", lambda: 1), CHANGES),
    "save": (lambda run: run.save("label"), CHANGES),
    "halt": (lambda run: run.halt("enough"), CHANGES),
}


def verbs(cls: type) -> set[str]:
    return {name for name, member in vars(cls).items() if inspect.isfunction(member) and not name.startswith("_")}


def test_every_verb_is_listed() -> None:
    assert verbs(Vault) == VAULT.keys() | WITH_FILES.keys() | WHOLE_STORE.keys()
    assert verbs(Thread) == THREAD.keys()
    assert verbs(Run) == RUN.keys()


@pytest.fixture
def red(opened: Opener) -> Vault:
    """A tenant, beside another one."""
    vault = moved_in(opened(namespace="red", durability="process"))
    blue = moved_in(Vault(vault.store, namespace="blue"))
    blue.thread("there").save("blue", id="only there")
    if Capability.SEARCH in vault.store.capabilities:
        blue.search("blue")
    return vault


def everything(store: Any, namespace: str) -> Any:
    """All that is kept of a tenant, leases too."""
    rows = [store.thread(ThreadKey(namespace, thread_id)) for thread_id, _ in store.heads(namespace)]
    return rows, kept(Vault(store, namespace=namespace))


def told(value: Any) -> str:
    """All that a result says, states too."""
    if isinstance(value, Checkpoint):
        loaded = value.load()
        return f"{loaded.id} {loaded.label} {loaded.status!r} {loaded.state}"
    if isinstance(value, Mapping):
        return " ".join(map(told, value.items()))
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return " ".join(map(told, value))
    return repr(value)


def check(vault: Vault, act: Callable[[], Any], expected: Any) -> None:
    mine, theirs = everything(vault.store, "red"), everything(vault.store, "blue")
    result = act()
    result = list(result) if isinstance(result, Iterator) else result
    said = told(result)
    assert "blue" not in said
    assert everything(vault.store, "blue") == theirs
    if expected == MENTIONS:
        assert "red" in said
    elif expected == CHANGES:
        assert everything(vault.store, "red") != mine
    else:
        assert result == expected


class Leaking(MemoryStore):
    """Answers one question with another tenant's data."""

    leaks = False

    def records(self, key: ThreadKey, kind: str, **how: Any) -> Page[Record]:
        return super().records(key._replace(namespace="blue") if self.leaks else key, kind, **how)


def test_what_would_cross_is_seen() -> None:
    store = Leaking()
    for name in ("red", "blue"):
        Vault(store, namespace=name).thread("t").put_records({("k", "n"): name})
    vault = Vault(store, namespace="red")
    check(vault, lambda: vault.thread("t").records("k"), MENTIONS)
    store.leaks = True
    with pytest.raises(AssertionError):
        check(vault, lambda: vault.thread("t").records("k"), MENTIONS)


@pytest.mark.parametrize("verb", VAULT)
def test_a_vault(red: Vault, verb: str) -> None:
    act, expected = VAULT[verb]
    if verb in ("search", "drop_search_index") and Capability.SEARCH not in red.store.capabilities:
        pytest.skip(f"a {red.store.scheme} store has no search")
    check(red, lambda: act(red), expected)


@pytest.mark.parametrize("verb", WITH_FILES)
def test_a_vault_with_files(red: Vault, verb: str, tmp_path: Path) -> None:
    act, expected = WITH_FILES[verb]
    check(red, lambda: act(red, tmp_path), expected)


@pytest.mark.parametrize("verb", THREAD)
def test_a_thread(red: Vault, verb: str) -> None:
    act, expected = THREAD[verb]
    check(red, lambda: act(red.thread("t")), expected)


@pytest.mark.parametrize("verb", RUN)
def test_a_run(red: Vault, verb: str) -> None:
    box = Toolbox()
    box.tool(read_only=True)(look)

    def work() -> Any:
        with red.run("left", tools=box) as run:
            run.user("red")
            return RUN[verb][0](run)

    check(red, work, RUN[verb][1])


def look() -> str:
    """Sees nothing."""
    return "nothing"


def test_compacting_leaves_every_tenants_states(red: Vault) -> None:
    before = {name: told(Vault(red.store, namespace=name).thread("t").history()) for name in ("red", "blue")}
    red.compact()
    for name, said in before.items():
        assert told(Vault(red.store, namespace=name).thread("t").history()) == said


@pytest.mark.requirement("Z60")
def test_what_is_asked_for_by_another_tenants_id_is_not_there(red: Vault) -> None:
    assert red.find("only there") is None
    assert red.delete_checkpoint("only there") is False
    assert red.thread("there").latest() is None
    assert red.thread("there").delete() is False
    assert red.load_conversation("there") is None
    assert list(red.threads(after="only red", agent="nobody")) == []
    with pytest.raises(savegame.CheckpointNotFound):
        red.load("only there")
    with pytest.raises(savegame.CheckpointNotFound):
        red.restore_agent("only there")
