"""Access control of the page: a middleware around every route that refuses all requests it does not explicitly allow.

A request passes if its Host is our address, if it comes from our own pages or was typed by the user (Origin,
Sec-Fetch-Site), and if it carries the cookie of a session. Changes need POST with a form and an Origin. A session starts
with a link that works once. Cookies do not distinguish ports, so ours is limited to paths below a random name: pages of
other users on this machine never receive it. Imports nothing of savegame.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "savegame"
FORM: Final = "application/x-www-form-urlencoded"
MOST_BODY: Final = 256 * 1024
MOST_HEADER: Final = 32 * 1024
MOST_FIELDS: Final = 100
MOST_COOKIES: Final = 50
CHECK: Final = "check"
"""The path of the only form that changes nothing: it starts the integrity check."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Sent with every response, refusals too. A stricter Referrer-Policy would remove the Origin from our own forms."""


class Refused(Exception):
    """A request was refused, with this status and reason."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Keys:
    """Links that work once, and the sessions they start. Lives as long as the server."""

    def __init__(self) -> None:
        self.room = secrets.token_urlsafe(12)
        """The first part of all paths that need a session."""
        self._links: dict[str, int | None] = {}
        self._sessions: set[str] = set()

    def new_link(self, user: int | None = None) -> str:
        """A secret that starts one session, for any user or only for the given one."""
        self._links[secret := secrets.token_urlsafe(32)] = user
        return secret

    def works(self, secret: str) -> bool:
        """Whether a secret is still unused."""
        return any(_same(link, secret) for link in self._links)

    def begin(self, secret: str, user: int | None) -> str | None:
        """The cookie of a new session, if the secret is unused and not for another user."""
        found = next((link for link in self._links if _same(link, secret)), None)
        if found is None or self._links[found] not in (None, user):
            return None
        del self._links[found]
        self._sessions.add(session := secrets.token_urlsafe(32))
        return session

    def knows(self, session: str) -> bool:
        """Whether this is the cookie of a session."""
        return any(_same(known, session) for known in self._sessions)

    def cookie(self, session: str) -> str:
        """The Set-Cookie header of a session."""
        return f"{COOKIE}={session}; Path=/{self.room}/; HttpOnly; SameSite=Strict"


class Guard:
    """The middleware. `authority` is the Host that browsers must send, such as 127.0.0.1:8000.

    `trust` is called with the client's address when a request shows a session.
    """

    def __init__(self, app: ASGIApp, keys: Keys, authority: str, *, read_only: bool, trust: Callable[[object], object]) -> None:
        self._app, self._keys, self._authority, self._read_only, self._trust = app, keys, authority, read_only, trust

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it. Anything but HTTP gets no answer."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            if self._check(scope["method"], scope["path"], Headers(scope=scope)):
                self._trust(scope["client"])
        except Refused as refused:
            answer = PlainTextResponse(f"{refused.status} {refused.status.phrase}: {refused.why}\n", refused.status)
            await answer(scope, receive, send_guarded)
            return
        with suppress(ClientDisconnect):  # disconnected before the form was complete
            await self._app(scope, receive, send_guarded)

    def _check(self, method: str, path: str, headers: Headers) -> bool:
        """Return whether the request shows a session, which some pages do not need. Raises Refused."""
        if len(headers.raw) > MOST_FIELDS or sum(len(name) + len(value) for name, value in headers.raw) > MOST_HEADER:
            raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the header is too long")
        if headers.getlist("host") != [self._authority]:
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "wrong Host header; open the link that savegame ui printed")
        self._check_origin(method, headers)
        if method == "POST":
            self._check_form(headers)
        elif method not in ("GET", "HEAD"):
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET, HEAD and POST")
        if path in ("/", "/open") or path.startswith("/static/"):
            return False
        if not path.startswith(f"/{self._keys.room}/") or not any(map(self._keys.knows, _sessions_in(headers))):
            raise Refused(HTTPStatus.FORBIDDEN, "open the link that savegame ui printed; each link works once")
        if method == "POST" and self._read_only and path != f"/{self._keys.room}/{CHECK}":
            raise Refused(HTTPStatus.FORBIDDEN, "savegame ui was started with --read-only")
        return True

    def _check_origin(self, method: str, headers: Headers) -> None:
        origins, ours = headers.getlist("origin"), f"http://{self._authority}"
        if any(origin != ours for origin in origins) or (method == "POST" and len(origins) != 1):
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from another page")
        typed = "none" if method in ("GET", "HEAD") else "same-origin"
        if any(site not in ("same-origin", typed) for site in headers.getlist("sec-fetch-site")):
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from another page")

    def _check_form(self, headers: Headers) -> None:
        kinds = [kind.partition(";")[0].strip().lower() for kind in headers.getlist("content-type")]
        if kinds != [FORM]:
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"forms must be sent as {FORM}")
        length = headers.get("content-length", "")
        if not length.isascii() or not length.isdecimal():
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "forms need a Content-Length")
        if int(length) > MOST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"forms are limited to {MOST_BODY} bytes")


def _sessions_in(headers: Headers) -> list[str]:
    """The session cookies of a request: pages on other ports may have set some of the same name."""
    pairs = (pair.strip().partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
    return [value for name, _, value in pairs if name == COOKIE][:MOST_COOKIES]


def _same(known: str, given: str) -> bool:
    return secrets.compare_digest(known.encode(), given.encode(errors="replace"))
