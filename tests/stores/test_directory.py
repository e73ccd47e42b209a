"""The look at a directory after every write: what it notices, and that it holds no more descriptors than vaults are open."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import savegame
from savegame.stores.directory import BY_NAME_S, Directory
from tests.descriptors import needs_listing, open_under


@pytest.mark.parametrize("held", [True, False], ids=["by descriptor", "by name"])
@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "added").touch(),
        lambda path: (path / "there").unlink(),
        lambda path: (path / "there").rename(path / "renamed"),
        lambda path: path.rename(path.with_name("elsewhere")),
    ],
    ids=["added", "removed", "renamed", "moved"],
)
def test_what_happens_to_a_directory_changes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], held: bool
) -> None:
    if not held:
        monkeypatch.delattr(os, "O_PATH", raising=False)
    path = tmp_path / "looked at"
    path.mkdir()
    (path / "there").touch()
    directory = Directory(str(path))
    before = directory.changed_ns()
    assert directory.changed_ns() == before > 0
    time.sleep(0.02)  # a tick of the clock that file systems go by
    change(path)
    assert directory.changed_ns() != before


def test_one_that_another_took_the_place_of_is_noticed_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "above" / "looked at"
    path.mkdir(parents=True)
    directory = Directory(str(path))
    before = directory.changed_ns()
    time.sleep(0.02)
    (tmp_path / "above").rename(tmp_path / "elsewhere")
    time.sleep(BY_NAME_S)
    assert directory.changed_ns() == -1
    path.mkdir(parents=True)
    time.sleep(BY_NAME_S)
    assert directory.changed_ns() not in (-1, before)


@needs_listing
@pytest.mark.parametrize("end", [savegame.Vault.close, lambda _: None], ids=["closed", "let go"])
def test_no_descriptor_outlives_its_vault(tmp_path: Path, end: Callable[[savegame.Vault], None]) -> None:
    vault = savegame.open(tmp_path / "v.db")
    vault.thread("t").save({"n": 1})
    assert str(tmp_path) in open_under(tmp_path)
    end(vault)
    del vault
    gc.collect()
    assert open_under(tmp_path) == []


def test_too_many_open_files_are_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(os, "open", none_left)
        directory = Directory(str(tmp_path))
    before = directory.changed_ns()
    time.sleep(0.02)
    (tmp_path / "added").touch()
    assert directory.changed_ns() > before
