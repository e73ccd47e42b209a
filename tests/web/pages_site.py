"""The page as a program meets it: a server on a vault, requests with whatever headers, and a vault with something to see."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import urlencode

import savegame
from savegame.vault import Vault
from savegame.web import Server

NO_HTTP = "Invalid HTTP request received."
"""What the server itself says to what is no request at all, before anybody is asked."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def url(self) -> str:
        """Where a redirect leads."""
        return self.headers["location"]


class Site:
    """A server, and a session on it that was begun with a link."""

    def __init__(self, server: Server) -> None:
        self.server, self.room = server, f"/{server.keys.room}/"
        self.origin = f"http://{server.authority}"
        self.cookie = self.open(server.link()).headers["set-cookie"].partition(";")[0]

    def open(self, link: str) -> Answer:
        body = urlencode({"secret": link.partition("#")[2]})
        return self.ask("POST", "/open", body, {"Origin": self.origin, "Content-Type": "application/x-www-form-urlencoded"})

    def get(self, page: str, **parameters: object) -> Answer:
        """A page, as the browser of the session asks for it."""
        return self.ask("GET", self.path(page, parameters), None, {"Cookie": self.cookie})

    def post(self, page: str, **fields: object) -> Answer:
        """An action, as a form of our own page sends it."""
        return self.ask("POST", self.path(page, {}), urlencode(fields), self.own_headers())

    def own_headers(self) -> dict[str, str]:
        form = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
        return {"Cookie": self.cookie, "Origin": self.origin, **form}

    def path(self, page: str, parameters: dict[str, object]) -> str:
        return self.room + page + (f"?{urlencode(parameters)}" if parameters else "")

    def ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:
        """Exactly this request; a header that is empty is left out, also Host and Content-Length."""
        connection = http.client.HTTPConnection(self.server.authority, timeout=30)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        length = {"Content-Length": str(len(body.encode()))} if body is not None else {}
        for name, value in ({"Host": self.server.authority} | length | headers).items():
            if value:
                connection.putheader(name, value)
        try:
            connection.endheaders(None if body is None else body.encode())
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except ConnectionError:  # it hung up on what is no request, while we were still talking
            return Answer(400, {}, NO_HTTP)
        finally:
            connection.close()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)


@contextmanager
def site_on(vault: Vault, **options: Any) -> Iterator[Site]:
    with Server(vault, name="somewhere", **options) as server:
        yield Site(server)


tools = savegame.Toolbox()


@tools.tool(read_only=True)
def find_order(order: int) -> dict[str, Any]:
    return {"order": order, "state": "lost in transit"}


@tools.tool(ask=True)
def wire(iban: str, cents: int) -> str:
    return f"wired {cents} to {iban}"


@tools.tool
def mail(to: str) -> str:
    raise KeyboardInterrupt  # a crash


def one_call(name: str, **arguments: Any) -> Any:
    """A model that asks for one call, then is done."""
    reply = {"role": "assistant", "content": "One moment.", "tool_calls": [{"id": "c1", "name": name, "arguments": arguments}]}
    return lambda messages: reply if messages[-1]["role"] == "user" else "That is all."


def converse(vault: Vault, thread_id: str, text: str, llm: Any) -> str | None:
    """A run as far as it goes; None if it waits for a person or its outcome is unknown."""
    try:
        with vault.run(thread_id, agent="helper", tools=tools) as run:
            if text:
                run.user(text)
            while not run.done:
                run.tools()
                run.model(llm)
            return str(run.reply)
    except (savegame.OutcomeError, KeyboardInterrupt):
        return None


def fill(vault: Vault) -> None:
    """A thread with a branch, labels and tags; a run that is done; calls that wait for a person and of unknown outcome."""
    thread = vault.thread("support-42", agent="helper")
    said = [("user", "My parcel never came."), ("assistant", "Let me look."), ("assistant", "Here is a voucher.")]
    for role, text in said:
        thread.update(append={"messages": [{"role": role, "content": text}]}, tokens_used=1200, cost=0.25)
    thread.label("head~1", "before the voucher")
    thread.tag("head~1", "risky")
    thread.rewind("before the voucher")
    thread.update(append={"messages": [{"role": "assistant", "content": "A new parcel is on its way."}]}, status="completed")
    vault.thread("plain", agent="other").save({"plan": {"goal": "tidy up", "open": [1, 2, 3]}, "done": False})
    converse(vault, "order", "Where is it?", one_call("find_order", order=1017))
    converse(vault, "invoice", "Pay it.", one_call("wire", iban="DE02", cents=1200))
    vault.send("order", "And now?", key="sent")
    for text in ("Write to Ada.", ""):
        converse(vault, "letter", text, one_call("mail", to="ada"))


class _Skeleton(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("ins", "del"):  # which words changed depends on the words
            self.parts.append((tag, tuple(name for name, _ in attrs)))


def skeleton(html: str) -> list[tuple[str, tuple[str, ...]]]:
    """The elements of a page with the names of their attributes: what stored text must never change."""
    parser = _Skeleton()
    parser.feed(html)
    return parser.parts


def texts(html: str) -> str:
    """A page as people read it."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))
