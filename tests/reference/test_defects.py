"""Defects of the five reference systems that must not be here, those that several have: one test for each, by number.

`home` is where the vaults of one test live, on each store; `disk` only on those that outlive a process. The defects of
single systems are in the files beside this one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from addresses import ALL, LASTING
from damage import overwrite

import savegame
from savegame import (
    CallStatus,
    Conversation,
    CorruptionError,
    Message,
    OutOfSpace,
    Retention,
    Toolbox,
    UnavailableError,
    Unknown,
    UnsupportedError,
    Vault,
)
from savegame.model import ThreadKey
from savegame.store import Rewrite, Store, StoreChange
from savegame.stores.file import FileStore
from savegame.stores.memory import MemoryStore
from savegame.stores.postgres import PostgresStore
from savegame.stores.sqlite import SQLiteStore
from savegame.testing.faults import Child, Mouth, together

IN_FILES = ["sqlite", "file"]
ROOT = Path(__file__).resolve().parents[2]


class Home:
    """Vaults on one store. Whatever is opened here opens the same data, as another program would."""

    def __init__(self, store: str, path: Path, database: str = "") -> None:
        self.store = store
        self.path = path
        self.url = {"memory": "memory:", "sqlite": str(path / "v.db"), "file": f"file:{path}", "postgres": database}[store]
        self._memory: Store | None = None
        self._opened: list[Vault] = []

    def open(self, **options: Any) -> Vault:
        if self.store != "memory":
            return self._kept(savegame.open(self.url, **options))
        self._memory = self._memory or MemoryStore()
        return self._kept(Vault(self._memory, **options))

    def with_clock(self, clock: Callable[[], int]) -> Vault:
        """A vault whose clock is the test's, in microseconds since 1970."""
        return self._kept(Vault(_CLOCKED[self.store](self, clock)))

    def _kept(self, vault: Vault) -> Vault:
        self._opened.append(vault)
        return vault

    def close(self) -> None:
        for vault in self._opened:
            vault.close()
        self._opened.clear()

    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file())

    def damage(self, text: bytes) -> None:
        """Change one letter of a text that stands once in all that is kept. Closes every vault."""
        self.close()
        wrong = text[:-1] + bytes((text[-1] ^ 1,))
        if self.store == "postgres":
            assert overwrite(self.url, text, wrong) == 1
            return
        (found,) = [path for path in self.files() if text in path.read_bytes()]
        data = found.read_bytes()
        assert data.count(text) == 1
        found.write_bytes(data.replace(text, wrong))


def _clocked(store: Any, home: Home, clock: Callable[[], int]) -> Store:
    made: Store = type("Clocked", (store,), {"clock": lambda _: clock()})(home.url)
    return made


_CLOCKED: dict[str, Callable[[Home, Callable[[], int]], Store]] = {
    "memory": lambda _, clock: MemoryStore(clock),
    "sqlite": partial(_clocked, SQLiteStore),
    "file": lambda home, clock: FileStore(str(home.path), clock=clock),
    "postgres": partial(_clocked, PostgresStore),
}


def at_home(store: str, path: Path, address_of: Callable[..., str]) -> Iterator[Home]:
    home = Home(store, path, address_of(store) if store == "postgres" else "")
    yield home
    home.close()


@pytest.fixture(name="home", params=ALL)
def a_home(request: pytest.FixtureRequest, tmp_path: Path, address_of: Callable[..., str]) -> Iterator[Home]:
    yield from at_home(request.param, tmp_path / "home", address_of)


@pytest.fixture(name="lasting", params=LASTING)
def a_lasting_one(request: pytest.FixtureRequest, tmp_path: Path, address_of: Callable[..., str]) -> Iterator[Home]:
    """One that outlives a process."""
    yield from at_home(request.param, tmp_path / "home", address_of)


@pytest.fixture(name="disk", params=IN_FILES)
def a_disk(request: pytest.FixtureRequest, tmp_path: Path, address_of: Callable[..., str]) -> Iterator[Home]:
    """One whose files a test looks at."""
    yield from at_home(request.param, tmp_path / "home", address_of)


def in_threads(work: Callable[[int], object], count: int) -> None:
    """Run something several times at once; what fails there fails here."""
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def iterations(vault: Vault, thread_id: str) -> list[int | None]:
    return [entry.iteration for entry in vault.thread(thread_id).history()]


# -- ids and files ---------------------------------------------------------------------------------

ODD_IDS = ["../x", "..", ".", "/etc/x", "a/b", "a", "A", "CON", "nul", "x.json", "x", "é", "e\u0301", "n" * 512, "a_b", "a\\b"]


def test_z01_ids_are_never_paths(home: Home, tmp_path: Path) -> None:
    vault = home.open()
    for thread_id in ODD_IDS:
        vault.thread(thread_id, agent=thread_id).save({"id": thread_id}, id=f"of {thread_id}"[:512], label=thread_id)
    for thread_id in ODD_IDS:
        assert vault.thread(thread_id).state() == {"id": thread_id}
        assert vault.load(f"of {thread_id}"[:512]).thread_id == thread_id
    assert [info.id for info in vault.threads()] == sorted(ODD_IDS)
    home.close()
    assert [path.name for path in tmp_path.iterdir()] == (["home"] if home.store in IN_FILES else [])
    assert not any(part in path.name for path in home.files() for part in ("etc", "CON", "a_b", "..", "n" * 20))
    for wrong in ("", "a\0b", "n" * 513):
        with pytest.raises(savegame.InvalidInputError):
            home.open().thread(wrong)


def talk_for_ever(mouth: Mouth, url: str) -> None:
    with savegame.open(url) as vault:
        vault.save_conversation(Conversation("helper", id="c"))
        for number in itertools.count():
            vault.add_message("c", Message.user(f"{number} " + "x" * 2000))
            vault.save_agent(savegame.AgentState("helper", f"{number}", "scripted"))
            mouth.say(number)


def test_z02_a_kill_in_the_middle_of_a_write_tears_nothing(lasting: Home) -> None:
    with Child(talk_for_ever, lasting.url) as child:
        while (told := child.next()[0]) < 5:
            pass
        child.kill()
        told = max([told, *(line[0] for line in child.said())])
    vault = lasting.open()
    conversation, agent = vault.load_conversation("c"), vault.load_agent("helper")
    assert conversation is not None
    assert agent is not None
    numbers = [int(message.text.split()[0]) for message in conversation.messages]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > told
    assert int(agent.name) >= told
    assert vault.verify().ok


# -- order -----------------------------------------------------------------------------------------


def test_z03_checkpoints_of_one_moment_keep_their_order(home: Home) -> None:
    vault = home.with_clock(lambda: 1_700_000_000_123_456)
    thread = vault.thread("t")
    for number in range(10):
        thread.save({"n": number}, iteration=number)
    newest = thread.latest()
    assert newest is not None
    assert (newest.iteration, newest.created_at.microsecond) == (9, 123_456)
    assert thread.prune(keep=3) == 7
    assert iterations(vault, "t") == [9, 8, 7]


def test_z04_a_clock_that_steps_back_changes_no_order(home: Home) -> None:
    times = itertools.count(1_700_000_000_000_000, -1_000_000)
    vault = home.with_clock(lambda: next(times))
    thread = vault.thread("t")
    saved = [thread.save({"n": number}) for number in range(5)]
    assert saved[0].created_at > saved[-1].created_at
    newest = thread.latest()
    assert newest is not None
    assert newest.id == next(thread.history()).id == saved[-1].id
    assert thread.prune(keep=1) == 4
    assert thread.state() == {"n": 4}


def test_z05_an_id_has_no_twin(home: Home) -> None:
    vault = home.open()
    thread = vault.thread("t")
    first = thread.save({"n": 1}, id="one")
    assert thread.save({"n": 1}, id="one").id == first.id
    for other, state in ((thread, {"n": 2}), (vault.thread("u"), {"n": 1})):
        with pytest.raises(savegame.AlreadyExistsError):
            other.save(state, id="one")
    thread.save({"n": 2})
    assert vault.load("one").state == {"n": 1}
    assert thread.rewind("one").state == thread.state() == {"n": 1}
    assert vault.delete_checkpoint("one")
    assert vault.find("one") is None
    assert thread.state() == {"n": 2}


def test_z06_one_bad_checkpoint_neither_poisons_nor_vanishes(lasting: Home) -> None:
    vault = lasting.open()
    thread = vault.thread("t")
    for number in range(4):
        thread.update(append={"texts": [f"text number {number}"]}, id=f"{number}")
    vault.thread("other").save({"sound": True})
    lasting.damage(b"text number 2")

    again = lasting.open()
    thread = again.thread("t")
    assert again.thread("other").state() == {"sound": True}
    with pytest.raises(CorruptionError) as told:
        thread.latest()
    assert told.value.checkpoint_id == "2"
    found = thread.latest(skip_damaged=True)
    assert found is not None
    assert (found.id, found.skipped[-1]) == ("1", "2")
    assert thread.load("0").state == {"texts": ["text number 0"]}
    assert any(problem.checkpoint_id == "2" for problem in again.verify().problems)


def with_one_damaged(lasting: Home) -> Vault:
    """Three threads of two checkpoints; the newest of the second one is damaged, its metadata too."""
    vault = lasting.open()
    for name in ("first", "second", "third"):
        vault.thread(name).save({"n": 1})
        vault.thread(name).save({"n": 2}, description=f"the {name} of them", force=True)
    lasting.damage(b"the second of them")
    return lasting.open()


def test_z06_listings_tell_of_a_damaged_thread_and_go_on(lasting: Home) -> None:
    vault = with_one_damaged(lasting)
    assert [(info.id, bool(info.damage)) for info in vault.threads()] == [("first", False), ("second", True), ("third", False)]
    assert [*vault.agents(), *vault.conversations()] == []
    assert vault.stats().checkpoints == 6
    with pytest.raises(CorruptionError, match="'second'"):
        list(vault.thread("second").history())


def test_z06_a_damaged_thread_does_not_stop_the_prune_of_others(lasting: Home) -> None:
    vault = with_one_damaged(lasting)
    with pytest.raises(CorruptionError, match="second"):  # after the others were pruned
        vault.prune(keep=1)
    assert [len(list(vault.thread(name).history())) for name in ("first", "third")] == [1, 1]


# -- several at once -------------------------------------------------------------------------------


def talk(mouth: Mouth, url: str, who: str, count: int) -> None:
    with savegame.open(url) as vault:
        mouth.say("ready")
        mouth.hear()
        for number in range(count):
            vault.add_message("c", Message.user(f"{who}{number}"))
            vault.thread(f"of {who}").save({"n": number}, label=f"{who}{number}")
            vault.prune(keep=1)


def test_z52_two_processes_lose_nothing_of_each_other(lasting: Home) -> None:
    vault = lasting.open()
    vault.save_conversation(Conversation("helper", id="c"))
    seen = vault.thread("t").save({"n": 0})
    together(talk, [(lasting.url, who, 12) for who in "ab"])
    conversation = vault.load_conversation("c")
    assert conversation is not None
    assert sorted(message.text for message in conversation.messages) == sorted(f"{who}{n}" for who in "ab" for n in range(12))
    assert [len(list(vault.thread(f"of {who}").history())) for who in "ab"] == [12, 12]
    vault.thread("t").save({"n": 1})
    with pytest.raises(savegame.ConflictError) as lost:
        vault.thread("t").save({"n": 2}, expect=seen)
    assert lost.value.expected == seen.id
    assert vault.verify().ok


def test_z53_a_checkpoint_costs_what_it_changed_and_listings_come_in_pages(home: Home) -> None:
    vault = home.open(compress=False)
    thread = vault.thread("t")
    for number in range(300):
        thread.update(append={"messages": [{"role": "user", "content": f"{number:03} " + "x" * 200}]})
    sizes = vault.stats().sizes
    assert sizes["total"] - sizes.get("wal", 0) < 1_000_000  # a whole copy each would be ten times that
    with pytest.raises(savegame.InvalidInputError, match="without its state"):
        _ = next(thread.history()).state
    page = vault.store.frames(ThreadKey("default", "t"), limit=2, newest_first=True)
    assert [(frame.seq, frame.delta) for frame in page] == [(300, None), (299, None)]
    for name in "abc":
        vault.thread(name).save({})
    assert [info.id for info in vault.threads(limit=2, after="a")] == ["b", "c"]


# -- versions, modes, errors -----------------------------------------------------------------------


@dataclass
class Plan:
    goal: str
    urgency: int


@dataclass
class OldPlan:
    goal: str


def test_z54_states_of_yesterday_are_brought_to_todays_shape(home: Home) -> None:
    before = home.open()
    before.register(OldPlan, name="Plan")
    before.thread("t").save({"plan": OldPlan("refund")})
    after = home.open()
    after.register(Plan, name="Plan", schema_version=2, upcast=lambda fields, _: {**fields, "urgency": 1})
    assert after.thread("t").state() == {"plan": Plan("refund", 1)}


def raise_format(disk: Home) -> None:
    """Make the files say that a later savegame wrote them."""
    if disk.store == "file":
        marker = disk.path / "savegame.json"
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 999}))
        return
    with disk.open() as vault, vault.connection() as db:
        db.execute("PRAGMA user_version = 999")


def test_z54_a_newer_format_is_refused_and_says_why(disk: Home) -> None:
    disk.open().thread("t").save(1)
    raise_format(disk)
    disk.close()
    before = {path: path.read_bytes() for path in disk.files()}
    with pytest.raises(UnsupportedError, match=r"999.*newer"):
        disk.open()
    assert {path: path.read_bytes() for path in disk.files()} == before


def test_z55_files_and_directories_are_private(disk: Home, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        vault = disk.open()
        vault.thread("t").save({"text": "x" * 20_000})
        vault.search("x")
        assert disk.files()
        for path in disk.path.rglob("*"):
            assert oct(path.stat().st_mode & 0o777) == ("0o700" if path.is_dir() else "0o600"), path
        assert disk.path.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_z57_the_documentation_says_what_checksums_cannot_do() -> None:
    said = (ROOT / "docs" / "decisions" / "0002-two-sums.md").read_text(encoding="utf-8")
    assert "Neither sum has a key. They show accidents, not attacks." in said


class NoRoomToCleanUp(MemoryStore):
    """Saves, but cannot remove anything."""

    refused = 0

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        if any(isinstance(change, Rewrite) for change in changes):
            self.refused += 1
            raise OutOfSpace("no room to rewrite anything")
        return super().commit(changes)


def test_z58_a_clean_up_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = NoRoomToCleanUp()
    vault = Vault(store, retention=Retention(max_checkpoints=2))
    thread = vault.thread("t")
    for number in range(200):
        thread.save({"n": number, "text": os.urandom(200).hex()})
    assert store.refused > 0
    assert "no room to rewrite anything" in caplog.text
    assert thread.step == 200
    assert len(list(thread.history())) == 2


def test_z59_what_cannot_be_read_is_not_taken_for_missing(disk: Home) -> None:
    disk.open().thread("t").save({"live": True})
    disk.close()
    largest = max(disk.files(), key=lambda path: path.stat().st_size)
    largest.rename(largest.with_name("moved away"))
    largest.mkdir()  # something that is there and cannot be read, for root too
    with pytest.raises((UnavailableError, UnsupportedError)):
        disk.open().thread("t").latest()
    assert largest.is_dir()


def test_z56_a_finished_tool_does_not_run_again(home: Home) -> None:
    """Also one that was cut off in the middle: it is said that nobody knows, never guessed."""
    box, made = Toolbox(), []

    @box.tool
    def mail(to: str) -> str:
        made.append(to)
        if to == "cut off":
            raise KeyboardInterrupt
        return "sent"

    def llm(messages: list[dict[str, Any]]) -> dict[str, Any]:
        to = ("done", "cut off")[sum(message["role"] == "assistant" for message in messages)]
        return {"role": "assistant", "content": "", "tool_calls": [{"id": to, "name": "mail", "arguments": {"to": to}}]}

    for attempt in range(3):
        with contextlib.suppress(KeyboardInterrupt, Unknown), home.open().run("t", tools=box) as run:
            run.user("hi", key="once")
            run.tools()
            while sum(message["role"] == "assistant" for message in run.messages) < 2:
                run.model(llm)
                run.tools()
        assert made == ["done", "cut off"], attempt
    assert [entry.status for entry in home.open().calls("t")].count(CallStatus.UNKNOWN) == 1
