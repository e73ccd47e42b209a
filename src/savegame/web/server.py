"""Serving the page on a loopback address: in the foreground for people, in a thread for programs.

Touches app, ui, guard, connections.
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
from savegame.web.connections import Connections
from savegame.web.guard import MOST_HEADER, Guard, Keys
from savegame.web.peers import myself
from savegame.web.ui import Ui

PATIENCE_S: Final = 30.0

QUEUE: Final = 1024
"""How many connections may wait to be accepted: they take no descriptor yet."""

ANSWER_S: Final = 8.0
"""How long a page waits for a store that does not answer."""


def _ignore(link: str) -> None:
    """For whoever does not want to hear of new links."""


class Server:
    """The page over a vault, at `http://{authority}`, while it is entered. `port` 0 takes any that is free.

    `name` is shown as the name of the store. With `read_only` the page changes nothing; open the vault so, too. `say` is
    called with a new link whenever the one before was used, since each works once. A page that the store leaves without
    an answer for `patience` seconds says so.
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
        self._socket = _bound(_loopback(host), port)
        address, port = self._socket.getsockname()[:2]
        self.authority = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self.keys = Keys()
        self._say, self._told = say, ""
        self._ui = Ui(vault, self.keys, name=shown_address(name), read_only=read_only, patience=patience)
        app = make_app(self._ui, self.keys, opened=self.tell)
        connections = Connections()
        guarded: Any = Guard(app, self.keys, self.authority, read_only=read_only, trust=connections.trust)
        config = uvicorn.Config(
            guarded,
            log_level="error",  # its warnings are about requests of strangers, who could fill a disk with them
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
        """A link that opens the page once, for anybody or for one user. Browsers send what is behind the # to nobody."""
        return f"http://{self.authority}/#{self.keys.new_link(user)}"

    def tell(self) -> None:
        """Say a link that works, unless the last one that was said still does."""
        if not self.keys.works(self._told.partition("#")[2]):
            self._say(told := self.link())
            self._told = told

    def run(self) -> None:
        """Serve until `stop`, or in the main thread until Ctrl-C."""
        try:
            with self._socket:
                asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            self._ui.overview.rest()

    def stop(self) -> None:
        """Let what was asked be answered, then end."""
        self._server.should_exit = True

    def __enter__(self) -> Server:
        self._thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        if not self._server.started:
            raise UnavailableError(f"the page at {self.authority} did not start; its log says why")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()


class _Serving(uvicorn.Server):
    """uvicorn, which looks at every few connections that it accepts; many more may wait for that."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._connections.unhandled)
        await super().startup(sockets)
        for bound in sockets or []:
            bound.listen(QUEUE)  # else only as many as are accepted at a time, and the others wait a second or more


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
    """Serve the page until Ctrl-C. `say` gets a link at the start, and another whenever that was used.

    `open_browser` opens one of its own, which other users who see it on a command line cannot use. Raises
    InvalidInputError for an address that others can reach.
    """
    server = Server(vault, host=host, port=port, name=name, read_only=read_only, say=say)
    server.tell()
    if open_browser:
        handed = server.link(myself())
        threading.Thread(target=webbrowser.open, args=[handed], name="savegame ui opens", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # how people end it
        server.run()


def _loopback(host: str) -> str:
    """The address, if only this machine can reach it. `localhost` is 127.0.0.1, whatever the machine's files say."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError as error:
        raise InvalidInputError(f"{host!r} is no address; leave it out, or give 127.0.0.1 or ::1") from error
    if not address.is_loopback:
        raise InvalidInputError(
            f"{host} can be reached by others, and the page is for this machine only; to see it elsewhere, "
            "forward a port: ssh -L 8000:127.0.0.1:8000"
        )
    return str(address)


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((address, port))
        made.listen(QUEUE)  # whoever is quicker than our start waits, and is not refused
    except (OSError, OverflowError) as error:
        made.close()
        raise UnavailableError(f"{address} port {port} cannot be used: {error}; choose another with --port") from error
    return made
