"""Who works on a thread: taking the lease, renewing it, noticing its loss. Touches store, model, errors.

Expiry decides who may try, the epoch decides whose writes count: the next write of a holder that was slow or stopped is
refused. The name of an owner contains machine, boot and process, so that the lease of a dead process is taken over at once;
if that cannot be determined, after it expired. A wrong guess costs nothing but a lease.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import threading
from pathlib import Path
from typing import Final

from savegame.errors import Busy, Fenced, SavegameError
from savegame.model import Lease, ThreadKey
from savegame.store import Store

logger = logging.getLogger("savegame")

BEATS: Final = 3
"""How often a lease is renewed within its time."""


def new_owner() -> str:
    """A unique name for the owner of a lease: machine, boot, process and a random part."""
    return "/".join((platform.node() or "?", _boot(), str(os.getpid()), _started(os.getpid()), secrets.token_hex(6)))


def is_gone(owner: str) -> bool:
    """Whether the process of an owner has certainly ended; only known for processes of this boot of this machine."""
    parts = owner.split("/")
    if len(parts) != 5 or not parts[2].isdecimal() or "?" in parts:
        return False
    node, boot, pid, started, _ = parts
    if (node, boot) != (platform.node(), _boot()):
        return False
    return _started(int(pid)) not in (started, "?")


def _boot() -> str:
    """This boot and its namespace of process ids: containers on one machine have their own."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + "." + str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "?"


def _started(pid: int) -> str:
    """The start of a process in ticks since the boot; empty if it does not exist, "?" if the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "?" if _exists(pid) or not Path("/proc/self/stat").exists() else ""
    except OSError:
        return "?"
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
    """Whether a process exists, even where /proc hides those of other users."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


class Hold:
    """A held lease, renewed in the background until `release`. `lost` is set once it is lost or released."""

    def __init__(self, store: Store, key: ThreadKey, ttl_us: int) -> None:
        self._store, self._key, self._ttl_us = store, key, ttl_us
        self.lost = threading.Event()
        self._stopping = threading.Event()
        self.taken_from: Lease | None = None
        self.left_running = False
        """Whether abandoned work is still running: then the lease is not released but expires."""
        self.lease = self._take()
        self._beat = threading.Thread(target=self._keep, name=f"lease on {key.id}", daemon=True)
        self._beat.start()

    @property
    def epoch(self) -> int:
        """The epoch that every write under this lease carries."""
        return self.lease.epoch

    @property
    def under(self) -> tuple[int, int]:
        """The epoch, and the microseconds by which a write renews the lease."""
        return self.epoch, self._ttl_us

    @property
    def over(self) -> bool:
        """Whether it was released."""
        return self._stopping.is_set()

    def _take(self) -> Lease:
        row = self._store.thread(self._key)
        former = None if row is None else row.lease
        owner = new_owner()
        try:
            lease = self._store.lease(self._key, owner, self._ttl_us)
        except Busy:
            if former is None or not is_gone(former.owner):
                raise
            lease = self._store.lease(self._key, owner, self._ttl_us, instead_of=former.epoch)
        self.taken_from = former if former is not None and former.expires else None
        return lease

    def _keep(self) -> None:
        while not self._stopping.wait(self._ttl_us / 1_000_000 / BEATS):
            try:
                self._store.renew(self._key, self.epoch, self._ttl_us)
            except Fenced:
                self.lost.set()
                return
            except Exception as error:  # noqa: BLE001 - the next renewal, or the next write, will show it
                logger.warning("the lease on thread %r could not be renewed: %s", self._key.id, error)

    def release(self, *, stale: bool = False) -> None:
        """Release the lease if it is still ours, or with `stale` expire it. A second call does nothing.

        An unreachable store is only logged: the lease expires by itself, and must not hide the error that ended the run.
        """
        if self._stopping.is_set():
            return
        self._stop()
        if self.left_running:
            return
        try:
            self._store.renew(self._key, self.epoch, 1 if stale else 0)
        except Fenced:  # another holder has it: nothing to release
            return
        except SavegameError as error:
            logger.warning("the lease on thread %r could not be released and will expire: %s", self._key.id, error)

    def _stop(self) -> None:
        self._stopping.set()
        self.lost.set()
        self._beat.join()
