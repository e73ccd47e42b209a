"""The page of all threads: filter, sort, search.

Its rows come from the overview, which is kept up to date in the background, so that the page never reads every thread while a
user waits. Touches overview and ui.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from starlette.responses import Response

from savegame.errors import UnsupportedError
from savegame.model import Status, ThreadInfo
from savegame.present.families import nested, short_name
from savegame.store import Capability
from savegame.web.overview import ThreadSummary
from savegame.web.ui import Params, Ui, done_text, whole_number

LISTED: Final = 50
MOST_CHOICES: Final = 200
"""Maximum number of agents and tags in the filters."""

MARKERS: Final = ("\x02", "\x03")
"""Marks around matches, until the page highlights them."""

SORTS: Final[dict[str, tuple[str, Callable[[ThreadInfo], Any], bool]]] = {
    "active": ("last activity", lambda info: info.updated_at, True),
    "id": ("id", lambda info: info.id, False),
    "steps": ("checkpoints", lambda info: info.checkpoints, True),
    "size": ("size", lambda info: info.size_bytes, True),
}


def mark(ui: Ui, params: Params) -> object:
    """A value that changes whenever this page does."""
    return ui.overview.version()


def show(ui: Ui, params: Params) -> Response:
    """A page of the threads that match the filters."""
    found = ui.overview.snapshot()
    entries = [(entry, entry.info) for entry in found.entries if entry.info is not None]
    sort = params["sort"] if params.get("sort") in SORTS else "active"
    _, key, backwards = SORTS[sort]
    fitting = sorted((pair for pair in entries if _fits(*pair, params)), key=lambda pair: pair[1].id)
    fitting.sort(key=lambda pair: key(pair[1]), reverse=backwards)
    fitting.sort(key=lambda pair: _far(pair[1].id, params))
    first, held = whole_number(params, "first", 0), ui.overview.held()
    rows = [(*pair, below) for pair, below in nested(fitting, lambda pair: pair[1])]
    return ui.show(
        "threads.html",
        found=found,
        params=params,
        sort=sort,
        sorts={name: label for name, (label, _, _) in SORTS.items()},
        rows=rows[first : first + LISTED],
        short_name=short_name,
        count=len(fitting),
        first=first,
        page=LISTED,
        agents=_choices(info.agent_id for _, info in entries if info.agent_id),
        tags=_choices(tag for entry, _ in entries for tag in entry.tags),
        statuses=Status.NAMES,
        running=held,
        needy={one.thread_id for one in found.open_calls if one.need(held)},
        searches=Capability.SEARCH in ui.vault.store.capabilities,
        done=done_text(params),
    )


def hits(ui: Ui, params: Params) -> Response:
    """The threads whose messages match the query: a part of the page that loads later, because searching may take long."""
    try:
        found = ui.vault.search(params.get("q", ""), agent=params.get("agent") or None, limit=20, markers=MARKERS)
    except UnsupportedError as error:
        return ui.show("hits.html", hits=[], skipped=(), params=params, problem=str(error))
    rows = [(hit, _split_matches(hit.snippet)) for hit in found]
    return ui.show("hits.html", hits=rows, skipped=found.skipped, params=params, problem=None)


def _fits(entry: ThreadSummary, info: ThreadInfo, params: Params) -> bool:
    text = params.get("q", "").strip().casefold()
    return (
        (not text or text in info.id.casefold() or text in (info.agent_id or "").casefold())
        and params.get("agent", "") in ("", info.agent_id)
        and params.get("status", "") in ("", "damaged" if info.damage else str.__str__(info.status))
        and (not params.get("tag") or params["tag"] in entry.tags)
    )


def _far(thread_id: str, params: Params) -> int:
    """How well an id matches the query: 0 if equal, 1 for a prefix, 2 otherwise."""
    text, name = params.get("q", "").strip().casefold(), thread_id.casefold()
    return 0 if not text or name == text else 1 if name.startswith(text) else 2


def _choices(names: Iterable[str]) -> list[str]:
    return sorted(set(names))[:MOST_CHOICES]


def _split_matches(snippet: str) -> list[tuple[str, bool]]:
    """The pieces of a snippet, and whether each is a match."""
    pieces: list[tuple[str, bool]] = []
    for part in snippet.split(MARKERS[0]):
        word, mark, rest = part.partition(MARKERS[1])
        pieces += [(word, True), (rest, False)] if mark else [(part, False)]
    return [piece for piece in pieces if piece[0]]
