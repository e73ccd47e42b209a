"""The page of all threads: filtered, sorted, searched. Touches ui, overview, vault."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from starlette.responses import Response

from savegame.errors import UnsupportedError
from savegame.model import Status, ThreadInfo
from savegame.store import Capability
from savegame.web.overview import Entry
from savegame.web.ui import Asked, Ui, number, said_done

PAGE: Final = 50
MOST_CHOICES: Final = 200
"""How many agents and tags there are to choose from."""

MARKERS: Final = ("\x02", "\x03")
"""What stands around the words that were found, until they are marked on the page."""

SORTS: Final[dict[str, tuple[str, Callable[[ThreadInfo], Any], bool]]] = {
    "active": ("last activity", lambda info: info.updated_at, True),
    "id": ("id", lambda info: info.id, False),
    "steps": ("checkpoints", lambda info: info.checkpoints, True),
    "size": ("size", lambda info: info.size_bytes, True),
}


def mark(ui: Ui, asked: Asked) -> object:
    """Another one whenever this page would be: all that it shows is of the overview."""
    return ui.overview.version()


def show(ui: Ui, asked: Asked) -> Response:
    """Threads that fit what was asked for, a page of them."""
    found = ui.overview.snapshot()
    entries = [(entry, entry.info) for entry in found.entries if entry.info is not None]
    sort = asked["sort"] if asked.get("sort") in SORTS else "active"
    _, key, backwards = SORTS[sort]
    fitting = sorted((pair for pair in entries if _fits(*pair, asked)), key=lambda pair: pair[1].id)
    fitting.sort(key=lambda pair: key(pair[1]), reverse=backwards)
    fitting.sort(key=lambda pair: _far(pair[1].id, asked))
    first, held = number(asked, "first", 0), ui.overview.held()
    return ui.show(
        "threads.html",
        found=found,
        asked=asked,
        sort=sort,
        sorts={name: label for name, (label, _, _) in SORTS.items()},
        rows=fitting[first : first + PAGE],
        count=len(fitting),
        first=first,
        page=PAGE,
        agents=_choices(info.agent_id for _, info in entries if info.agent_id),
        tags=_choices(tag for entry, _ in entries for tag in entry.tags),
        statuses=Status.NAMES,
        running=held,
        needy={one.thread_id for one in found.pending if one.need(held)},
        searches=Capability.SEARCH in ui.vault.store.capabilities,
        done=said_done(asked),
    )


def hits(ui: Ui, asked: Asked) -> Response:
    """The threads whose messages hold what was asked for; a part of the page that comes later, since it may take long."""
    try:
        found = ui.vault.search(asked.get("q", ""), agent=asked.get("agent") or None, limit=20, markers=MARKERS)
    except UnsupportedError as error:
        return ui.show("hits.html", hits=[], skipped=(), asked=asked, problem=str(error))
    shown = [(hit, _marked(hit.snippet)) for hit in found]
    return ui.show("hits.html", hits=shown, skipped=found.skipped, asked=asked, problem=None)


def _fits(entry: Entry, info: ThreadInfo, asked: Asked) -> bool:
    text = asked.get("q", "").strip().casefold()
    return (
        (not text or text in info.id.casefold() or text in (info.agent_id or "").casefold())
        and asked.get("agent", "") in ("", info.agent_id)
        and asked.get("status", "") in ("", "damaged" if info.damage else str.__str__(info.status))
        and (not asked.get("tag") or asked["tag"] in entry.tags)
    )


def _far(thread_id: str, asked: Asked) -> int:
    """How far an id is from what was typed: that itself, one that begins so, another."""
    text, name = asked.get("q", "").strip().casefold(), thread_id.casefold()
    return 0 if not text or name == text else 1 if name.startswith(text) else 2


def _choices(names: Iterable[str]) -> list[str]:
    return sorted(set(names))[:MOST_CHOICES]


def _marked(snippet: str) -> list[tuple[str, bool]]:
    """A snippet in pieces, and whether each is a word that was found."""
    pieces: list[tuple[str, bool]] = []
    for part in snippet.split(MARKERS[0]):
        word, mark, rest = part.partition(MARKERS[1])
        pieces += [(word, True), (rest, False)] if mark else [(part, False)]
    return [piece for piece in pieces if piece[0]]
