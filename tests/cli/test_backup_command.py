"""Where `savegame backup` and `export` write: a path, or the address under which a backup opens; into no missing directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commands import run

import savegame


def test_nothing_is_written_where_no_directory_is(on_disk: str, tmp_path: Path) -> None:
    for command in ("export", "backup"):
        done = run(command, tmp_path / "nowhere" / "file", "-s", on_disk)
        assert done.code == savegame.NotFoundError.exit_code
        assert "create it first" in done.err


def test_a_backup_may_be_named_by_its_address(address_of: Callable[..., str], tmp_path: Path) -> None:
    for store, other in (("file", "sqlite"), ("sqlite", "file")):
        with savegame.open(address_of(store, store)) as vault:
            vault.thread("t").save(1)
        assert run("backup", f"{store}:{tmp_path / 'copy'}", "-s", address_of(store, store)).code == 0
        with savegame.open(f"{store}:{tmp_path / 'copy'}", read_only=True) as copy:
            assert copy.thread("t").state() == 1
        assert "savegame copy" in run("backup", f"{other}:{tmp_path / 'x'}", "-s", address_of(store, store)).err
        (tmp_path / "copy").rename(tmp_path / f"copy of {store}")
