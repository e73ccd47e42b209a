"""What every page has at hand: the vault, the overview, the templates, addresses of other pages. Touches vault, errors.

Templates escape everything that is put into them, always; nothing is ever marked as safe. Addresses carry ids in their
query, because an id may be anything, also `..`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from starlette.responses import HTMLResponse, RedirectResponse, Response

from savegame.errors import InvalidInputError
from savegame.present.text import ago, size_text
from savegame.vault import Vault
from savegame.web import shown
from savegame.web.checking import Checking
from savegame.web.guard import Keys
from savegame.web.overview import Overview

Asked = Mapping[str, str]
"""The parameters of a request, each given once."""

Handler = Callable[["Ui", Asked], Response]

MOST_SEEN: Final = 500
HURRIED_S: Final = 3.0

DONE: Final = {
    "label": "The label was changed.",
    "tag": "The tags were changed.",
    "untag": "The tags were changed.",
    "fork": "This is the fork: a thread of its own.",
    "rewind": "The head was moved. What came after stays as a branch.",
    "answer": "The answer was kept. The call goes on when its agent is resumed.",
    "answered": "Somebody else was quicker: the call had an answer already, or waits for none.",
    "resolve": "The outcome was kept. The agent goes on from it when it is resumed.",
}
"""What a page says after something was done."""


class Ui:
    """One vault as pages."""

    def __init__(self, vault: Vault, keys: Keys, *, name: str, read_only: bool, patience: float) -> None:
        self.vault, self.name, self.read_only = vault, name, read_only
        self.room, self._patience = keys.room, patience
        self.overview = Overview(vault)
        self.checking = Checking(vault)
        self.seen: dict[tuple[object, ...], object] = {}
        """By the address of a page: its mark when it was shown last, and what the browser was told to know it by."""
        self._templates = _environment()

    def now(self) -> dt.datetime:
        """The time that ages are counted from."""
        return dt.datetime.now(dt.UTC)

    def url(self, page: str, **parameters: object) -> str:
        """The address of a page; what is None or empty is left out."""
        query = urlencode({name: str(value) for name, value in parameters.items() if value not in (None, "")})
        return f"/{self.room}/{page}" + (f"?{query}" if query else "")

    def show(self, template: str, *, status: int = 200, **data: Any) -> Response:
        """A page, or a part of one."""
        now = self.now()
        at_hand = {
            "ui": self,
            "url": self.url,
            "now": now,
            "ago": partial(ago, now=now),
            "done": None,
            "undo": None,
            "error": None,
        }
        text = self._templates.get_template(template).render(at_hand | data)
        return HTMLResponse(text.encode(errors="replace"), status)

    def remember(self, place: tuple[object, ...], shown: object) -> None:
        """Keep in `seen` how a page was shown; not of ever more pages."""
        if len(self.seen) >= MOST_SEEN:
            self.seen.clear()
        self.seen[place] = shown

    def go(self, page: str, **parameters: object) -> Response:
        """After something was changed: the browser asks for a page."""
        self.overview.forget()
        return RedirectResponse(self.url(page, **parameters), 303)

    def patience(self) -> float:
        """How many seconds a page waits for the store: few, while it is known to be in trouble."""
        return self._patience if self.overview.trouble() is None else min(self._patience, HURRIED_S)

    def waiting(self) -> int:
        """How many calls need a person, as far as is known."""
        held = self.overview.held(0.0)
        return sum(one.need(held) is not None for one in self.overview.known().pending)


def needed(asked: Asked, name: str) -> str:
    """A parameter that must be there. Raises InvalidInputError."""
    if not asked.get(name):
        raise InvalidInputError(f"{name} is missing; go back and fill it in")
    return asked[name]


def number(asked: Asked, name: str, otherwise: int) -> int:
    """A parameter that is a whole number. Raises InvalidInputError."""
    text = asked.get(name) or str(otherwise)
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidInputError(f"{name} must be a whole number, not {text!r}")
    return int(text)


def said_done(asked: Asked) -> str | None:
    """What a page says about what was done just before."""
    return DONE.get(asked.get("done", ""))


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (
        shown.exact,
        shown.brief,
        shown.money,
        shown.lasting,
        shown.clipped,
        shown.plain,
        shown.whole,
        shown.holder,
    ):
        made.filters[function.__name__] = function
    made.filters["size"] = size_text
    made.globals["most_text"] = shown.MOST_TEXT
    return made


def _template(name: str) -> str:
    return files("savegame.web").joinpath("templates", name).read_text(encoding="utf-8")
