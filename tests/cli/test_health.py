"""Looking after a vault: verify, repair, compact, backup, as people and scripts use them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import run

import savegame
from savegame.errors import AlreadyExistsError, CorruptionError, InvalidInputError


@pytest.fixture
def damaged(on_disk: str) -> str:
    """A vault in which the newest checkpoint of one thread does not load."""
    with savegame.open(on_disk) as vault:
        thread = vault.thread("broken")
        for number in range(3):
            thread.save({"number": number})
        with vault.connection() as db:
            db.execute("UPDATE frame SET delta = zeroblob(length(delta)) WHERE key = (SELECT max(key) FROM frame)")
    return on_disk


def test_a_sound_vault_is_intact(store: str) -> None:
    done = run("verify", "-s", store)
    assert (done.code, done.out) == (0, "✓ intact  11 checkpoints of 6 threads\n")
    assert run("repair", "-s", store).out == done.out, "nothing to ask about"


def test_damage_is_found_then_set_aside_when_somebody_agrees(damaged: str) -> None:
    for command, following in ((["verify"], "repair --dry-run"), (["repair", "--dry-run"], "repair")):
        done = run(*command, "-s", damaged)
        assert done.code == CorruptionError.exit_code
        assert re.fullmatch(r"thread 'broken' \w{32}: delta of frame 3\n", done.err), "said once"
        assert done.out == f"✗ damaged  1 place; next: savegame {following} --store {damaged}\n"
    assert run("verify", "support-4", "-s", damaged).out == "✓ intact  4 checkpoints of 1 thread\n"
    assert run("verify", "broken", "-s", damaged).code == CorruptionError.exit_code
    assert (
        f"thread 'nobody' does not exist; list threads with savegame ls --store {damaged}"
        in run("verify", "nobody", "-s", damaged).err
    )
    done = run("show", "broken", "-s", damaged)
    assert (done.code, done.err.count("thread 'broken'")) == (CorruptionError.exit_code, 1)
    assert run("repair", "-s", damaged).code == InvalidInputError.exit_code
    assert run("repair", "--yes", "-s", damaged).out.splitlines()[-1].startswith("✓ intact")
    assert run("show", "broken", "-s", damaged, "--json").json["state"] == {"number": 1}
    assert "! set aside" in run("doctor", "-s", damaged).out


def test_a_damaged_thread_does_not_hide_the_others(on_disk: str) -> None:
    with savegame.open(on_disk) as vault, vault.connection() as db:
        db.execute("UPDATE frame SET meta = zeroblob(length(meta)) WHERE key = (SELECT max(key) FROM frame)")
    listed = run("ls", "-s", on_disk)
    assert listed.code == 0
    assert sum("✗ damaged" in line for line in listed.out.splitlines()) == 1
    assert len(listed.out.splitlines()) == 7
    assert listed.err == f"some threads are damaged; run savegame verify --store {on_disk}\n"


def test_a_damaged_thread_that_is_not_searched_is_told_once(damaged: str) -> None:
    done = run("search", "parcel", "-s", damaged)
    assert done.err == f"not searched because damaged: broken; run savegame verify --store {damaged}\n"
    assert "support-42" in done.out


def test_a_damaged_thread_is_not_counted_and_told(on_disk: str) -> None:
    with savegame.open(on_disk) as vault, vault.connection() as db:
        db.execute("UPDATE thread SET sum = sum + 1 WHERE id = 'report'")
    done = run("stats", "-s", on_disk)
    assert done.code == 0
    assert done.err.endswith(f"not counted because damaged: 1 thread; run savegame verify --store {on_disk}\n")
    assert json.loads(run("stats", "-s", on_disk, "--json").out)["damaged"] == 1


def test_the_search_index_is_no_part_of_the_size(on_disk: str) -> None:
    run("search", "parcel", "-s", on_disk)
    first, *others = run("stats", "-s", on_disk).out.splitlines()
    assert re.fullmatch(r".+  [\d.]+ kB, plus a search index of [\d.]+ kB", first)
    assert not any("search" in line for line in others)


def test_compacting_and_backing_up(on_disk: str, tmp_path: Path) -> None:
    assert " kB → " in run("compact", "-s", on_disk).out
    copy = tmp_path / "copy.db"
    assert run("backup", copy, "-s", on_disk).out.startswith(f"{copy}: ")
    assert run("backup", copy, "-s", on_disk).code == AlreadyExistsError.exit_code
    assert run("verify", "-s", copy).out == run("verify", "-s", on_disk).out
