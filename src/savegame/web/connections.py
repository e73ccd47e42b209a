"""Limits on the connections of the page: how many there are, and how long a request may take to arrive.

Any local user can connect; a connection is trusted once a request on it shows a session. There are fewer connections than
descriptors, so that the store always has some for its files. Above the limit, untrusted connections are closed: first those
without a complete request, oldest first. So a process that holds idle connections open cannot lock others out.
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
"""Maximum number of connections. A browser opens about six."""

SHARE: Final = 4
"""Connections get a quarter of the descriptors; as many again may be accepted before excess ones are closed."""

REQUEST_S: Final = 10.0
"""How long a request may take to arrive, header and body; without a session, until its answer is read too."""

WARN_EVERY_S: Final = 60.0
"""Minimum time between two warnings, so that other users cannot fill the disk with the log."""

_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class PageConnections:
    """All connections of one server. `protocol` creates them for uvicorn; everything is called in its event loop."""

    def __init__(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = MOST if limit == resource.RLIM_INFINITY else min(MOST, limit // SHARE)
        self.backlog = max(1, self.most // SHARE)
        """How many connections the loop accepts before it handles any of them."""
        self.protocol: Any = partial(_PageConnection, self)
        self._open: dict[_PageConnection, None] = {}
        """Oldest first."""
        self._silent_until = 0.0

    def add(self, connection: _PageConnection) -> None:
        """Add a connection. Above the limit, close an untrusted one, or this one if all others are trusted."""
        untrusted = [one for one in self._open if not one.trusted]
        self._open[connection] = None
        if len(self._open) > self.most:
            next((one for one in untrusted if one.waits), [*untrusted, connection][0]).abort()
            self._warn("too many connections to the page; closing the oldest ones without a session")

    def remove(self, connection: _PageConnection) -> None:
        """Forget a connection."""
        self._open.pop(connection, None)

    def trust(self, client: object) -> None:
        """Trust the connection from this address: it has shown a session."""
        for connection in self._open:
            if connection.client == client:
                connection.trust()

    def on_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler. Without descriptors the loop retries accept every second; log that only rarely."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_ROOM and "socket" in context:
            self._warn(f"cannot accept connections: {error.strerror}; raise the limit with ulimit -n")
        else:
            loop.default_exception_handler(context)

    def _warn(self, text: str) -> None:
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + WARN_EVERY_S
            logger.warning(text)


class _PageConnection(H11Protocol):
    """A connection that is closed if a request does not arrive in time. uvicorn closes idle ones."""

    def __init__(self, others: PageConnections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.trusted = False
        self._others = others
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether a complete request has yet to arrive."""
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
        if self.conn.their_state is not h11.IDLE:  # answered before all of it arrived, or the next request is already here
            self._start()
            self._stop_if_due()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if not self.trusted:  # a client that does not read its answer would never be closed
            self._start()

    def trust(self) -> None:
        """A request has shown a session; its answers may take any time."""
        self.trusted = True
        self._stop_if_due()

    def abort(self) -> None:
        """Close the connection at once and forget it."""
        self._stop()
        self._others.remove(self)
        self.transport.abort()

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.abort)

    def _stop_if_due(self) -> None:
        if self.trusted and not self.waits:
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
