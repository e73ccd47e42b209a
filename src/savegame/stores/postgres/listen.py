"""Hearing of writes: NOTIFY as a hint, so that a watcher of a thread looks again at once instead of later.

Only threads that are watched are notified of, which their rows say for a while. A hint may be missed, for example behind
PgBouncer: a watcher waits no longer than it wanted to, and then looks. Touches pool.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Final

import psycopg

from savegame.errors import SavegameError
from savegame.model import ThreadKey
from savegame.stores.postgres.link import Link, Patience
from savegame.stores.postgres.pool import Pool, abandon

WATCHED_S: Final = 60.0
"""For how long writes to a thread are notified after a watch began, which is renewed after half of it."""


class Listener:
    """One connection that listens for all who wait in this process: one of them reads from it and wakes the others."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._link: Link | None = None
        self.begin_life()

    def begin_life(self) -> None:
        """At the start, and again in the child of a fork."""
        if self._link is not None:
            abandon(self._link)
        self._link = None
        self._changed = threading.Condition()
        self._led = False
        self._heard = 0
        self._announced: dict[ThreadKey, float] = {}

    def is_due(self, key: ThreadKey) -> bool:
        """Whether it has to be said again that a thread is watched."""
        return self._announced.get(key, -math.inf) + WATCHED_S / 2 <= time.monotonic()

    def announce(self, key: ThreadKey) -> None:
        """Note that writers were told that a thread is watched."""
        now = time.monotonic()
        self._announced = {other: at for other, at in self._announced.items() if at + WATCHED_S > now} | {key: now}

    def wait(self, seconds: float) -> None:
        """Return when something was written, or after this many seconds."""
        until = time.monotonic() + seconds
        with self._changed:
            before = self._heard
            self._changed.wait_for(lambda: self._heard != before or not self._led, seconds)
            if self._heard != before or time.monotonic() >= until:
                return
            self._led = True
        notified = False
        try:
            notified = self._listen(until)
        finally:
            with self._changed:
                self._led = False
                self._heard += notified
                self._changed.notify_all()

    def _listen(self, until: float) -> bool:
        try:
            if self._link is None or self._link.closed:
                self._link = self._pool.connect(Patience(until - time.monotonic()), Link)
                self._pool.check_open()  # closed meanwhile: nothing else would close this one
                self._link.until = until
                self._link.tell("listen")
                self._link.until = None
            return any(True for _ in self._link.notifies(timeout=max(until - time.monotonic(), 0.0), stop_after=1))
        except (psycopg.Error, SavegameError):  # a hint is not worth an error: the next read raises what is wrong
            self.close()
            time.sleep(max(until - time.monotonic(), 0.0))
            return False

    def close(self) -> None:
        """Let go of the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.hang_up()
