"""The routes: one table of all pages and actions, and how a request becomes a call of one.

The tests of `guard` are generated from the table. Pages are ordinary functions, called in worker threads.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from anyio import move_on_after, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from savegame.errors import InvalidInputError, SavegameError, UnavailableError
from savegame.web import run_actions, runs_page, store_page, thread_page, threads_page
from savegame.web.guard import MOST_FIELDS, Keys
from savegame.web.peers import user_of
from savegame.web.ui import Handler, Params, Ui

logger = logging.getLogger("savegame")

STATIC: Final = {
    "app.css": "text/css",
    "app.js": "text/javascript",
    "theme.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "htmx-LICENSE.txt": "text/plain",
    "icon.svg": "image/svg+xml",
}
STALE_S: Final = 10
"""An unchanged page is rendered again after this time, because it shows ages."""

Endpoint = Callable[[Request], Awaitable[Response]]


class PageRoute(NamedTuple):
    """One route: pages use GET, actions POST. If an action fails, `back` shows its page again.

    A page times out when the store does not answer, unless it is `slow`; an action never does, because it may still happen.
    `mark` is a cheap value that changes whenever the page would, ages aside.
    """

    method: str
    path: str
    handler: Handler
    back: Callable[[Ui, Params, SavegameError], Response] | None = None
    slow: bool = False
    mark: Callable[[Ui, Params], object] | None = None


PAGES: Final = (
    PageRoute("GET", "threads", threads_page.show, mark=threads_page.mark),
    PageRoute("GET", "hits", threads_page.hits, slow=True),
    PageRoute("GET", "thread", thread_page.show, mark=thread_page.mark),
    PageRoute("GET", "state", thread_page.state),
    PageRoute("GET", "attachment", thread_page.attachment),
    PageRoute("GET", "export", thread_page.export, slow=True),
    PageRoute("POST", "label", thread_page.label, thread_page.show_failure),
    PageRoute("POST", "tag", thread_page.tag, thread_page.show_failure),
    PageRoute("POST", "untag", thread_page.untag, thread_page.show_failure),
    PageRoute("POST", "fork", thread_page.fork, thread_page.show_failure),
    PageRoute("POST", "rewind", thread_page.rewind, thread_page.show_failure),
    PageRoute("POST", "send", run_actions.send, run_actions.show_failure),
    PageRoute("POST", "unsend", run_actions.unsend, run_actions.show_failure),
    PageRoute("POST", "stop", run_actions.stop, run_actions.show_failure),
    PageRoute("GET", "runs", runs_page.show, mark=threads_page.mark),
    PageRoute("POST", "answer", runs_page.answer, runs_page.show_failure),
    PageRoute("POST", "resolve", runs_page.resolve, runs_page.show_failure),
    PageRoute("GET", "store", store_page.show),
    PageRoute("GET", "check", store_page.check),
    PageRoute("POST", "check", store_page.start_check),
)


def make_app(ui: Ui, keys: Keys, *, on_open: Callable[[], object]) -> Starlette:
    """The application without its guard. `on_open` is called whenever a link was used."""
    pages = [Route(f"/{page.path}", _endpoint(ui, page), methods=[page.method]) for page in PAGES]
    return Starlette(
        routes=[
            Route("/", _door, methods=["GET"]),
            Route("/open", _opening(keys, on_open), methods=["POST"]),
            Route("/static/{name}", _static, methods=["GET"]),
            Mount(f"/{keys.room}", routes=pages),
        ]
    )


async def _door(request: Request) -> Response:
    """The page that turns the secret of a link into a session; it holds nothing secret itself."""
    return HTMLResponse(_read("templates", "open.html"))


def _opening(keys: Keys, on_open: Callable[[], object]) -> Endpoint:
    async def begin(request: Request) -> Response:
        params = await _parse_form(request)
        user = None if request.client is None else user_of(request.client, request.scope["server"])
        session = keys.begin(params.get("secret", ""), user)
        if session is None:
            return PlainTextResponse("this link was already used, or belongs to another user\n", 403)
        on_open()
        return PlainTextResponse(f"/{keys.room}/threads", headers={"Set-Cookie": keys.cookie(session)})

    return begin


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        return PlainTextResponse("not found\n", 404)
    return Response(_read("static", name), media_type=STATIC[name], headers={"Cache-Control": "no-cache"})


def _read(folder: str, name: str) -> bytes:
    return files("savegame.web").joinpath(folder, name).read_bytes()


def _endpoint(ui: Ui, page: PageRoute) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            query = request.query_params.multi_items()
            params = await _parse_form(request) if page.method == "POST" else _unique(list(query))
        except InvalidInputError as error:
            return _error_page(ui, page, error)
        patience = ui.patience() if page.method == "GET" and not page.slow else None
        with move_on_after(patience):
            known = request.headers.get("if-none-match")
            return await to_thread.run_sync(_respond, ui, page, params, known, abandon_on_cancel=patience is not None)
        silent = UnavailableError(f"the store did not answer for {patience:g} s; reload the page to try again")
        return _error_page(ui, page, silent)

    return answer


def _respond(ui: Ui, page: PageRoute, params: Params, known: str | None) -> Response:
    try:
        return _render_if_changed(ui, page, params, known) if page.method == "GET" else _call_handler(ui, page, params)
    except SavegameError as error:
        return _error_page(ui, page, error)
    except Exception as error:  # shown and logged; the other pages keep working
        logger.exception("page %s failed", page.path)
        text = f"internal error ({error!r}); see the log of savegame ui"
        return ui.show("error.html", status=500, error=text, posted=page.method == "POST")


def _error_page(ui: Ui, page: PageRoute, error: SavegameError) -> Response:
    return ui.show("error.html", status=error.http_status, error=error, posted=page.method == "POST")


def _render_if_changed(ui: Ui, page: PageRoute, params: Params, known: str | None) -> Response:
    """The page, or 304 if the browser's copy is current: live pages are requested again every few seconds."""
    mark = None if page.mark is None or known is None else (int(ui.now().timestamp() // STALE_S), page.mark(ui, params))
    place = (page.path, *sorted(params.items()))
    if mark is not None and ui.seen.get(place) == (mark, known):
        return Response(status_code=304, headers={"ETag": str(known)})
    response = _call_handler(ui, page, params)
    if not isinstance(response, HTMLResponse) or response.status_code != 200:
        return response
    response.headers["ETag"] = tag = f'"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
    if mark is not None:
        ui.remember(place, (mark, tag))
    return Response(status_code=304, headers={"ETag": tag}) if known == tag else response


def _call_handler(ui: Ui, page: PageRoute, params: Params) -> Response:
    try:
        return page.handler(ui, params)
    except SavegameError as error:
        if page.back is None:
            raise
        return page.back(ui, {**params, "do": page.path}, error)


async def _parse_form(request: Request) -> dict[str, str]:
    """The fields of a posted form, whose type and length the guard has checked."""
    try:
        text = (await request.body()).decode()
        return _unique(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError as error:
        raise InvalidInputError(f"the form cannot be read: {error}") from error


def _unique(fields: list[tuple[str, str]]) -> dict[str, str]:
    params = dict(fields)
    if len(params) != len(fields):
        raise InvalidInputError("a parameter occurs twice")
    return params
