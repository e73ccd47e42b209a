"""Faults on purpose: killed child processes, disks that fill up or lose power, flipped bits.

`Child` runs a function in a process that reports line by line what it did. `save_for_ever` is a workload for such a child;
`Oracle` remembers what it acknowledged and compares that with the vault afterwards. `LoopDisk`, `tiny_disk` and
`run_with_fault` need root or strace; `why_no_disks()` and `why_no_strace()` return why they do not work here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import multiprocessing
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import savegame

PROCESSES: Final = multiprocessing.get_context("forkserver")
PRELOADED: Final = (
    "pytest",
    "savegame.runs",
    "savegame.stores.file",
    "savegame.stores.postgres",
    "savegame.stores.sqlite",
    __name__,
)
"""What children have imported before they are forked; what is not installed is passed over."""

PATIENCE_S: Final = 120.0
"""Timeout after which something counts as stuck; tests do not normally wait for it."""

Line = list[Any]

# -- children --------------------------------------------------------------------------------------


class Mouth:
    """The child's end of the pipe: `say` to the parent, `hear` its answers. Thread-safe."""

    def __init__(self, to_parent: int, from_parent: int) -> None:
        self._to_parent = to_parent
        self._from_parent = from_parent

    def say(self, *values: Any) -> None:
        """Send one line; shorter than a pipe's atomic size, so that a killed child never leaves half of one."""
        data = json.dumps(values).encode() + b"\n"
        assert len(data) <= select.PIPE_BUF
        os.write(self._to_parent, data)

    def hear(self) -> None:
        """Wait until the parent says go."""
        if not os.read(self._from_parent, 1):
            os._exit(0)  # the parent is gone


class Child:
    """A process that runs `target(mouth, *args)`. Leaving the context kills it if it still runs.

    `target` must be importable: a module-level function.
    """

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        PROCESSES.set_forkserver_preload([*PRELOADED])
        self._lines, sending = PROCESSES.Pipe(duplex=False)
        receiving, self._answers = PROCESSES.Pipe(duplex=False)
        self._buffer = b""
        self._ended = False
        self._process = PROCESSES.Process(target=_child, args=(target, sending, receiving, args), daemon=True)
        self._process.start()
        sending.close()
        receiving.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._lines.close()
        self._answers.close()
        self._process.close()

    def go(self) -> None:
        """Let a child continue that waits in `hear`."""
        os.write(self._answers.fileno(), b"!")

    def kill(self) -> None:
        """Send SIGKILL and wait for the end. Earlier lines can still be read."""
        self._process.kill()
        self._process.join(PATIENCE_S)
        assert not self._process.is_alive()

    def lines(self) -> list[Line]:
        """The lines since the last call, without waiting."""
        while self._more(0):
            pass
        return self._take()

    def next(self) -> Line:
        """Wait for the next line."""
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._buffer:
            if not self._more(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"the child said nothing more (exit code {self._process.exitcode})")
        line, self._buffer = self._buffer.split(b"\n", 1)
        return _check_line(json.loads(line))

    def rest(self) -> list[Line]:
        """All lines until the child ends, which must succeed."""
        deadline = time.monotonic() + PATIENCE_S
        while self._more(max(0.0, deadline - time.monotonic())):
            pass
        lines = self._take()
        self._process.join(PATIENCE_S)
        assert self._process.exitcode == 0, f"the child ended with {self._process.exitcode}"
        return lines

    def _more(self, timeout: float) -> bool:
        if self._ended or not select.select([self._lines], [], [], timeout)[0]:
            return False
        data = os.read(self._lines.fileno(), 1 << 16)
        self._ended = not data
        self._buffer += data
        return bool(data)

    def _take(self) -> list[Line]:
        *lines, self._buffer = self._buffer.split(b"\n")
        return [_check_line(json.loads(line)) for line in lines]


def _check_line(line: Line) -> Line:
    assert line[:1] != ["error"], f"the child failed: {line[1]}"
    return line


def _child(target: Callable[..., None], sending: Any, receiving: Any, args: Sequence[Any]) -> None:
    mouth = Mouth(sending.fileno(), receiving.fileno())
    try:
        target(mouth, *args)
    except BaseException:  # noqa: BLE001 - the parent fails the test
        mouth.say("error", traceback.format_exc()[-3000:])
        raise SystemExit(1) from None


def together(target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[list[Line]]:
    """Run a function in several children that start at the same moment (each says "ready", then hears); returns their lines."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(target, *args)) for args in arguments]
        for child in children:
            assert child.next() == ["ready"]
        for child in children:
            child.go()
        return [child.rest() for child in children]


# -- a workload, and its oracle --------------------------------------------------------------------


def fingerprint(value: Any) -> str:
    """A short checksum of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def a_state(count: int, items: list[str]) -> dict[str, Any]:
    """A state that can be checked: a count, items, and the fingerprint of both."""
    return {"count": count, "items": items, "sum": fingerprint([count, items])}


def is_whole(state: Any) -> bool:
    """Whether a state is an undamaged result of `a_state`."""
    return isinstance(state, dict) and state.get("sum") == fingerprint([state.get("count"), state.get("items")])


def save_for_ever(mouth: Mouth, path: str, threads: int = 3, mode: str = "power", only: str = "") -> None:
    """Save to several threads until killed, and report each save: appends, whole states, labels, prunes.

    `mode` is a durability, "off" (no flush) or "liar" (reports before it saves): tests must detect the latter two. `only` is
    an operation to repeat meanwhile: compact, backup, prune or delete.
    """
    vault = savegame.open(path, durability="process" if mode == "process" else "power")
    if mode == "off":
        _stop_flushing(vault.store)
    workers = [
        threading.Thread(target=_save_to, args=(mouth, vault, f"thread {number}", mode == "liar")) for number in range(threads)
    ]
    mouth.say("open")
    for worker in workers:
        worker.start()
    if only:
        _over_and_over(mouth, vault, only)
    for worker in workers:
        worker.join()


def _stop_flushing(store: Any) -> None:
    if store.scheme == "file":
        store._disk._flush = False
    else:
        store._connections._synchronous = 0
        store._connections.drop()


def _save_to(mouth: Mouth, vault: savegame.Vault, name: str, lie: bool) -> None:  # noqa: FBT001 - a private helper
    try:
        chance = random.Random()
        thread = vault.thread(name)
        state = thread.state() or a_state(0, [])
        while True:
            _one_save(mouth, thread, state, chance, lie)
            if chance.random() < 0.04:
                everything = chance.random() < 0.5
                mouth.say("pruning", name, 10, everything)
                thread.prune(keep=10, include_labelled=everything)
                mouth.say("pruned", name)
    except BaseException:  # noqa: BLE001 - the parent fails the test
        mouth.say("error", traceback.format_exc()[-3000:])
        os._exit(1)


def _one_save(mouth: Mouth, thread: savegame.Thread, state: dict[str, Any], chance: random.Random, lie: bool) -> None:  # noqa: FBT001
    number = state["count"] + 1
    checkpoint_id = f"{chance.getrandbits(128):032x}"
    label = f"at {number}" if chance.random() < 0.1 else None
    item = chance.randbytes(chance.choice((20, 300, 900, 900, 5000))).hex()
    append = chance.random() < 0.7
    items = [*state["items"], item] if append else [item, *state["items"][-3:]]
    state.update(a_state(number, items))
    line = ("saved", thread.id, checkpoint_id, fingerprint(state), label)
    if lie:
        mouth.say(*line)
    if append:
        thread.update(
            append={"items": [item]}, set={"count": number, "sum": state["sum"]}, label=label, id=checkpoint_id, tags=["grown"]
        )
    else:
        thread.save(state, label=label, id=checkpoint_id, force=True)
    if not lie:
        mouth.say(*line)


def _over_and_over(mouth: Mouth, vault: savegame.Vault, what: str) -> None:
    for number in range(1_000_000):
        doomed = vault.thread(f"doomed {os.getpid()} {number}")
        if what in ("delete", "prune"):
            for count in range(8):
                doomed.save(a_state(count, ["x" * 9000 * (count % 2), f"{count}"]))
        mouth.say("begins", number)
        if what == "compact":
            vault.compact()
        elif what == "backup":
            vault.backup(f"{vault.store.path}.backup-{os.getpid()}-{number}")
        elif what == "prune":
            doomed.prune(keep=2)
        else:
            doomed.delete()
        mouth.say("ended", number)


@dataclass
class Oracle:
    """What was acknowledged, and whether it exists. Only lines from before a power cut count."""

    known: dict[str, dict[str, str]] = field(default_factory=dict)
    """The checkpoints of each thread in order, with the fingerprints of their states."""
    acked: int = 0
    surprises: int = 0
    """Saves that exist without an acknowledgement: the child was killed between the two."""
    lost: list[str] = field(default_factory=list)
    labelled: set[str] = field(default_factory=set)
    fresh: set[str] = field(default_factory=set)
    may_go: set[str] = field(default_factory=set)

    def hear(self, lines: list[Line]) -> None:
        """Record the lines of a child."""
        for what, *more in lines:
            if what == "saved":
                thread, checkpoint_id, total, label = more
                self.known.setdefault(thread, {})[checkpoint_id] = total
                self.acked += 1
                self.fresh.add(checkpoint_id)
                if label is not None:
                    self.labelled.add(checkpoint_id)
            elif what == "pruning":
                thread, keep, everything = more
                ids = list(self.known.get(thread, {}))
                self.may_go.update(one for one in ids[: max(0, len(ids) - keep)] if everything or one not in self.labelled)

    def check(self, vault: savegame.Vault, *, whole: bool = True, surprises: int = 1) -> None:
        """Compare with the vault, and take its contents as known. Fails for torn or wrong states.

        Without `whole`, checks only states that are new since the last check, and a sample of the others.
        """
        for thread_id in {*self.known, *(info.id for info in vault.threads(limit=None))}:
            self._check_thread(vault, thread_id, surprises, whole=whole)
        self.may_go.clear()
        self.fresh.clear()
        report = vault.verify() if whole else None
        assert report is None or report.ok, report.problems

    def _check_thread(self, vault: savegame.Vault, thread_id: str, surprises: int, *, whole: bool) -> None:
        known = self.known.get(thread_id, {})
        there: dict[str, str] = {}
        for entry in vault.thread(thread_id).history(newest_first=False, branches=True):
            if not whole and entry.id in known and entry.id not in self.fresh and random.random() > 0.05:
                there[entry.id] = known[entry.id]
                continue
            loaded = entry.load()
            assert is_whole(loaded.state), f"a torn save is visible: {loaded!r}"
            assert loaded.label in (None, f"at {loaded.state['count']}")
            there[loaded.id] = fingerprint(loaded.state)
        for checkpoint_id, total in known.items():
            if checkpoint_id in there:
                assert there[checkpoint_id] == total, f"{checkpoint_id} came back with another state"
            elif checkpoint_id not in self.may_go:
                self.lost.append(checkpoint_id)
        new = [one for one in there if one not in known]
        if not thread_id.startswith("doomed"):
            assert len(new) <= surprises, f"{len(new)} saves of {thread_id!r} that were not requested"
        self.surprises += len(new)
        self.known[thread_id] = there


# -- bits ------------------------------------------------------------------------------------------


def flip_bit(path: Path, bit: int) -> None:
    """Flip one bit of a file that is not open."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes((byte ^ 1 << bit % 8,)))


def flipped(value: Any, chance: random.Random) -> Any:
    """The value with one bit changed; a text with one character changed."""
    if isinstance(value, bytes):
        at = chance.randrange(len(value))
        return value[:at] + bytes((value[at] ^ 1 << chance.randrange(8),)) + value[at + 1 :]
    if isinstance(value, str):
        at = chance.randrange(len(value))
        return value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
    number: int = value ^ 1 << chance.randrange(60)
    return number


# -- disks -----------------------------------------------------------------------------------------


def why_no_disks(kind: str = "ext4") -> str | None:
    """The reason why file systems cannot be mounted here; None if they can."""
    if sys.platform != "linux":
        return "mounting needs Linux"
    if os.geteuid():
        return "mounting needs root"
    missing = [name for name in ("mount", "umount", f"mkfs.{kind}") if _tool(name) is None]
    return f"{', '.join(missing)} not installed" if missing else None


@contextlib.contextmanager
def tiny_disk(directory: Path, kilobytes: int, *, read_only: bool = False) -> Iterator[Path]:
    """A small file system in memory, mounted on a directory. Raises OSError if that is not permitted."""
    directory.mkdir(exist_ok=True)
    _command("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "tmpfs", str(directory))
    try:
        if read_only:
            remount(directory, "ro")
        yield directory
    finally:
        _unmount(directory)


def remount(directory: Path, options: str) -> None:
    """Change the options of a mounted file system, for example its size."""
    _command("mount", "-o", f"remount,{options}", str(directory))


class LoopDisk:
    """A mounted file system in a file; `cut` is a power cut that loses unflushed data. Raises OSError if not permitted."""

    SHUTDOWN: Final = 0x8004587D
    NO_LOG_FLUSH: Final = 2

    def __init__(self, directory: Path, megabytes: int = 96, *, kind: str = "ext4") -> None:
        self.image = directory / "disk.img"
        self.mounted_on = directory / "disk"
        self.mounted_on.mkdir()
        with self.image.open("wb") as image:
            image.truncate(megabytes << 20)
        _command(f"mkfs.{kind}", "-q", "-f" if kind == "xfs" else "-F", str(self.image))
        self._mount()

    def __enter__(self) -> LoopDisk:
        return self

    def __exit__(self, *_: object) -> None:
        if os.path.ismount(self.mounted_on):
            _unmount(self.mounted_on)
        self.image.unlink()

    def cut(self) -> None:
        """Cut the power. Processes that use the disk get errors until `restore`."""
        handle = os.open(self.mounted_on, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(handle, self.SHUTDOWN, struct.pack("I", self.NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def restore(self) -> None:
        """Mount it again, as after a reboot. No file on it may be open."""
        _unmount(self.mounted_on)
        self._mount()

    def _mount(self) -> None:
        _command("mount", "-o", "loop", str(self.image), str(self.mounted_on))


def _unmount(directory: Path) -> None:
    for _ in range(100):
        try:
            _command("umount", str(directory))
            return
        except OSError:
            time.sleep(0.05)  # a process that was just killed may still hold it
    _command("umount", "--lazy", str(directory))


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _command(name: str, *arguments: str) -> None:
    tool = _tool(name)
    if tool is None:
        raise OSError(f"{name} is not installed")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)  # noqa: S603 - fixed tools
    if done.returncode:
        raise OSError(f"{name} {' '.join(arguments)}: {done.stderr.strip()}")


# -- failing system calls --------------------------------------------------------------------------


def why_no_strace() -> str | None:
    """The reason why system calls cannot be made to fail here; None if they can."""
    tool = _tool("strace")
    if tool is None:
        return "strace is not installed"
    done = subprocess.run([tool, "-qq", "-o", os.devnull, "true"], capture_output=True, text=True, timeout=PATIENCE_S)  # noqa: S603
    return f"strace is not permitted: {done.stderr.strip()}" if done.returncode else None


def run_with_fault(
    script: list[str], *, call: str, error: str, when: str, files: list[str], log: Path
) -> tuple[list[Line], int]:
    """Run a Python script whose n-th `call` on some files fails; returns its JSON lines, and how many calls failed."""
    tool = _tool("strace")
    assert tool is not None
    on = [part for file in files for part in ("-P", file)]
    fault = [f"--trace={call}", f"--inject={call}:error={error}:when={when}"]
    done = subprocess.run(  # noqa: S603 - fixed tools
        [tool, "-f", "-qq", "-o", str(log), *on, *fault, sys.executable, *script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if done.returncode not in (0, -signal.SIGKILL, 128 + signal.SIGKILL):
        raise AssertionError(f"the script failed: {done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()], log.read_text().count("(INJECTED)")
