"""Serves the page on a loopback address: in the foreground for people, in a thread for programs.

It binds loopback addresses only, and makes the keys by which `guard.py` recognises its user. Touches app, connections, guard,
peers and opening.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
import time
import webbrowser
from collections.abc import Callable
from typing import Any, Final

import uvicorn

from savegame.errors import InvalidInputError, UnavailableError
from savegame.opening import shown_address
from savegame.vault import Vault
from savegame.web.app import make_app
from savegame.web.connections import PageConnections
from savegame.web.guard import MOST_HEADER, Guard, Keys
from savegame.web.peers import myself
from savegame.web.ui import Ui

START_S: Final = 30.0

QUEUE: Final = 1024
"""How many connections may wait to be accepted; waiting ones use no descriptor."""

ANSWER_S: Final = 8.0
"""How long a page waits for the store."""


def _ignore(link: str) -> None:
    """The default of `say`."""


class Server:
    """Serves the page of a vault at `http://{authority}` inside a `with` block. `port` 0 picks a free one.

    `name` is the displayed name of the store. With `read_only` the page changes nothing; open the vault read-only too.
    Each link works once: `say` is called with a new one whenever a link was used. Pages report a store that does not answer
    for `patience` seconds.
    """

    def __init__(
        self,
        vault: Vault,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        name: str = "",
        read_only: bool = False,
        patience: float = ANSWER_S,
        say: Callable[[str], object] = _ignore,
    ) -> None:
        self._socket = _bind(_check_loopback(host), port)
        address, port = self._socket.getsockname()[:2]
        self.authority = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self.keys = Keys()
        self._say, self._last_link = say, ""
        self._ui = Ui(vault, self.keys, name=shown_address(name), read_only=read_only, patience=patience)
        app = make_app(self._ui, self.keys, on_open=self.tell)
        connections = PageConnections()
        guarded: Any = Guard(app, self.keys, self.authority, read_only=read_only, trust=connections.trust)
        config = uvicorn.Config(
            guarded,
            log_level="error",  # warnings come from requests of other users, who could fill the disk with them
            access_log=False,
            lifespan="off",
            ws="none",
            http=connections.protocol,
            backlog=connections.backlog,
            h11_max_incomplete_event_size=MOST_HEADER,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self._server = _Serving(config, connections)
        self._thread = threading.Thread(target=self.run, name="savegame ui", daemon=True)

    def link(self, user: int | None = None) -> str:
        """A link that opens the page once, for any user or for the given one. Browsers never send the part after #."""
        return f"http://{self.authority}/#{self.keys.new_link(user)}"

    def tell(self) -> None:
        """Call `say` with a new link, unless the last one is still unused."""
        if not self.keys.works(self._last_link.partition("#")[2]):
            self._say(link := self.link())
            self._last_link = link

    def run(self) -> None:
        """Serve until `stop`, or in the main thread until Ctrl-C."""
        try:
            with self._socket:
                asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            self._ui.overview.rest()

    def stop(self) -> None:
        """Finish running requests, then end."""
        self._server.should_exit = True

    def __enter__(self) -> Server:
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        if not self._server.started:
            raise UnavailableError(f"the page at {self.authority} did not start; see its log")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()


class _Serving(uvicorn.Server):
    """uvicorn with a small accept batch and a long queue behind it."""

    def __init__(self, config: uvicorn.Config, connections: PageConnections) -> None:
        super().__init__(config)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._connections.on_unhandled)
        await super().startup(sockets)
        for bound in sockets or []:
            bound.listen(QUEUE)  # the default is the size of the batch, and other clients would wait a second or more


def serve(
    vault: Vault,
    *,
    say: Callable[[str], object],
    host: str = "127.0.0.1",
    port: int = 0,
    name: str = "",
    read_only: bool = False,
    open_browser: bool = False,
) -> None:
    """Serve the page until Ctrl-C. `say` is called with a link at the start and whenever a link was used.

    `open_browser` opens a separate link, which other users cannot use if they see it on a command line. Raises
    InvalidInputError for an address that other machines can reach.
    """
    server = Server(vault, host=host, port=port, name=name, read_only=read_only, say=say)
    server.tell()
    if open_browser:
        own_link = server.link(myself())
        threading.Thread(target=webbrowser.open, args=[own_link], name="savegame ui opens", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop it
        server.run()


def _check_loopback(host: str) -> str:
    """The address of a loopback host. `localhost` is always 127.0.0.1. Raises InvalidInputError."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError as error:
        raise InvalidInputError(f"{host!r} is not an IP address; use 127.0.0.1 or ::1") from error
    if not address.is_loopback:
        raise InvalidInputError(
            f"other machines can reach {host}, and the page is for this machine only; to use it from elsewhere, "
            "forward a port: ssh -L 8000:127.0.0.1:8000"
        )
    return str(address)


def _bind(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(QUEUE)  # so that clients wait during our start instead of being refused
    except (OSError, OverflowError) as error:
        listener.close()
        raise UnavailableError(f"cannot listen on {address} port {port}: {error}; choose another port with --port") from error
    return listener
