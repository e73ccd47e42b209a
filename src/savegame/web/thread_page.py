"""The page of one thread: its timeline, what was there at a point, what changed between two, and what can be done there.

Every request reads a page of the timeline and one or two states, never a whole history. Touches ui, timeline, messages,
values, plots, vault.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from savegame.checkpoint import Checkpoint
from savegame.errors import (
    Busy,
    CheckpointNotFound,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    SavegameError,
    ThreadNotFound,
)
from savegame.messages.transcript import messages_in
from savegame.model import ThreadInfo, ThreadKey
from savegame.present.completion import left_behind
from savegame.present.diffs import changes_between
from savegame.present.lanes import start
from savegame.runs.ledger import CallEntry
from savegame.runs.runner import RunInfo
from savegame.thread import Thread
from savegame.web import messages as conversation
from savegame.web import plots, shown, timeline, values
from savegame.web.ui import Asked, Ui, needed, number, said_done

PAGE: Final = 40
"""Checkpoints on a page of the timeline."""

ABOVE: Final = 8
"""How many newer ones stand above a point that is not among the newest."""

SAID: Final = 40
"""Messages that are shown at once."""

CHANGES: Final = 200
LABELS: Final = 50
CALLS: Final = 100
MOST_LEFT: Final = 1000
"""Checkpoints that are counted before a rewind, to say how many would be left behind."""

MOST_PREVIEWED: Final = 4_000_000
"""States of more bytes are not opened just to show their last message in the timeline."""

VIEWS: Final = {
    "conversation": "Conversation",
    "state": "State",
    "changes": "Changes",
    "metadata": "Details",
    "calls": "Tool calls",
}
ACTIONS: Final = ("label", "tag", "fork", "rewind")


class Window(NamedTuple):
    """A page of the timeline: what it shows, and how to get to the next."""

    drawing: timeline.Drawing
    states: dict[str, Checkpoint]
    """Its checkpoints with their states, by id, but for those whose states are large."""
    previews: dict[str, str]
    newest: bool
    before: str | None
    older: str | None
    lanes: str
    damage: CorruptionError | None
    """Why it shows one line without its branches."""


def mark(ui: Ui, asked: Asked) -> object:
    """Another one whenever this page would be; that of the bars of calls always is, since they grow."""
    thread_id = needed(asked, "id")
    (found,) = ui.vault.store.fingerprints([ThreadKey(ui.vault.namespace, thread_id)])
    overview = ui.overview
    beside = ui.waiting(), overview.trouble(), _run(ui, thread_id), overview.forks(thread_id)
    return object() if asked.get("view") == "calls" or not found else (found, beside)


def show(ui: Ui, asked: Asked, error: SavegameError | None = None) -> Response:
    """The thread, with a point of it: the one that was asked for, or the head."""
    thread, info = _thread(ui, asked)
    at = asked.get("at") or info.head
    try:
        window = _window(thread, info, asked)
        point, damage = _point(thread, window, at)
    except CheckpointNotFound as missing:
        raise CheckpointNotFound(f"there is no checkpoint {at!r} in {info.id!r}, or not any more") from missing
    view = asked["view"] if asked.get("view") in VIEWS else _first_view(point)
    doing = asked["do"] if asked.get("do") in ACTIONS and point is not None and not ui.read_only else None
    return ui.show(
        "thread.html",
        status=200 if error is None else error.http_status,
        info=info,
        window=window,
        height=timeline.HEIGHT,
        middle=timeline.MIDDLE,
        point=point,
        damage=damage,
        view=view,
        views=VIEWS,
        following=not asked.get("at") and window.newest,
        pinned=asked.get("at"),
        other=asked.get("with") or None,
        doing=doing,
        asked=asked,
        forks=ui.overview.forks(info.id),
        run=_run(ui, info.id),
        done=said_done(asked),
        undo=ui.url("thread", id=info.id, at=asked["undo"], do="rewind") if asked.get("undo") and not ui.read_only else None,
        error=error,
        **(_shown(ui, thread, window, point, view, asked) if point is not None else {}),
        **(_moving(thread, point) if point is not None and doing == "rewind" else {}),
    )


def state(ui: Ui, asked: Asked) -> Response:
    """The children of one place in a state: a part of the page that is fetched when the place is opened."""
    thread, _ = _thread(ui, asked)
    place, first = asked.get("place", ""), number(asked, "first", 0)
    value = values.at_place(thread.load(needed(asked, "at")).state, place)
    shown = values.branches(value, place, first)
    return ui.show("state.html", branches=shown, place=place, asked=asked, **_rest(values.count_of(value), first))


def attachment(ui: Ui, asked: Asked) -> Response:
    """What is attached to a message: a picture to look at, anything else only to be kept as a file."""
    thread, _ = _thread(ui, asked)
    said = messages_in(thread.load(needed(asked, "at")).state) or []
    found = conversation.attached(said, number(asked, "message", 0), number(asked, "place", 0))
    if found is None:
        raise NotFoundError("the message has no such attachment, or only its address is kept")
    name, data = found
    kind = conversation.image_type(data)
    how = "inline" if kind else "attachment"
    headers = {
        "Content-Disposition": f"{how}; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return Response(data, media_type=kind or "application/octet-stream", headers=headers)


def export(ui: Ui, asked: Asked) -> Response:
    """The thread with its whole history as a file that `savegame import file` reads."""
    thread, _ = _thread(ui, asked)
    folder = tempfile.TemporaryDirectory(prefix="savegame-export-")
    path = Path(folder.name) / "export.jsonl"
    try:
        ui.vault.export(path, threads=[thread.id])
    except BaseException:
        folder.cleanup()
        raise
    name = quote(f"{thread.id}.jsonl", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return FileResponse(path, media_type="application/x-ndjson", headers=headers, background=BackgroundTask(folder.cleanup))


# -- what can be done ------------------------------------------------------------------------------


def failed(ui: Ui, asked: Asked, error: SavegameError) -> Response:
    """The page again, with what went wrong."""
    return show(ui, asked, error)


def label(ui: Ui, asked: Asked) -> Response:
    """Give a point a label, or take it away."""
    thread, at = ui.vault.thread(needed(asked, "id")), needed(asked, "at")
    thread.label(at, asked.get("label", "").strip() or None)
    return ui.go("thread", id=thread.id, at=at, done="label")


def tag(ui: Ui, asked: Asked) -> Response:
    """Add tags to a point, parted by commas."""
    thread, at = ui.vault.thread(needed(asked, "id")), needed(asked, "at")
    tags = [text.strip() for text in needed(asked, "tags").split(",") if text.strip()]
    if not tags:
        raise InvalidInputError("there is no tag between the commas; type one")
    thread.tag(at, *tags)
    return ui.go("thread", id=thread.id, at=at, done="tag")


def untag(ui: Ui, asked: Asked) -> Response:
    """Take a tag from a point."""
    thread, at = ui.vault.thread(needed(asked, "id")), needed(asked, "at")
    thread.untag(at, needed(asked, "tag"))
    return ui.go("thread", id=thread.id, at=at, done="untag")


def fork(ui: Ui, asked: Asked) -> Response:
    """A new thread that begins at a point."""
    made = ui.vault.thread(needed(asked, "id")).fork(needed(asked, "name"), at=needed(asked, "at"))
    return ui.go("thread", id=made.id, done="fork")


def rewind(ui: Ui, asked: Asked) -> Response:
    """Move the head to a point, if it still is where the person saw it; else the page again, as it is now."""
    thread, head = ui.vault.thread(needed(asked, "id")), needed(asked, "head")
    try:
        thread.rewind(needed(asked, "at"), rerun_tools=asked.get("rerun") == "yes", expect=head)
    except Busy as busy:
        run = _run(ui, thread.id)
        by = f" ({shown.holder(run.owner)})" if run is not None else ""
        raise Busy(f"a run holds this thread{by}; nothing was changed; rewind when it is done") from busy
    return ui.go("thread", id=thread.id, done="rewind", undo=head)


# -- what is shown ---------------------------------------------------------------------------------


def _thread(ui: Ui, asked: Asked) -> tuple[Thread, ThreadInfo]:
    thread_id = needed(asked, "id")
    info = ui.vault.info(thread_id)
    if info is None:
        raise ThreadNotFound(f"there is no thread {thread_id!r}: it was deleted, or nothing was saved yet")
    if info.damage is not None:
        raise CorruptionError(info.damage, thread_id=thread_id)
    return ui.vault.thread(thread_id), info


def _run(ui: Ui, thread_id: str) -> RunInfo | None:
    return next((run for run in ui.overview.runs() if run.thread_id == thread_id), None)


def _point(thread: Thread, window: Window, at: str) -> tuple[Checkpoint | None, CorruptionError | None]:
    try:
        return window.states.get(at) or thread.load(at), None
    except CorruptionError as error:
        return None, error


def _first_view(point: Checkpoint | None) -> str:
    return "state" if point is None or messages_in(point.state) is None else "conversation"


def _window(thread: Thread, info: ThreadInfo, asked: Asked) -> Window:
    """The page of the timeline that was asked for, else the newest, else that around the point."""
    before, lanes = asked.get("before") or None, asked.get("lanes", "").split(",") if asked.get("lanes") else []
    rows, damage = _rows(thread, before)
    if before is None:
        lanes = start(info.head)
        at = asked.get("at")
        if at and all(row.id != at for row in rows[:PAGE]):
            before, lanes = at if damage else _above(thread, at), start(at)
            rows, damage = _rows(thread, before)
    drawing = timeline.draw(rows[:PAGE], lanes)
    older = rows[PAGE - 1].id if len(rows) > PAGE else None
    states = _states(thread, rows[:PAGE])
    previews = {name: text for name, point in states.items() if (text := conversation.preview(point.state))}
    return Window(drawing, states, previews, before is None, before, older, ",".join(drawing.waiting), damage)


def _rows(thread: Thread, before: str | None) -> tuple[list[Checkpoint], CorruptionError | None]:
    """A page of the timeline and one more; if something there is damaged, of one line only, as far as it can be read."""
    try:
        return list(thread.history(branches=True, before=before, limit=PAGE + 1)), None
    except CorruptionError as error:
        return list(_line(thread, before)), error


def _line(thread: Thread, before: str | None) -> Iterator[Checkpoint]:
    try:
        yield from thread.history(before=before, limit=PAGE + 1)
    except CorruptionError:  # the window says it
        return


def _above(thread: Thread, at: str) -> str | None:
    """The checkpoint just above the page that shows a point; None if that is the newest page."""
    newer = list(islice(thread.watch(since=at, timeout=dt.timedelta(0)), ABOVE + 1))
    return newer[ABOVE].id if len(newer) > ABOVE else None


def _states(thread: Thread, rows: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    """One after the other, which costs hardly more than one of them: what they have in common is there once."""
    small = [row for row in rows if row.size_bytes <= MOST_PREVIEWED]
    found: dict[str, Checkpoint] = {}
    try:
        found.update((point.id, point) for point in thread.replay(small))
    except (CorruptionError, NotFoundError):  # the others are read one by one
        found.update((row.id, point) for row in small if row.id not in found and (point := _sound(thread, row.id)) is not None)
    return found


def _sound(thread: Thread, name: str) -> Checkpoint | None:
    try:
        return thread.load(name)
    except (CorruptionError, NotFoundError):  # who chooses it is told; what is gone is gone
        return None


def _shown(ui: Ui, thread: Thread, window: Window, point: Checkpoint, view: str, asked: Asked) -> dict[str, Any]:
    """What one view of a point needs."""
    if view == "conversation":
        return _said(messages_in(point.state) or [], asked)
    if view == "state":
        first = number(asked, "first", 0)
        count = values.count_of(point.state)
        whole = point.state if count else {"state": point.state}  # what has no children is shown by itself
        return {"branches": values.branches(whole, "", first, depth=2), "place": "", **_rest(count, first)}
    if view == "changes":
        return _changed(ui, thread, window, point, asked.get("with"))
    if view == "calls":
        return _called(ui, thread, asked)
    return {"labels": list(islice((noted for noted in thread.noted() if noted.label), LABELS))}


def _rest(count: int, first: int) -> dict[str, Any]:
    more = first + values.PAGE
    return {"count": count, "more": more if more < count else None}


def _said(said: Sequence[Any], asked: Asked) -> dict[str, Any]:
    """The newest messages, or those up to a number."""
    end = min(number(asked, "until", len(said)), len(said))
    first = max(0, end - SAID)
    return {"said": conversation.viewed(said, first, end), "first": first, "end": end, "count": len(said)}


def _changed(ui: Ui, thread: Thread, window: Window, point: Checkpoint, other: str | None) -> dict[str, Any]:
    """What changed up to a point since the one before it, or between it and another one; the older is on the left."""
    if other is None and (point.parent_id is None or point.forked_from is not None):
        return {"changes": [], "changed": 0, "old": None, "new": point}
    try:
        compared = window.states.get(name := other or str(point.parent_id)) or thread.load(name)
    except NotFoundError:
        if other is not None:
            raise
        return {"changes": [], "changed": 0, "old": None, "new": point}
    old, new = sorted((compared, point), key=lambda one: one.seq)
    diff = changes_between(ui.vault.codec, old.state, new.state)
    return {"changes": values.differences(diff[:CHANGES]), "changed": len(diff), "old": old, "new": new}


def _called(ui: Ui, thread: Thread, asked: Asked) -> dict[str, Any]:
    """The ledger as a waterfall: the newest calls, or those up to a number."""
    never = dt.datetime.max.replace(tzinfo=dt.UTC)
    calls: list[CallEntry] = sorted(ui.vault.calls(thread.id), key=lambda call: (call.started_at or never, call.key))
    end = min(number(asked, "until", len(calls)), len(calls))
    shown = calls[max(0, end - CALLS) : end]
    now = ui.now()
    begun, took = plots.ticks(shown, now)
    held = thread.id in ui.overview.held()
    needs = {call.key: call.needs(held=held) for call in shown}
    spans = plots.waterfall(shown, now)
    return {"spans": spans, "begun": begun, "took": took, "first": max(0, end - CALLS), "count": len(calls), "needs": needs}


def _moving(thread: Thread, point: Checkpoint) -> dict[str, Any]:
    """What a rewind would do: which checkpoints would be left behind as a branch."""
    try:
        left = list(islice(left_behind(thread, point), MOST_LEFT + 1))
    except CorruptionError as error:
        return {"left": [], "far": False, "uncounted": error}
    return {"left": left, "far": len(left) > MOST_LEFT, "uncounted": None}
