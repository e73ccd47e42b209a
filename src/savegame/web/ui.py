"""What every page uses: the vault, the overview, the templates, URLs of other pages.

Templates escape all values; nothing is ever marked as safe. URLs carry ids in their query, because an id may be any text,
even `..`.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from starlette.responses import HTMLResponse, RedirectResponse, Response

from savegame.errors import InvalidInputError
from savegame.present.effects import began_at, call_name, offers_result, standing
from savegame.present.text import ago, size_text
from savegame.vault import Vault
from savegame.web import formatting
from savegame.web.checking import Checking
from savegame.web.guard import Keys
from savegame.web.overview import Overview

Params = Mapping[str, str]
"""The parameters of a request."""

Handler = Callable[["Ui", Params], Response]

MOST_SEEN: Final = 500
HURRIED_S: Final = 3.0

DONE: Final = {
    "label": "The label was changed.",
    "tag": "The tags were changed.",
    "untag": "The tags were changed.",
    "fork": "This is the new thread.",
    "rewind": "The head was moved. Later checkpoints stay as a branch.",
    "answer": "The answer was saved. The call continues when its agent is resumed.",
    "send": "The message is in the inbox. A run takes it in before it asks the model again.",
    "sent": "This message had been sent already, so it was not sent again.",
    "unsend": "The message was taken back.",
    "stop": "The thread was stopped. A live run ends before its next call.",
    "ended": "There was nothing to stop: the thread had ended.",
    "answered": "The call had already been answered, so this answer was not saved.",
    "resolve": "The outcome was saved. The agent continues from it when it is resumed.",
}
"""The message of a page after an action."""


class Ui:
    """One vault as pages."""

    def __init__(self, vault: Vault, keys: Keys, *, name: str, read_only: bool, patience: float) -> None:
        self.vault, self.name, self.read_only = vault, name, read_only
        self.room, self._patience = keys.room, patience
        self.overview = Overview(vault)
        self.checking = Checking(vault)
        self.seen: dict[tuple[object, ...], object] = {}
        """By page and parameters: its mark when it was last shown, and the ETag it was sent with."""
        self._start = secrets.token_urlsafe(8)
        self._sent: Counter[str] = Counter()
        self._templates = _environment()

    def now(self) -> dt.datetime:
        """The current time, for ages."""
        return dt.datetime.now(dt.UTC)

    def url(self, page: str, **parameters: object) -> str:
        """The URL of a page; parameters that are None or empty are omitted."""
        query = urlencode({name: str(value) for name, value in parameters.items() if value not in (None, "")})
        return f"/{self.room}/{page}" + (f"?{query}" if query else "")

    def show(self, template: str, *, status: int = 200, **data: Any) -> Response:
        """Render a page, or a part of one."""
        now = self.now()
        common = {
            "ui": self,
            "url": self.url,
            "now": now,
            "ago": partial(ago, now=now),
            "done": None,
            "undo": None,
            "error": None,
        }
        text = self._templates.get_template(template).render(common | data)
        return HTMLResponse(text.encode(errors="replace"), status)

    def form_of(self, thread_id: str) -> str:
        """A name for the form that sends a message to a thread: it changes with each message sent, not with each view."""
        return f"{self._start} {self._sent[thread_id]}"

    def count_sent(self, thread_id: str) -> None:
        """Give the form for the next message another name."""
        self._sent[thread_id] += 1

    def remember(self, place: tuple[object, ...], version: object) -> None:
        """Put the version of a page into `seen`, which is cleared when it is full."""
        if len(self.seen) >= MOST_SEEN:
            self.seen.clear()
        self.seen[place] = version

    def go(self, page: str, **parameters: object) -> Response:
        """Redirect to a page after a change."""
        self.overview.forget()
        return RedirectResponse(self.url(page, **parameters), 303)

    def patience(self) -> float:
        """How many seconds a page waits for the store; fewer while it is in trouble."""
        return self._patience if self.overview.trouble() is None else min(self._patience, HURRIED_S)

    def waiting(self) -> int:
        """The number of calls known to need a person."""
        held = self.overview.held(0.0)
        return sum(one.need(held) is not None for one in self.overview.known().open_calls)


def required(params: Params, name: str) -> str:
    """A parameter. Raises InvalidInputError if it is missing or empty."""
    if not params.get(name):
        raise InvalidInputError(f"{name} is missing; go back and fill it in")
    return params[name]


def whole_number(params: Params, name: str, otherwise: int) -> int:
    """A parameter that must be a whole number. Raises InvalidInputError."""
    text = params.get(name) or str(otherwise)
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidInputError(f"{name} must be a whole number, not {text!r}")
    return int(text)


def done_text(params: Params) -> str | None:
    """The message about the action that led to this page."""
    return DONE.get(params.get("done", ""))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (
        formatting.exact_time,
        formatting.short_number,
        formatting.money_text,
        formatting.duration,
        formatting.clip,
        formatting.limited_text,
        formatting.full_text,
        formatting.holder_name,
    ):
        environment.filters[function.__name__] = function
    environment.filters["size"] = size_text
    environment.filters["call_name"] = call_name
    environment.filters["began_at"] = began_at
    environment.filters["standing"] = standing
    environment.filters["offers_result"] = offers_result
    environment.globals["most_text"] = formatting.MOST_TEXT
    return environment


def _template(name: str) -> str:
    return files("savegame.web").joinpath("templates", name).read_text(encoding="utf-8")
