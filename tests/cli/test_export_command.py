"""`savegame export` and `savegame import file` as a user runs them: real processes, real exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import run

import savegame
from savegame.cli.printing import plural
from savegame.present.text import size_text


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory with a vault of four threads in old.db."""
    with savegame.open(tmp_path / "old.db") as vault:
        for name in "abc":
            vault.thread(name, agent="helper" if name == "a" else None).save({"name": name})
        vault.thread("a").save({"name": "again"})
    with savegame.open(tmp_path / "old.db", namespace="other") as vault:
        vault.thread("d").save({"name": "d"})
    return tmp_path


def test_out_and_in_again(old: Path) -> None:
    before = (old / "old.db").read_bytes()
    done = run("export", "all.jsonl", "-s", "old.db", cwd=old)
    shown = size_text((old / "all.jsonl").stat().st_size)
    assert (done.code, done.out, done.err) == (0, f"all.jsonl: 4 checkpoints exported, {shown}\n", "")
    assert (old / "old.db").read_bytes() == before
    done = run("import", "file", "all.jsonl", "--store", "new.db", "--namespace", "there", cwd=old)
    assert (done.code, done.out) == (0, "all.jsonl: 4 checkpoints imported\n")
    done = run("import", "file", "all.jsonl", "-s", "new.db", "--namespace", "there", cwd=old)
    assert (done.code, done.out) == (0, "all.jsonl: 0 checkpoints imported, all were imported before\n")
    with savegame.open(old / "new.db", namespace="there") as vault:
        assert [(info.id, info.checkpoints) for info in vault.threads()] == [("a", 2), ("b", 1), ("c", 1)]
        assert vault.thread("a").state() == {"name": "again"}
        assert vault.verify().ok


def test_some_threads_only(old: Path) -> None:
    for options, count in (
        (["--thread", "a", "--thread", "b"], 3),
        (["--agent", "helper"], 2),
        (["--namespace", "other"], 1),
    ):
        done = run("export", f"{count}.jsonl", "-s", "old.db", *options, cwd=old)
        assert done.out.startswith(f"{count}.jsonl: {plural(count, 'checkpoint')} exported"), done.err


def test_errors_are_one_line_and_their_exit_code(old: Path) -> None:
    (old / "mine").write_text("mine")
    assert run("export", "all.jsonl", "-s", "old.db", cwd=old).code == 0
    lines = (old / "all.jsonl").read_bytes().splitlines(keepends=True)
    (old / "cut.jsonl").write_bytes(b"".join(lines[:-1]))
    with savegame.open(old / "other.db") as vault:
        vault.thread("a").save("its own way")
    for arguments, error in (
        (("export", "e.jsonl", "-s", "missing.db"), savegame.StoreNotFound),
        (("export", "mine", "-s", "old.db"), savegame.AlreadyExistsError),
        (("export", "e.jsonl", "-s", "old.db", "--thread", "missing"), savegame.ThreadNotFound),
        (("export", "e.jsonl", "-s", "old.db", "--thread", "a", "--agent", "helper"), savegame.InvalidInputError),
        (("import", "file", "missing.jsonl", "-s", "new.db"), savegame.StoreNotFound),
        (("import", "file", "mine", "-s", "new.db"), savegame.UnsupportedError),
        (("import", "file", "cut.jsonl", "-s", "old.db"), savegame.CorruptionError),
        (("import", "file", "all.jsonl", "-s", "other.db"), savegame.ConflictError),
    ):
        done = run(*arguments, cwd=old)
        assert done.code == error.exit_code, done.out + done.err
        assert done.err.startswith("savegame: ")
        assert done.err.count("\n") == 1
    assert (old / "mine").read_text() == "mine"
    assert not {"missing.db", "new.db", "e.jsonl"} & {path.name for path in old.iterdir()}
