"""Looking after a vault: verify, repair, compact, backup, as people and scripts use them."""

from __future__ import annotations

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
    for command in (["verify"], ["repair", "--dry-run"]):
        done = run(*command, "-s", damaged)
        assert done.code == CorruptionError.exit_code
        assert "thread 'broken'" in done.err
        assert "✗ damaged  1 place; next: savegame repair" in done.out
    assert run("show", "broken", "-s", damaged).code == CorruptionError.exit_code
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


def test_compacting_and_backing_up(on_disk: str, tmp_path: Path) -> None:
    assert " kB → " in run("compact", "-s", on_disk).out
    copy = tmp_path / "copy.db"
    assert run("backup", copy, "-s", on_disk).out.startswith(f"{copy}: ")
    assert run("backup", copy, "-s", on_disk).code == AlreadyExistsError.exit_code
    assert run("verify", "-s", copy).out == run("verify", "-s", on_disk).out
