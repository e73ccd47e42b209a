"""Rows that were lost, or moved to a place where none can be: writes say so, repair brings back what is sound, and whatever
deletes a thread deletes what is left of it too.
"""

from __future__ import annotations

import pytest
from psycopg.sql import SQL, Identifier

import savegame
from savegame import CorruptionError
from savegame.model import ThreadKey
from savegame.store import DeleteThread, PutKeyframe, PutRecord
from savegame.testing.postgres import PostgresServer

T = ThreadKey("default", "t")
LOSE_ROW = "DELETE FROM savegame.thread WHERE id = 't'"
TABLES = ("thread", "frame", "keyframe", "record", "blob", "aside")


@pytest.fixture
def vault_url(url: str) -> str:
    """A vault with a thread of four steps, and everything that can be beside one."""
    with savegame.open(url, cache_bytes=0) as vault:
        for step in range(1, 5):
            vault.thread("t", agent="somebody").save({"step": step, "big": "y" * 9000}, label=f"label {step}")
        chain = vault.store.chain(T, 1)
        body = chain.keyframe or chain.deltas[0]
        vault.store.commit([PutRecord(T, "kind", "name", b"value"), PutKeyframe(T, 1, body)])
    return url


def left(url: str) -> dict[str, int]:
    """How many rows there are, by table."""
    server = PostgresServer(url)
    return {table: server.execute(SQL("SELECT count(*) FROM savegame.{}").format(Identifier(table)))[0][0] for table in TABLES}


# -- numbers that no frame can have ----------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -3, 2**32, 2**32 + 4, 2**32 + 5, 2**40])
@pytest.mark.parametrize("step", [2, 4])
def test_a_frame_that_was_given_an_impossible_number_is_set_aside(step: int, number: int, vault_url: str) -> None:
    PostgresServer(vault_url).execute("UPDATE savegame.frame SET seq = %s WHERE seq = %s", number, step)
    with savegame.open(vault_url, cache_bytes=0) as vault:
        assert f"frame {number}" in [problem.place for problem in vault.verify().problems]
        report = vault.repair()
        assert report.ok
        assert any(f"frame {number}" in said for said in report.repaired)
        saved = vault.thread("t").save("after that")
    with savegame.open(vault_url, cache_bytes=0) as vault:
        assert vault.thread("t").state() == "after that"
        assert next(iter(vault.thread("t").history(branches=True))).id == saved.id
        assert vault.verify().ok
    assert (number,) in PostgresServer(vault_url).execute("SELECT seq FROM savegame.aside")


def test_a_keyframe_that_was_given_an_impossible_number_is_set_aside(vault_url: str) -> None:
    """Whose checksum is right by chance: those of numbers below 2**32 and above share their sums."""
    with savegame.open(vault_url) as vault:
        vault.store.commit([PutKeyframe(T, 4, b"whatever")])
    PostgresServer(vault_url).execute("UPDATE savegame.keyframe SET seq = %s WHERE seq = 4", 2**32 + 5)
    with savegame.open(vault_url, cache_bytes=0) as vault:
        assert not vault.verify().ok
        assert vault.repair().ok
    assert PostgresServer(vault_url).execute("SELECT count(*) FROM savegame.keyframe WHERE seq > 4") == [(0,)]


# -- the row of a thread ---------------------------------------------------------------------------


def test_a_row_whose_version_is_0_is_damaged_and_not_a_new_one(vault_url: str) -> None:
    PostgresServer(vault_url).execute("UPDATE savegame.thread SET version = 0")
    with savegame.open(vault_url, cache_bytes=0) as vault:
        for write in (
            lambda: vault.store.lease(T, "me", 1),
            lambda: vault.store.commit([PutRecord(T, "kind", "name", b"other")]),
            lambda: vault.thread("t").save("over it"),
        ):
            with pytest.raises(CorruptionError, match="thread row"):
                write()
        assert vault.repair().ok
        assert vault.thread("t").state()["step"] == 4


def test_a_thread_whose_row_was_lost_says_so_when_it_is_written_to(vault_url: str) -> None:
    PostgresServer(vault_url).execute(LOSE_ROW)
    with savegame.open(vault_url, cache_bytes=0) as vault, pytest.raises(CorruptionError, match="run verify, then repair"):
        vault.thread("t").save("over it")
    assert left(vault_url)["frame"] == 4


def test_a_thread_whose_row_was_lost_comes_back_with_all_that_is_sound(vault_url: str) -> None:
    PostgresServer(vault_url).execute(LOSE_ROW)
    with savegame.open(vault_url, cache_bytes=0) as vault:
        assert vault.repair().repaired == ("thread 't': its row was rebuilt",)
        assert [entry.label for entry in vault.thread("t").history()] == [f"label {step}" for step in (4, 3, 2, 1)]
        assert [record.value for record in vault.store.records(T, "kind").items] == [b"value"]
        assert vault.store.thread(T) is not None
        assert vault.thread("t").save("after that").step == 5
        assert vault.verify().ok
    assert left(vault_url)["aside"] == 0


def test_what_is_damaged_of_a_thread_whose_row_was_lost_is_set_aside(vault_url: str) -> None:
    PostgresServer(vault_url).execute("UPDATE savegame.frame SET delta = 'x' WHERE seq = 4")
    PostgresServer(vault_url).execute("UPDATE savegame.record SET value = 'x'")
    PostgresServer(vault_url).execute(LOSE_ROW)
    with savegame.open(vault_url, cache_bytes=0) as vault:
        assert vault.repair().ok
        assert vault.thread("t").state()["step"] == 3
    assert left(vault_url)["aside"] == 2


def test_a_damaged_frame_does_not_make_the_thread_that_it_names(vault_url: str) -> None:
    PostgresServer(vault_url).execute("UPDATE savegame.frame SET thread = 'tx' WHERE seq = 4")
    with savegame.open(vault_url, cache_bytes=0) as vault:
        assert vault.repair().ok
        assert [info.id for info in vault.threads()] == ["t"]
        assert vault.thread("t").state()["step"] == 3


# -- deleting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("repaired", [False, True])
def test_deleting_a_thread_that_is_not_there_deletes_what_is_left_of_it(repaired: bool, vault_url: str) -> None:
    PostgresServer(vault_url).execute("UPDATE savegame.frame SET meta = 'x'")
    PostgresServer(vault_url).execute(LOSE_ROW)
    with savegame.open(vault_url, cache_bytes=0) as vault:
        if repaired:
            vault.repair()
            assert left(vault_url) == dict.fromkeys(TABLES, 0) | {"aside": left(vault_url)["aside"]}
        assert sum(left(vault_url).values()) > 4
        vault.thread("t").delete()
        assert left(vault_url) == dict.fromkeys(TABLES, 0)
        vault.store.commit([DeleteThread(T, epoch=7)])  # of no lease: nothing happens
        assert vault.verify().ok
