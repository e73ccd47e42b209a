"""Only SQLite opens a live database file: one open() and close() in our process would drop SQLite's locks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import savegame
from savegame.testing.faults import PATIENCE_S

WHOLE_API = """
import datetime as dt, os, sys, threading
path, copy, provoke = sys.argv[1], sys.argv[2], sys.argv[3] == "provoke"
live = {os.path.realpath(file) + suffix for file in (path, copy) for suffix in ("", "-wal", "-shm", "-journal")}
opened, live_now = [], set()

def hook(event, arguments):
    if event in ("open", "shutil.copyfile", "os.truncate", "os.rename", "os.remove", "os.chmod"):
        for name in arguments[:2]:
            if isinstance(name, (str, bytes, os.PathLike)) and os.path.realpath(os.fsdecode(name)) in live_now:
                opened.append((event, os.fsdecode(name)))

sys.addaudithook(hook)
import savegame
from savegame.errors import SavegameError

vault = savegame.open(path)
live_now |= live
with vault:
    thread = vault.thread("t", agent="helper")
    first = thread.save({"items": [], "large": "x" * 20_000}, label="first", tags=["a"], metadata={"k": 1})
    for number in range(300):
        thread.update(append={"items": ["text " * 40]}, set={"number": number})
    thread.modify(lambda state: {**state, "modified": True})
    assert thread.latest() and thread.load("first") and thread.state("head~3")
    assert thread.load(at=dt.datetime.now(dt.timezone.utc))
    list(thread.history(branches=True)); list(thread.history(limit=5, tag="a", newest_first=False))
    thread.diff("head~2", "head"); thread.label("head", "named"); thread.tag("head", "b"); thread.untag("head", "b")
    fork = thread.fork("fork", at="head~5"); fork.save(1); vault.diff(first.id, fork.head)
    thread.rewind("head~4"); thread.save({"other": "branch"}); thread.rewind("head", discard=True)
    list(vault.threads(agent="helper", tag="a", status="in_progress")); vault.find(first.id); vault.stats()
    thread.prune(keep=20); vault.prune(keep=15, older_than=dt.timedelta(days=1))
    with vault.connection() as db:
        db.execute("CREATE TABLE own (x)")
    workers = [threading.Thread(target=lambda n=n: vault.thread(f"w{n}").save(n)) for n in range(8)]
    [worker.start() for worker in workers]; [worker.join() for worker in workers]
    vault.compact(); assert vault.verify().ok; assert vault.repair().ok
    vault.backup(path + ".backup")
    with savegame.open(copy) as other, savegame.open(path, read_only=True) as reader:
        more = savegame.open(path, namespace="n"); vault.copy_to(other); vault.copy_to(other); assert other.verify().ok
        reader.verify(); more.thread("t").save(1); more.close()
    for wrong in (lambda: vault.backup(path), lambda: vault.backup(path + ".backup"), lambda: savegame.open(path + "/x")):
        try:
            wrong()
            raise SystemExit("should have been refused")
        except SavegameError:
            pass
    pid = os.fork()
    if pid == 0:
        vault.thread("child").save(1)
        os._exit(bool(opened))
    assert os.waitpid(pid, 0)[1] == 0, "the child opened a live file"
    fork.delete()
    if provoke:
        open(path, "rb").close()
print(len(opened), opened[:5])
"""


def run(tmp_path: Path, how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WHOLE_API, str(tmp_path / "v.db"), str(tmp_path / "copy.db"), how],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_no_code_of_ours_opens_a_live_database_file(tmp_path: Path) -> None:
    assert run(tmp_path, "as usual").startswith("0 ")


def test_the_audit_sees_an_open(tmp_path: Path) -> None:
    """The negative control."""
    assert run(tmp_path, "provoke").startswith("1 ")


OTHER = "import sys, savegame; v = savegame.open(sys.argv[1]); v.thread('other').save(1); v.close()"


@pytest.mark.parametrize("work", ["nothing", "stats", "verify", "backup", "open again", "compact", "read only"])
def test_another_process_that_comes_and_goes_takes_nothing_away(work: str, tmp_path: Path) -> None:
    """If anything here had dropped SQLite's locks, the other process would think itself alone and unlink the -wal."""
    path = tmp_path / "v.db"
    with savegame.open(path) as vault:
        saved = [vault.thread("t").save(0).id]
        if work == "stats":
            vault.stats()
        elif work == "verify":
            vault.verify()
        elif work == "backup":
            vault.backup(str(tmp_path / "copy.db"))
        elif work == "open again":
            with savegame.open(path) as again:
                again.thread("again").save(1)
        elif work == "compact":
            vault.compact()
        elif work == "read only":
            with savegame.open(path, read_only=True) as again:
                again.thread("t").state()
        before = (tmp_path / "v.db-wal").stat().st_ino
        for number in range(1, 4):
            subprocess.run([sys.executable, "-c", OTHER, str(path)], check=True, timeout=PATIENCE_S)
            saved.append(vault.thread("t").save(number, force=True).id)
        assert (tmp_path / "v.db-wal").stat().st_ino == before
        seen = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys, savegame; v = savegame.open(sys.argv[1]); print(v.thread('t').state())",
                str(path),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        assert seen.stdout.strip() == "3"
    with savegame.open(path) as vault:
        assert [entry.id for entry in vault.thread("t").history(newest_first=False)] == saved


def test_a_lock_that_was_cancelled_is_noticed(tmp_path: Path) -> None:
    """Code in our process opens and closes the file, another process comes and goes: the next save must not be lost."""
    path = tmp_path / "v.db"
    vault = savegame.open(path)
    vault.thread("t").save({"items": []})
    acknowledged, failed = [], 0
    for suffix in ("", "-shm", "-wal"):  # what no code of ours ever does
        with Path(f"{path}{suffix}").open("rb") as handle:
            handle.read(100)
    for number in range(5):
        subprocess.run([sys.executable, "-c", OTHER, str(path)], check=False, timeout=PATIENCE_S, capture_output=True)
        try:
            vault.thread("t").update(append={"items": [number]})
            acknowledged.append(number)
        except savegame.SavegameError:
            failed += 1
    vault.close()
    with savegame.open(path) as again:
        assert again.verify().ok
        items = again.thread("t").state()["items"]
        assert set(acknowledged) <= set(items), f"acknowledged {acknowledged}, there {items}, errors {failed}"
    assert failed
