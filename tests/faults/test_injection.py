"""The n-th system call fails, for all n: what was acknowledged is there, every failure is an error of ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import savegame
from savegame.model import ThreadKey
from savegame.stores.file.disk import thread_directory
from savegame.testing.faults import run_with_fault, why_no_strace

REASON = why_no_strace()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

SCRIPT = """
import json, os, signal, sys
import savegame
from savegame.errors import SavegameError

path, die = sys.argv[1], sys.argv[2] == "die"

def tell(*values):
    os.write(1, json.dumps(values).encode() + b"\\n")

try:
    vault = savegame.open(path)
except SavegameError as error:
    tell("refused", type(error).__name__)
    sys.exit()
try:
    for number in range(8):
        name = f"save-{number:02}"
        try:
            vault.thread("t").update(append={"items": [str(number) * 9000]}, set={"number": number}, id=name)
            tell("saved", name)
        except SavegameError as error:
            tell("failed", name, type(error).__name__, getattr(error, "unknown", False))
            if die:
                os.kill(os.getpid(), signal.SIGKILL)
        if number == 5:
            try:
                vault.store.purge()
            except SavegameError as error:
                tell("error", type(error).__name__)
    vault.close()
except SavegameError as error:
    tell("error", type(error).__name__)
"""

CALLS = {"fdatasync": ["EIO", "ENOSPC"], "pwrite64": ["EIO", "ENOSPC"], "ftruncate": ["EIO"]}
MORE = {
    **CALLS,
    "pread64": ["EIO"],
    "fcntl": ["EIO", "ENOLCK"],
    "flock": ["ENOLCK"],
    "fsync": ["EIO"],
    "rename": ["EIO", "ENOSPC"],
    "mkdir": ["ENOSPC"],
    "openat": ["EIO", "EMFILE", "EACCES"],
    "mmap": ["ENOMEM"],
    "unlink": ["EIO"],
}


def files_of(scheme: str, path: Path) -> list[Path]:
    """What a save to the thread of the script may touch."""
    if scheme == "sqlite":
        return [path.with_name(f"{path.name}{suffix}") for suffix in ("", "-wal", "-shm", "-journal")]
    own = Path(thread_directory(str(path), ThreadKey("default", "t")))
    ids = own.parent / "ids"
    return [
        path,
        own.parent,
        own,
        own / "journal.jsonl",
        own / "journal.new",
        ids,
        *(ids / f"{number:x}" for number in range(16)),
    ]


def one_fault(scheme: str, directory: Path, call: str, error: str, when: int, then: str) -> int:
    """One run with one fault; how many calls failed (0: there were fewer calls)."""
    place = directory / f"{call}-{error}-{when}-{then}" / "v.db"
    path = f"{scheme}:{place}"
    with savegame.open(path) as vault:
        vault.thread("before").save("untouched")
    script = directory / "script.py"
    script.write_text(SCRIPT)
    lines, faults = run_with_fault(
        [str(script), path, then],
        call=call,
        error=error,
        when=str(when),
        files=[str(file) for file in files_of(scheme, place)],
        log=directory / "strace.log",
    )
    with savegame.open(path) as vault:
        assert vault.verify().ok
        assert vault.thread("before").state() == "untouched"
        for what, *more in lines:
            if what == "saved":
                found = vault.find(more[0])
                assert found is not None, f"{more[0]} was acknowledged and is gone"
                assert found.state["number"] == int(more[0][-2:])
            elif what == "failed":
                name, kind, unknown = more
                there = vault.find(name) is not None
                assert unknown or not there, f"{name} raised {kind} as if it had not happened, but it is there"
        again = vault.thread("t").update(append={"items": ["again"]}, id="afterwards")
        assert vault.find(again.id) is not None
        for what, *more in lines:  # an unknown outcome is resolved by saving the same again under the same id
            if what == "failed" and more[2] and vault.find(more[0]) is None:
                vault.thread("t").update(append={"items": []}, set={"number": 0}, id=more[0])
        assert vault.verify().ok
    return faults


@pytest.mark.parametrize("then", ["carry on", "die"])
@pytest.mark.parametrize(
    ("call", "error", "when"),
    [
        ("fdatasync", "EIO", 2),
        ("fdatasync", "EIO", 4),
        ("pwrite64", "EIO", 3),
        ("pwrite64", "ENOSPC", 6),
        ("ftruncate", "EIO", 1),
        ("fcntl", "EIO", 1),  # the file store: when something is read after it was written
    ],
)
def test_a_call_that_fails(scheme: str, call: str, error: str, when: int, then: str, tmp_path: Path) -> None:
    assert one_fault(scheme, tmp_path, call, error, when, then) == 1


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("then", ["carry on", "die"])
@pytest.mark.parametrize(("call", "error"), [(call, error) for call, errors in MORE.items() for error in errors])
def test_the_nth_call_fails_for_all_n(scheme: str, call: str, error: str, then: str, tmp_path: Path) -> None:
    figures = {"store": scheme, "call": call, "error": error, "then": then, "runs": 0, "faults": 0}
    for when in range(1, 15):
        figures["runs"] += 1  # type: ignore[operator]
        figures["faults"] += one_fault(scheme, tmp_path, call, error, when, then)  # type: ignore[operator]
    print(json.dumps(figures), file=sys.stderr)
