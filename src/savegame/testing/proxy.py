"""A relay in front of a server that drops connections at exact moments: before a request arrives, or after the server has
executed it and before its reply arrives. Understands just enough of PostgreSQL's protocol to know where a reply ends.

    with Proxy("127.0.0.1", server_port) as proxy:
        proxy.lose_reply(b"INSERT")         # the next request that contains this is executed, its reply is lost
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

READY: Final = b"Z\0\0\0\5"
"""ReadyForQuery without its last byte: the server has executed a request and sent its whole reply."""
SYNC: Final = b"S\0\0\0\4"
"""The end of a complete request: the server commits, and is ready for the next."""


class Proxy:
    """Listens on a loopback port and relays each connection to `host:port`; `with` closes it and all connections."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._relays: set[_Relay] = set()
        self._marker: bytes | None = None
        self._skip = 0
        self._reply = False
        self.losses = 0
        """Number of connections dropped on purpose."""
        self.refusing = False
        """While true, new connections are dropped at once."""
        self.rewrite: Callable[[bytes], bytes] = bytes
        """Changes the bytes that the server sends."""
        self._worker = threading.Thread(target=self._accept, name="savegame-proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._worker.join()
        self._listener.close()
        self.cut_all()

    def lose_request(self, marker: bytes = b"", *, skip: int = 0) -> None:
        """Cut the connection that next sends `marker`, before the server gets it.

        Lets the first `skip` such requests pass. Requests of the login do not count.
        """
        with self._lock:
            self._marker, self._skip, self._reply = marker, skip, False

    def lose_reply(self, marker: bytes = b"", *, skip: int = 0) -> None:
        """Like `lose_request`, but after the server has executed the request and before its reply arrives."""
        with self._lock:
            self._marker, self._skip, self._reply = marker, skip, True

    def lose_nothing(self) -> None:
        """Cancel a loss that has not happened yet."""
        with self._lock:
            self._marker = None

    def cut_all(self) -> None:
        """Cut all connections."""
        with self._lock:
            relays = list(self._relays)
        for relay in relays:
            relay.cut()

    def fate(self, request: bytes) -> str:
        """What to do with a request: "sent", "lost", or "unanswered"."""
        with self._lock:
            if self._marker is None or self._marker not in request:
                return "sent"
            if self._skip:
                self._skip -= 1
                return "sent"
            self._marker = None
            self.losses += 1
            return "unanswered" if self._reply else "lost"

    def forget(self, relay: _Relay) -> None:
        """Remove a closed connection."""
        with self._lock:
            self._relays.discard(relay)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            relay = _Relay(self, client)
            if self.refusing or not relay.connect(self._server):
                relay.cut()
                continue
            with self._lock:
                self._relays.add(relay)
            relay.start()


class _Relay:
    """One connection through the proxy: a worker for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream = socket.socket()
        self._greeted = False
        self._unanswered = self._whole = False

    def connect(self, server: tuple[str, int]) -> bool:
        try:
            self._upstream.connect(server)
        except OSError:
            return False
        for end in (self._client, self._upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return True

    def start(self) -> None:
        for work in (self._requests, self._replies):
            threading.Thread(target=self._until_lost, args=(work,), name="savegame-relay", daemon=True).start()

    def cut(self) -> None:
        """End both sides at once, with a reset."""
        for end in (self._client, self._upstream):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy.forget(self)

    def _until_lost(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            work()
        self.cut()

    def _requests(self) -> None:
        while request := self._client.recv(1 << 16):
            fate = self._proxy.fate(request) if self._greeted else "sent"
            if fate == "lost":
                return
            if fate == "unanswered":
                self._whole, self._unanswered = request.endswith(SYNC), True
            self._upstream.sendall(request)

    def _replies(self) -> None:
        held = b""
        while reply := self._upstream.recv(1 << 16):
            if not self._unanswered:
                self._greeted = self._greeted or reply[-6:-1] == READY
                self._client.sendall(self._proxy.rewrite(reply))
                continue
            held += reply
            if held[-6:-1] == READY or not self._whole:
                return
