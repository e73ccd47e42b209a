"""Hostile ids: each is its own thread, and nothing is written outside the store's directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import savegame
from savegame.testing.hostile import HOSTILE_IDS

MORE = (
    '..', '../v.db', 'v.db-wal', 'v.db-journal', '~/x', '$HOME', '`id`', '$(id)', 'a;b', 'a|b', '*',
    '?', '[x]', 'file:x', 'C:\\x', '\\\\host\\share', 'a/../../b', './a', 'a//b', '%00', '%2e%2e%2f',
    '\u202etxt', '\u2028', '\x7f', '\x01', '\t', 'null', 'None', 'True', '0', '-1', '1e9',
    'head~1', 'latest', 'SELECT 1', '" OR 1=1 --', "x' OR 'x'='x", 'UPPER', 'upper', 'ﬁ', 'fi', 'ß',
    'ss',
)  # fmt: skip


def names(directory: Path) -> set[str]:
    return {os.path.join(base, name) for base, folders, files in os.walk(directory) for name in (*folders, *files)}


@pytest.mark.requirement("A40", "A77", "D34", "E07", "Z01")
def test_nothing_is_written_outside_the_stores_directory(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "a" / "b"
    work = tmp_path / "elsewhere"
    for directory in (home, work):
        directory.mkdir(parents=True)
    monkeypatch.chdir(work)
    before = names(tmp_path)
    outside = {path: os.stat(path).st_mtime_ns for path in ("/etc", "/", os.path.expanduser("~"))}
    ids = list(dict.fromkeys((*HOSTILE_IDS, *MORE)))
    with savegame.open(f"{scheme}:{home}/v.db") as vault:
        for number, name in enumerate(ids):
            vault.thread(name, agent=name).save(
                {"name": name, "number": number}, label=name, tags=[name], metadata={name: name}
            )
        for number, name in enumerate(ids):
            thread = vault.thread(name)
            assert thread.state() == {"name": name, "number": number}
            if not name.startswith("head"):
                assert thread.load(name).state["number"] == number  # by its label, whatever that looks like
            assert [entry.tags for entry in thread.history(tag=name)] == [(name,)]
            assert [info.id for info in vault.threads(agent=name)] == [name]
            thread.fork(f"{name[:400]} fork {number}")
        assert [info.id for info in vault.threads(limit=None) if " fork " not in info.id] == sorted(ids)
        assert vault.verify().ok
        vault.compact()
        vault.backup(str(home / "copy.db"))
        for name in ids[::2]:
            assert vault.thread(name).delete()
        for number, name in enumerate(ids):
            assert (vault.thread(name).state() is None) == (number % 2 == 0)
        assert vault.verify().ok
    with savegame.open(f"{scheme}:{home}/w.db", namespace="../../x") as vault:
        vault.thread("../../y").save(1)
    ours = tuple(str(home / name) for name in ("v.db", "copy.db", "w.db"))
    made = names(tmp_path) - before
    assert made == set(ours) if scheme == "sqlite" else all(name.startswith(ours) for name in made)
    assert {path: os.stat(path).st_mtime_ns for path in outside} == outside
