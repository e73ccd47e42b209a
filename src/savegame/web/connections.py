"""The connections that the page holds: how many, and how long a request may take to arrive. Touches uvicorn and h11 only.

Anybody on the machine can connect; only a request can show a session. Until one did, a connection is a stranger's. There are
fewer connections than descriptors, so that the store always finds some for its files. When there are too many, strangers go,
those without a whole request first, the oldest first: whoever holds connections open without a word keeps nobody else out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import time
from functools import partial
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger("savegame")

MOST: Final = 100
"""Connections at a time. A browser opens half a dozen."""

SHARE: Final = 4
"""Connections get this part of the descriptors; as many again may be accepted before the ones in excess are closed."""

REQUEST_S: Final = 10.0
"""How long a request may take to arrive, header and body; a stranger's also to be answered."""

SILENCE_S: Final = 60.0
"""The log repeats itself no sooner than this: strangers must not be able to fill the disk with it."""

_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connections:
    """Every connection of one server. `protocol` is what makes them, for uvicorn; all of it is called in its loop."""

    def __init__(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = MOST if limit == resource.RLIM_INFINITY else min(MOST, limit // SHARE)
        self.backlog = max(1, self.most // SHARE)
        """How many the loop accepts at a time, before it looks at any of them."""
        self.protocol: Any = partial(_Connection, self)
        self._open: dict[_Connection, None] = {}
        """The oldest first."""
        self._silent_until = 0.0

    def add(self, connection: _Connection) -> None:
        """Hold one more; if there are too many, a stranger's is closed, or this one if all others have shown a session."""
        strangers = [one for one in self._open if not one.known]
        self._open[connection] = None
        if len(self._open) > self.most:
            next((one for one in strangers if one.waits), [*strangers, connection][0]).abort()
            self._warn("the page has too many connections: the oldest ones without a session are being closed")

    def remove(self, connection: _Connection) -> None:
        """Forget one."""
        self._open.pop(connection, None)

    def trust(self, client: object) -> None:
        """The connection from this address has shown a session."""
        for connection in self._open:
            if connection.client == client:
                connection.trust()

    def unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For the loop, about what nobody handles: it tries to accept again every second, and would log every attempt."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_ROOM and "socket" in context:
            self._warn(f"the page cannot accept connections: {error.strerror}; raise the limit with ulimit -n")
        else:
            loop.default_exception_handler(context)

    def _warn(self, text: str) -> None:
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + SILENCE_S
            logger.warning(text)


class _Connection(H11Protocol):
    """One connection: closed unless each request is whole in time. Idle ones are closed by uvicorn."""

    def __init__(self, others: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.known = False
        self._others = others
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether it is for the other end to go on: nothing, or only a part of a request has come."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the parent's
        super().connection_made(transport)
        self._others.add(self)
        self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()
        self._others.remove(self)

    def data_received(self, data: bytes) -> None:
        self._start()
        super().data_received(data)
        self._stop_if_due()

    def on_response_complete(self) -> None:
        self._stop()
        super().on_response_complete()
        if self.conn.their_state is not h11.IDLE:  # answered before all of it came, or the next request is there already
            self._start()
            self._stop_if_due()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if not self.known:  # who does not read the answer keeps it from being closed
            self._start()

    def trust(self) -> None:
        """It has shown a session: what it asked for may take as long as it takes."""
        self.known = True
        self._stop_if_due()

    def abort(self) -> None:
        """Close it without another word, and do not count it any more."""
        self._stop()
        self._others.remove(self)
        self.transport.abort()

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.abort)

    def _stop_if_due(self) -> None:
        if self.known and not self.waits:
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
