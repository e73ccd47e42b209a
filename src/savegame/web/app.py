"""The routes: one table of every page and action, and how a request becomes a call of one. Touches the pages, guard, errors.

The table is what the tests of `guard` are made from. Pages are ordinary functions, called in worker threads.
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
from savegame.web import runs_page, store_page, thread_page, threads_page
from savegame.web.guard import Keys
from savegame.web.peers import user_of
from savegame.web.ui import Asked, Handler, Ui

logger = logging.getLogger("savegame")

STATIC: Final = {
    "app.css": "text/css",
    "app.js": "text/javascript",
    "theme.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "htmx-LICENSE.txt": "text/plain",
    "icon.svg": "image/svg+xml",
}
MOST_FIELDS: Final = 100

STALE_S: Final = 10
"""So often a page is made anew though its mark is the same: ages pass."""

Endpoint = Callable[[Request], Awaitable[Response]]


class Page(NamedTuple):
    """One route: a page is got, an action is posted. `back` shows the page that an action came from, if it failed.

    A page that is not `slow` is given up when the store is silent; an action never is, because it may yet happen. `mark`
    tells, much quicker than the page is made, whether it would be another one now; not by its ages, which pass.
    """

    method: str
    path: str
    handler: Handler
    back: Callable[[Ui, Asked, SavegameError], Response] | None = None
    slow: bool = False
    mark: Callable[[Ui, Asked], object] | None = None


PAGES: Final = (
    Page("GET", "threads", threads_page.show, mark=threads_page.mark),
    Page("GET", "hits", threads_page.hits, slow=True),
    Page("GET", "thread", thread_page.show, mark=thread_page.mark),
    Page("GET", "state", thread_page.state),
    Page("GET", "attachment", thread_page.attachment),
    Page("GET", "export", thread_page.export, slow=True),
    Page("POST", "label", thread_page.label, thread_page.failed),
    Page("POST", "tag", thread_page.tag, thread_page.failed),
    Page("POST", "untag", thread_page.untag, thread_page.failed),
    Page("POST", "fork", thread_page.fork, thread_page.failed),
    Page("POST", "rewind", thread_page.rewind, thread_page.failed),
    Page("GET", "runs", runs_page.show, mark=threads_page.mark),
    Page("POST", "answer", runs_page.answer, runs_page.failed),
    Page("POST", "resolve", runs_page.resolve, runs_page.failed),
    Page("GET", "store", store_page.show),
    Page("GET", "check", store_page.check),
    Page("POST", "check", store_page.start_check),
)


def make_app(ui: Ui, keys: Keys, *, opened: Callable[[], object]) -> Starlette:
    """The pages, not yet guarded. `opened` is called whenever a link was used."""
    pages = [Route(f"/{page.path}", _endpoint(ui, page), methods=[page.method]) for page in PAGES]
    return Starlette(
        routes=[
            Route("/", _door, methods=["GET"]),
            Route("/open", _opening(keys, opened), methods=["POST"]),
            Route("/static/{name}", _static, methods=["GET"]),
            Mount(f"/{keys.room}", routes=pages),
        ]
    )


async def _door(request: Request) -> Response:
    """The page that turns the secret of a link into a session: the same for everybody."""
    return HTMLResponse(_file("templates", "open.html"))


def _opening(keys: Keys, opened: Callable[[], object]) -> Endpoint:
    async def begin(request: Request) -> Response:
        asked = await _form(request)
        user = None if request.client is None else user_of(request.client, request.scope["server"])
        session = keys.begin(asked.get("secret", ""), user)
        if session is None:
            return PlainTextResponse("this link was used before, or belongs to somebody else\n", 403)
        opened()
        return PlainTextResponse(f"/{keys.room}/threads", headers={"Set-Cookie": keys.cookie(session)})

    return begin


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        return PlainTextResponse("not found\n", 404)
    return Response(_file("static", name), media_type=STATIC[name], headers={"Cache-Control": "no-cache"})


def _file(folder: str, name: str) -> bytes:
    return files("savegame.web").joinpath(folder, name).read_bytes()


def _endpoint(ui: Ui, page: Page) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            asked = await _form(request) if page.method == "POST" else _once(list(request.query_params.multi_items()))
        except InvalidInputError as error:
            return _refused(ui, page, error)
        patience = ui.patience() if page.method == "GET" and not page.slow else None
        with move_on_after(patience):
            known = request.headers.get("if-none-match")
            return await to_thread.run_sync(_answered, ui, page, asked, known, abandon_on_cancel=patience is not None)
        silent = UnavailableError(f"the store has not answered for {patience:g} s; reload the page to try again")
        return _refused(ui, page, silent)

    return answer


def _answered(ui: Ui, page: Page, asked: Asked, known: str | None) -> Response:
    try:
        return _unless_known(ui, page, asked, known) if page.method == "GET" else _tried(ui, page, asked)
    except SavegameError as error:
        return _refused(ui, page, error)
    except Exception as error:  # a person looks at it, and the other pages go on
        logger.exception("the page %s could not be shown", page.path)
        text = f"something unexpected happened ({error!r}); the log of savegame ui says more"
        return ui.show("error.html", status=500, error=text, posted=page.method == "POST")


def _refused(ui: Ui, page: Page, error: SavegameError) -> Response:
    return ui.show("error.html", status=error.http_status, error=error, posted=page.method == "POST")


def _unless_known(ui: Ui, page: Page, asked: Asked, known: str | None) -> Response:
    """The page, or only that it is still the one that the browser knows: pages are asked for again every other second."""
    told = None if page.mark is None or known is None else (int(ui.now().timestamp() // STALE_S), page.mark(ui, asked))
    place = (page.path, *sorted(asked.items()))
    if told is not None and ui.seen.get(place) == (told, known):
        return Response(status_code=304, headers={"ETag": str(known)})
    found = _tried(ui, page, asked)
    if not isinstance(found, HTMLResponse) or found.status_code != 200:
        return found
    found.headers["ETag"] = mark = f'"{hashlib.blake2b(found.body, digest_size=12).hexdigest()}"'
    if told is not None:
        ui.remember(place, (told, mark))
    return Response(status_code=304, headers={"ETag": mark}) if known == mark else found


def _tried(ui: Ui, page: Page, asked: Asked) -> Response:
    try:
        return page.handler(ui, asked)
    except SavegameError as error:
        if page.back is None:
            raise
        return page.back(ui, {**asked, "do": page.path}, error)


async def _form(request: Request) -> dict[str, str]:
    """The fields of a posted form; the guard has checked its type and length."""
    try:
        text = (await request.body()).decode()
        return _once(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError as error:
        raise InvalidInputError(f"the form cannot be read: {error}") from error


def _once(fields: list[tuple[str, str]]) -> dict[str, str]:
    asked = dict(fields)
    if len(asked) != len(fields):
        raise InvalidInputError("a parameter was given twice")
    return asked
