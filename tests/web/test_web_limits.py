"""Strangers on the machine: connections that say nothing, or half of something, lock no other user out and fill no log."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from pages_site import Site, fill

import savegame
from savegame.web.connections import MOST, PageConnections
from savegame.web.guard import MOST_FIELDS, MOST_HEADER

DESCRIPTORS = 256
FLOOD = 400
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


class Page(NamedTuple):
    """A server in a process of its own, and the session of the user who started it."""

    authority: str
    path: str
    cookie: str
    log: Path

    def connect(self) -> AbstractContextManager[http.client.HTTPConnection]:
        return closing(http.client.HTTPConnection(self.authority, timeout=60))

    def ask(self, connection: http.client.HTTPConnection) -> str:
        connection.request("GET", self.path, headers={"Cookie": self.cookie})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        return text

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.authority.rpartition(":")
        return host, int(port)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """`savegame ui` with few descriptors."""
    store, log = str(tmp_path / "agents.db"), tmp_path / "log"
    with savegame.open(store) as vault:
        fill(vault)
    started = [sys.executable, "-u", "-m", "savegame", "ui", "--no-open", "--store", store]
    command = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *started]
    with log.open("w") as written, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written, text=True) as ui:
        assert ui.stdout is not None
        link = next(line for line in ui.stdout if "http://127.0.0.1:" in line).split()[-1]
        origin, _, secret = link.partition("/#")
        connection = http.client.HTTPConnection(origin.removeprefix("http://"), timeout=60)
        form = {"Origin": origin, "Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/open", urlencode({"secret": secret}), form)
        answer = connection.getresponse()
        cookie = answer.headers["set-cookie"].partition(";")[0]
        yield Page(origin.removeprefix("http://"), answer.read().decode(), cookie, log)
        connection.close()
        ui.send_signal(signal.SIGINT)
        assert ui.wait(60) == 0


@contextmanager
def held(address: tuple[str, int], count: int, said: bytes) -> Iterator[list[socket.socket]]:
    """This number of connections that send something and then wait; the server may hang up on any of them."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection(address, timeout=60)))
            with suppress(ConnectionError):  # it did already
                made[-1].sendall(said)
        yield made


@pytest.mark.parametrize(
    "said",
    [
        b"",
        HALF,
        b"POST /open HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhal",
        b"GET /static/htmx.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200,
        b"no HTTP\r\n\r\n",
    ],
    ids=["nothing", "half a header", "half a body", "answers that are not read", "no HTTP"],
)
def test_more_strangers_than_descriptors_keep_nobody_out(page: Page, said: bytes) -> None:
    with page.connect() as session:
        page.ask(session)
        with held(page.address, FLOOD, said), page.connect() as fresh:
            assert "support-42" in page.ask(session), "a connection that has shown a session stays"
            assert "support-42" in page.ask(fresh)
    assert len(page.log.read_bytes()) < 2000


def trickle_until_closed(connection: socket.socket) -> None:
    """Go on saying a little, byte by byte, as long as the server listens."""
    connection.settimeout(0.5)
    with suppress(ConnectionError):
        while True:
            with suppress(TimeoutError):
                connection.sendall(b"x")
                if not connection.recv(65536):
                    return


def test_a_request_that_comes_in_drops_is_cut_off(quick_site: Site) -> None:
    host, _, port = quick_site.server.authority.rpartition(":")
    whole = f"GET / HTTP/1.1\r\nHost: {quick_site.server.authority}\r\n\r\n".encode()
    headers = quick_site.own_headers() | {"Host": quick_site.server.authority, "Content-Length": "9999"}
    form = "\r\n".join(f"{name}: {value}" for name, value in headers.items())
    begun = {
        "header": HALF,
        "the next header": whole + HALF,
        "body": b"POST /open HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n",
        "body with a session": f"POST {quick_site.room}label HTTP/1.1\r\n{form}\r\n\r\n".encode(),
    }
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in begun]
        for connection, said in zip(connections, begun.values(), strict=True):
            connection.sendall(said)
        for connection in connections:
            trickle_until_closed(connection)
    assert quick_site.get("threads").status == 200


def test_a_header_has_a_size_and_a_number_of_fields(quick_site: Site) -> None:
    own = quick_site.own_headers()
    many = {f"X-{number}": "x" for number in range(MOST_FIELDS)}
    for headers in (many, {"X-Long": "x" * MOST_HEADER}):
        answer = quick_site.ask("GET", f"{quick_site.room}threads", None, own | headers)
        assert answer.status in (400, 431), answer
    assert quick_site.get("threads").status == 200


def test_whoever_leaves_in_the_middle_of_a_form_leaves_no_traceback(page: Page) -> None:
    origin = f"http://{page.authority}"
    fields = {"Host": page.authority, "Origin": origin, "Cookie": page.cookie, "Content-Length": "99"}
    header = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    for path in ("/open", page.path.replace("threads", "label")):
        said = f"POST {path} HTTP/1.1\r\n{header}Content-Type: application/x-www-form-urlencoded\r\n\r\nsecret="
        with held(page.address, 3, said.encode()), page.connect() as later:
            page.ask(later)  # so they were looked at
    with page.connect() as later:
        page.ask(later)
    assert "Traceback" not in page.log.read_text()


def test_fewer_connections_than_descriptors() -> None:
    connections = PageConnections()
    assert 0 < connections.backlog < connections.most <= MOST


WITHOUT_DESCRIPTORS = """
import os, savegame
from savegame.web import Server
with savegame.open("memory:") as vault, Server(vault) as server:
    print(server.authority, flush=True)
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        print("none left", flush=True)
    input()
    for descriptor in taken:
        os.close(descriptor)
    print("some left", flush=True)
    input()
"""


def test_a_program_that_runs_out_of_descriptors_is_told_once_and_its_page_comes_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", sys.executable, "-c", WITHOUT_DESCRIPTORS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with log.open("w") as written, subprocess.Popen(command, stderr=written, **pipes) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        authority = program.stdout.readline().strip()
        assert program.stdout.readline() == "none left\n"
        with closing(http.client.HTTPConnection(authority, timeout=60)) as connection:
            connection.request("GET", "/")
            while not log.read_text():
                pass
            print(file=program.stdin, flush=True)
            assert program.stdout.readline() == "some left\n"
            assert connection.getresponse().status == 200
        program.communicate("\n", timeout=60)
    assert "ulimit -n" in log.read_text()
    assert log.read_text().count("\n") == 1
