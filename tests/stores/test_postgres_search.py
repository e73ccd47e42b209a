"""The search index in PostgreSQL: its tables, long messages, many processes, and that nothing removed is left in any table."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

import savegame
from savegame.encoding.words import terms_of
from savegame.errors import UnavailableError, UnsupportedError
from savegame.index import Entry, Index, Said
from savegame.model import ThreadKey
from savegame.store import Store
from savegame.stores.postgres import PostgresStore, open_url
from savegame.stores.postgres.search import LONGEST_PHRASE, PostgresIndex
from savegame.testing.contract.helpers import at_once
from savegame.vault import Vault
from tests.search.test_search import (
    KILLED,
    SEARCHER,
    SECRET,
    deleted,
    discarded,
    found,
    pruned,
    removed,
    say,
    searched_and_pruned,
)

A, B = ThreadKey("default", "a"), ThreadKey("default", "b")
TABLES = ["search_message", "search_piece", "search_thread"]


@pytest.fixture
def vault(postgres_url: str) -> Iterator[Vault]:
    with savegame.open(postgres_url, compress=False) as vault:
        yield vault


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    store = open_url(postgres_url)
    yield store
    store.close()


def tables(url: str) -> list[str]:
    """Those of the schema, by name."""
    with psycopg.connect(url) as db:
        rows = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'savegame' ORDER BY 1").fetchall()
        return [name for (name,) in rows]


def remains(url: str, text: str) -> list[str]:
    """The tables that hold a text in any column of any row, whatever the case."""

    def holds(value: object) -> bool:
        return text.lower().encode() in (value if isinstance(value, bytes) else str(value).encode()).lower()

    with psycopg.connect(url) as db:
        rows = {name: db.execute(SQL("SELECT * FROM savegame.{}").format(Identifier(name))).fetchall() for name in tables(url)}
    return [name for name, kept in rows.items() if any(holds(value) for row in kept for value in row)]


# -- the tables ------------------------------------------------------------------------------------


def test_tables_are_made_by_the_first_search_and_dropped_whole(vault: Vault, postgres_url: str) -> None:
    say(vault, "t", "refund")
    vault.thread("t").prune(keep=1)
    before = tables(postgres_url)
    assert (set(TABLES) & set(before), vault.stats().sizes["search"]) == (set(), 0)
    total = vault.stats().sizes["total"]
    assert found(vault, "refund") == ["t"]
    assert tables(postgres_url) == sorted([*before, *TABLES])
    sizes = vault.stats().sizes
    assert (sizes["total"], sizes["search"] > 0) == (total, True)
    vault.drop_search_index()
    vault.drop_search_index()
    assert (tables(postgres_url), vault.stats().sizes["search"]) == (before, 0)
    assert found(vault, "refund") == ["t"]


@pytest.mark.parametrize(
    "harm",
    [
        "COMMENT ON TABLE savegame.search_thread IS 'savegame search index, version 99'",
        *[f"DROP TABLE savegame.{name}" for name in TABLES],
    ],
)
def test_a_damaged_index_is_built_anew(vault: Vault, caplog: pytest.LogCaptureFixture, harm: str) -> None:
    say(vault, "t", "refund")
    vault.search("refund")
    with vault.connection() as db:
        db.execute(harm)
    with caplog.at_level(logging.WARNING, "savegame"):
        assert found(vault, "refund") == ["t"]
        assert "rebuilding it" in caplog.text
        caplog.clear()
        assert found(vault, "refund") == ["t"]
        assert caplog.text == ""


def test_words_leave_a_damaged_index_too(vault: Vault, postgres_url: str) -> None:
    say(vault, "t", SECRET)
    vault.search(SECRET)
    with vault.connection() as db:
        db.execute("DROP TABLE savegame.search_thread")
    vault.thread("t").delete()
    assert remains(postgres_url, SECRET) == []


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_not_ours_is_refused_and_kept(vault: Vault, postgres_url: str, name: str) -> None:
    with vault.connection() as db:
        db.execute(SQL("CREATE TABLE savegame.{} AS SELECT 'a diary' AS text").format(Identifier(name)))
    say(vault, "t", "refund")
    with pytest.raises(UnsupportedError, match="rename it"):
        vault.search("refund")
    with pytest.raises(UnsupportedError, match="rename it"):
        vault.drop_search_index()
    assert vault.thread("t").delete()
    assert remains(postgres_url, "diary") == [name]


def test_who_may_make_no_tables_is_told_which_right_is_missing(vault: Vault) -> None:
    say(vault, "t", "refund")
    with vault.connection() as db:
        db.execute("CREATE ROLE searcher")
        db.execute("GRANT USAGE ON SCHEMA savegame TO searcher")
        db.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA savegame TO searcher")

    def search_as_somebody_else() -> None:
        with vault.connection() as db:
            db.execute("SET LOCAL ROLE searcher")
            vault.search("refund")

    try:
        with pytest.raises(UnavailableError, match="GRANT CREATE ON SCHEMA"):
            search_as_somebody_else()
    finally:
        with vault.connection() as db:
            db.execute("DROP OWNED BY searcher")
            db.execute("DROP ROLE searcher")


def test_a_read_only_vault_is_searched_and_nothing_is_written(vault: Vault, postgres_url: str) -> None:
    say(vault, "t", "refund")
    before = tables(postgres_url)
    with savegame.open(postgres_url, read_only=True) as reader:
        assert found(reader, "refund") == ["t"]
    assert tables(postgres_url) == before


def test_a_search_inside_a_transaction_sees_it_and_leaves_nothing_if_it_is_undone(vault: Vault, postgres_url: str) -> None:
    say(vault, "t", "refund")

    def undone() -> None:
        with vault.connection():
            say(vault, "never", SECRET)
            assert found(vault, SECRET) == ["never"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        undone()
    assert remains(postgres_url, SECRET) == []
    assert (found(vault, SECRET), found(vault, "refund")) == ([], ["t"])


# -- long messages ---------------------------------------------------------------------------------


def numbered(first: int, last: int) -> str:
    return " ".join(f"w{number}" for number in range(first, last))


@pytest.mark.parametrize(
    "text",
    [
        f"begin {numbered(0, 100_000)} the end of it",
        f"begin {'the ' * 1000} the end of it",
        f"begin {'x' * 5000} {'y' * 3_000_000} the end of it",
        f"begin {'退' * 20_000} the end of it",
    ],
    ids=["many words", "one word many times", "long words", "many signs"],
)
def test_a_message_may_be_longer_than_a_tsvector(store: Store, text: str) -> None:
    index = store.index()
    index.put([Entry(A, "a-1", None, 1, [Said("user", "short"), Said("user", text)]), Entry(B, "b-1", None, 1, [])])
    for query in ("begin", "BEGI end", '"the end of it"', "it of end the begin"):
        assert [(hit.thread_id, hit.message, hit.matches, hit.text) for hit in index.find("default", terms_of(query))] == [
            ("a", 1, 1, text)
        ]
    assert index.find("default", terms_of("begin short")) == index.find("default", terms_of('"end the"')) == []
    index.put([Entry(A, "a-2", None, 1, [Said("user", "short")])])
    assert index.find("default", terms_of("begin")) == []


def test_a_phrase_is_found_wherever_a_long_message_was_cut(store: Store) -> None:
    """And one that is longer than what pieces have in common is looked for as it stands."""
    index = store.index()
    index.put([Entry(A, "a-1", None, 1, [Said("user", numbered(0, 40_000))])])
    for first in range(0, 40_000 - LONGEST_PHRASE, 499):
        assert index.find("default", terms_of(f'"{numbered(first, first + LONGEST_PHRASE)}"'))
    assert not index.find("default", terms_of(f'"{numbered(7, 8 + LONGEST_PHRASE)}"'))
    assert index.contains("default", numbered(7, 8 + LONGEST_PHRASE))


# -- many at once ----------------------------------------------------------------------------------


def fill(vault: Vault) -> None:
    for number in range(300):
        vault.thread(f"t{number:03}").save({"messages": [f"refund {number}"]})


def test_a_killed_indexing_goes_on_where_it_stopped(vault: Vault, postgres_url: str) -> None:
    fill(vault)
    done = subprocess.run([sys.executable, "-c", KILLED, postgres_url], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    told: list[tuple[int, int]] = []
    assert len(vault.search("refund", limit=None, progress=lambda done, total: told.append((done, total)))) == 300
    assert told == [(100, 100)]


def test_many_processes_and_threads_index_at_once(vault: Vault, postgres_url: str) -> None:
    fill(vault)
    command = [sys.executable, "-c", SEARCHER, postgres_url]
    others = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    threads = [threading.Thread(target=vault.search, args=("refund",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        say(vault, f"late {number}", "refund")
    for thread in threads:
        thread.join()
    assert [other.communicate(timeout=120)[1] for other in others] == [""] * 3
    assert len(vault.search("refund", limit=None)) == 320


def test_putting_forgetting_and_finding_at_once_leaves_the_index_whole(store: Store, postgres_url: str) -> None:
    """Batches in every order of their threads, so that locks taken in another order than one would meet in a circle."""
    keys = [ThreadKey("default", f"t{number}") for number in range(8)]
    index = store.index()

    def work(worker: int) -> None:
        for turn in range(15):
            mine = keys[worker:] + keys[:worker] if turn % 2 else keys[::-1]
            said = [Said("user", f"refund {worker} {turn} {number}") for number in range(4)]
            index.put([Entry(key, f"{worker}-{turn}", None, turn, said) for key in mine])
            index.forget(dict.fromkeys(mine[::3]))
            assert {hit.matches for hit in index.find("default", terms_of("refund"))} <= {4}

    def deadlocks() -> int:
        with psycopg.connect(postgres_url) as db:
            rows = db.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchall()
            return int(rows[0][0])

    before = deadlocks()
    assert at_once(*[lambda worker=worker: work(worker) for worker in range(4)]) == [None] * 4
    assert deadlocks() == before
    index.put([Entry(key, "last", None, 1, [Said("user", "refund at last")]) for key in keys])
    assert {(hit.thread_id, hit.matches) for hit in index.find("default", terms_of("refund"))} == {(key.id, 1) for key in keys}
    assert index.heads("default") == {key.id: "last" for key in keys}


# -- what is removed is gone -----------------------------------------------------------------------


@pytest.mark.parametrize("way", [deleted, discarded, removed, pruned, searched_and_pruned], ids=lambda way: way.__name__)
def test_removed_words_are_in_no_table(vault: Vault, postgres_url: str, way: Callable[[Vault], None]) -> None:
    say(vault, "other", "xylophones and xylophone players")
    vault.thread("t").save({"messages": ["harmless"]})
    say(vault, "t", *[f"a {SECRET} wants refund {number}" for number in range(20)], f"{SECRET} " * 1000)
    assert found(vault, SECRET) == ["t"]
    assert set(TABLES[:2]) < set(remains(postgres_url, SECRET))
    way(vault)
    assert remains(postgres_url, SECRET) == []
    assert (found(vault, SECRET), found(vault, "harmless")) == ([], [] if way is deleted else ["t"])
    assert found(vault, "xylophone") == ["other"]


class LateIndex(PostgresIndex):
    """Writes only after `meanwhile` was called: what happens between reading a thread and indexing it."""

    meanwhile: Callable[[], object]

    def put(self, entries: Iterable[Entry]) -> None:
        self.meanwhile()
        super().put(entries)


class LateStore(PostgresStore):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.late = LateIndex(self._work, self.schema)

    def index(self) -> Index:
        return self.late


def test_what_is_deleted_while_it_is_being_indexed_is_in_no_table(postgres_url: str) -> None:
    with Vault(store := LateStore(postgres_url), compress=False) as vault:
        say(vault, "t", SECRET)
        store.late.meanwhile = vault.thread("t").delete
        assert found(vault, "") == []
        assert remains(postgres_url, SECRET) == []


def test_nothing_of_what_was_erased_is_in_any_table(vault: Vault, postgres_url: str) -> None:
    """Messages, ids, notes, large values, keyframes, records, what repair set aside, the search index."""
    subject = "Zanzibar-Quux"
    say(vault, "kept", "the bystander")
    for number in range(3):
        thread = vault.thread(f"chat {number} of {subject}", agent=subject)
        thread.save({"messages": [f"{subject} " + "x" * 10_000]})
        thread.update(append={"messages": [f"{subject} {number}"]})
        thread.put_records({("note", subject): subject})
        thread.label("head", subject)
        thread.attach_subject(subject)
    with vault.connection() as db:
        db.execute("UPDATE savegame.keyframe SET sum = sum + 1 WHERE thread LIKE 'chat 1%'")
        db.execute("UPDATE savegame.record SET sum = sum + 1 WHERE thread LIKE 'chat 2%' AND kind = 'note'")
    vault.repair()
    assert len(found(vault, subject)) == 3
    assert {"thread", "frame", "record", "aside", *TABLES} - {"search_piece"} <= set(remains(postgres_url, subject))
    assert vault.erase(subject).complete
    assert vault.erase("nobody").threads == ()
    assert remains(postgres_url, subject) == remains(postgres_url, "zanzibar") == []
    assert (found(vault, "bystander"), vault.verify().ok) == (["kept"], True)
