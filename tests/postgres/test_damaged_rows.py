"""One value changed in any column, behind the back of the store: it is reported, and nothing wrong is ever given back."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

import pytest

import savegame
from savegame import SavegameError
from savegame.model import ThreadKey
from savegame.store import PutKeyframe, PutRecord
from savegame.testing.postgres import Cluster, PostgresServer

COLUMNS = {
    "blob": "namespace thread digest body sum",
    "frame": "namespace thread seq id listed base run meta meta_sum note note_sum delta delta_sum",
    "keyframe": "namespace thread seq body sum",
    "record": "namespace thread kind name value sum",
    "thread": "namespace id tag agent head head_id last floor run count epoch owner version sum",
}
NOT_SUMMED = {"expires", "watched"}
"""What the server itself sets, when it answers: how long a lease runs, how long a thread is watched."""
OTHER = {
    "bigint": "{0} # 64",
    "integer": "{0} # 64",
    "boolean": "NOT {0}",
    "bytea": "set_byte({0}, length({0}) / 2, get_byte({0}, length({0}) / 2) # 1)",
    "text": "{0} || 'x'",
}
STATES = [{"n": number, "big": "y" * 9000} for number in range(3)]
THERE = (
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'savegame' ORDER BY ordinal_position"
)


@pytest.fixture
def damaged_url(url: str) -> str:
    """A vault with something of everything; its lease has run out."""
    with savegame.open(url, cache_bytes=0) as vault:
        thread = vault.thread("t", agent="somebody")
        for number, state in enumerate(STATES):
            thread.save(state, label=f"label {number}")
        key = ThreadKey("default", "t")
        chain = vault.store.chain(key, 1)
        vault.store.commit([PutRecord(key, "kind", "name", b"value"), PutKeyframe(key, 1, chain.keyframe or chain.deltas[0])])
        vault.store.lease(key, "owner", 1)
    return url


def test_the_columns_tested_here_are_all_there_are(damaged_url: str) -> None:
    there: dict[str, list[str]] = {}
    for table, column in PostgresServer(damaged_url).execute(THERE):
        if column not in NOT_SUMMED:
            there.setdefault(table, []).append(column)
    for beside in ("aside", "landed", "layout"):
        there.pop(beside)
    assert {table: " ".join(columns) for table, columns in there.items()} == COLUMNS


@pytest.mark.parametrize(("table", "column"), [(table, column) for table, names in COLUMNS.items() for column in names.split()])
def test_another_value_in_any_column_is_reported(table: str, column: str, damaged_url: str, shared_cluster: Cluster) -> None:
    server, database = PostgresServer(damaged_url), urlsplit(damaged_url).path[1:]
    kind = "SELECT data_type FROM information_schema.columns WHERE (table_schema, table_name, column_name) = (%s, %s, %s)"
    ((type_name,),) = server.execute(kind, "savegame", table, column)
    one = f"ctid = (SELECT min(ctid) FROM savegame.{table} WHERE {column} IS NOT NULL)"
    change = f"UPDATE savegame.{table} SET {column} = {OTHER[type_name].format(column)} WHERE {one} RETURNING 1"
    assert shared_cluster.execute(change, database=database) == [(1,)]
    problems = []
    for namespace in ("default", "defaultx"):
        with savegame.open(damaged_url, namespace=namespace, cache_bytes=0) as vault:
            problems += vault.verify().problems
    assert problems
    with savegame.open(damaged_url, cache_bytes=0) as vault:
        for step, state in enumerate(STATES, 1):
            with contextlib.suppress(SavegameError):
                assert vault.thread("t").load(step).state == state, "damaged bytes were returned"
        assert vault.repair().ok
        for entry in vault.thread("t").history(branches=True):
            assert entry.load().state in STATES


def test_a_note_that_is_gone_is_noticed_and_costs_only_itself(damaged_url: str, shared_cluster: Cluster) -> None:
    gone = "UPDATE savegame.frame SET note = NULL WHERE seq = 2 RETURNING 1"
    assert shared_cluster.execute(gone, database=urlsplit(damaged_url).path[1:]) == [(1,)]
    with savegame.open(damaged_url, cache_bytes=0) as vault:
        assert [problem.place for problem in vault.verify().problems] == ["label and tags of frame 2"]
        with pytest.raises(SavegameError, match="label and tags of frame 2"):
            list(vault.thread("t").history())
        assert vault.repair().ok
        assert [entry.load().state for entry in vault.thread("t").history(newest_first=False)] == STATES
