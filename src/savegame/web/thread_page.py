"""The page of one thread: its timeline, the state at a point, changes between two points, and the actions at a point.

A request reads one page of the timeline and one or two states, never the whole history.
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
from savegame.messages.locate import find_messages, fold, is_graph
from savegame.model import ThreadInfo, ThreadKey
from savegame.present.completion import list_left_behind
from savegame.present.diffs import changes_between
from savegame.present.effects import staying_effects, undo_command
from savegame.present.lanes import start_lanes
from savegame.runs.ledger import CallEntry
from savegame.runs.runner import RunInfo
from savegame.thread import Thread
from savegame.waiting.undoing import on_failure
from savegame.web import formatting, plots, timeline, values
from savegame.web import messages as conversation
from savegame.web.ui import Params, Ui, done_text, required, whole_number

ROWS: Final = 40
"""Checkpoints on a page of the timeline."""

ABOVE: Final = 8
"""Newer checkpoints above a point that is not on the newest page."""

MESSAGES: Final = 40
"""Messages shown at once."""

MAIL: Final = 20
"""Messages of the inbox shown at once."""

CHANGES: Final = 200
MOST_LABELS: Final = 50
CALLS: Final = 100
MOST_LEFT: Final = 1000
"""Maximum number of checkpoints counted in the preview of a rewind."""

MOST_PREVIEWED: Final = 4_000_000
"""Larger states are not opened just to show their last message in the timeline."""

VIEWS: Final = {
    "conversation": "Conversation",
    "state": "State",
    "changes": "Changes",
    "metadata": "Details",
    "calls": "Tool calls",
}
ACTIONS: Final = ("label", "tag", "fork", "rewind", "stop")


class Window(NamedTuple):
    """A page of the timeline, and how to get to the next."""

    drawing: timeline.Drawing
    states: dict[str, Checkpoint]
    """Its checkpoints with their states by id, without those whose states are large."""
    previews: dict[str, str]
    newest: bool
    before: str | None
    older: str | None
    lanes: str
    damage: CorruptionError | None
    """Why it shows a single line without branches."""


def mark(ui: Ui, params: Params) -> object:
    """A value that changes whenever this page does; always for the view of calls, whose bars grow."""
    thread_id = required(params, "id")
    (found,) = ui.vault.store.fingerprints([ThreadKey(ui.vault.namespace, thread_id)])
    overview = ui.overview
    beside = ui.waiting(), overview.trouble(), _run(ui, thread_id), overview.forks(thread_id)
    return object() if params.get("view") == "calls" or not found else (found, beside)


def show(ui: Ui, params: Params, error: SavegameError | None = None) -> Response:
    """The thread at the requested point, or at its head."""
    thread, info = _thread(ui, params)
    at = params.get("at") or info.head
    try:
        window = _window(thread, info, params)
        point, damage = _point(thread, window, at)
    except CheckpointNotFound as missing:
        raise CheckpointNotFound(f"checkpoint {at!r} does not exist in {info.id!r}; it may have been deleted") from missing
    view = params["view"] if params.get("view") in VIEWS else _first_view(point)
    doing = params["do"] if params.get("do") in ACTIONS and point is not None and not ui.read_only else None
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
        following=not params.get("at") and window.newest,
        pinned=params.get("at"),
        other=params.get("with") or None,
        doing=doing,
        params=params,
        forks=ui.overview.forks(info.id),
        run=(run := _run(ui, info.id)),
        stoppable=info.status == "in_progress" and (run is not None or _goes_on(ui, info.id)),
        talks=point is not None and not is_graph(point.state),
        done=done_text(params),
        undo=ui.url("thread", id=info.id, at=params["undo"], do="rewind") if params.get("undo") and not ui.read_only else None,
        error=error,
        **(_view_data(ui, thread, window, point, view, params) if point is not None else {}),
        **(_rewind_data(thread, point) if point is not None and doing == "rewind" else {}),
        **(_effects_data(ui, thread, point) if point is not None and doing in ("fork", "rewind") else {}),
    )


def state(ui: Ui, params: Params) -> Response:
    """The children of a place in a state: a part of the page, fetched when the place is expanded."""
    thread, _ = _thread(ui, params)
    place, first = params.get("place", ""), whole_number(params, "first", 0)
    value = values.at_place(thread.load(required(params, "at")).state, place)
    branches = values.branches(value, place, first)
    return ui.show("state.html", branches=branches, place=place, params=params, **_rest(values.count_of(value), first))


def attachment(ui: Ui, params: Params) -> Response:
    """An attachment of a message: shown if it is an image, downloaded otherwise."""
    thread, _ = _thread(ui, params)
    messages = find_messages(thread.load(required(params, "at")).state) or []
    found = conversation.get_attachment(messages, whole_number(params, "message", 0), whole_number(params, "place", 0))
    if found is None:
        raise NotFoundError("the message has no such attachment, or the state holds only its URL")
    name, data = found
    kind = conversation.image_type(data)
    how = "inline" if kind else "attachment"
    headers = {
        "Content-Disposition": f"{how}; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return Response(data, media_type=kind or "application/octet-stream", headers=headers)


def export(ui: Ui, params: Params) -> Response:
    """The thread with its whole history, as a file for `savegame import file`."""
    thread, _ = _thread(ui, params)
    folder = tempfile.TemporaryDirectory(prefix="savegame-export-")
    path = Path(folder.name) / "export.jsonl"
    with on_failure(folder.cleanup):  # also on Ctrl-C: otherwise the response removes the folder
        ui.vault.export(path, threads=[thread.id])
    name = quote(f"{thread.id}.jsonl", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return FileResponse(path, media_type="application/x-ndjson", headers=headers, background=BackgroundTask(folder.cleanup))


# -- actions ---------------------------------------------------------------------------------------


def show_failure(ui: Ui, params: Params, error: SavegameError) -> Response:
    """The page again, with the error."""
    return show(ui, params, error)


def label(ui: Ui, params: Params) -> Response:
    """Set or remove the label of a point."""
    thread, at = ui.vault.thread(required(params, "id")), required(params, "at")
    thread.label(at, params.get("label", "").strip() or None)
    return ui.go("thread", id=thread.id, at=at, done="label")


def tag(ui: Ui, params: Params) -> Response:
    """Add tags, separated by commas, to a point."""
    thread, at = ui.vault.thread(required(params, "id")), required(params, "at")
    tags = [text.strip() for text in required(params, "tags").split(",") if text.strip()]
    if not tags:
        raise InvalidInputError("no tags given; separate tags with commas")
    thread.tag(at, *tags)
    return ui.go("thread", id=thread.id, at=at, done="tag")


def untag(ui: Ui, params: Params) -> Response:
    """Remove a tag from a point."""
    thread, at = ui.vault.thread(required(params, "id")), required(params, "at")
    thread.untag(at, required(params, "tag"))
    return ui.go("thread", id=thread.id, at=at, done="untag")


def fork(ui: Ui, params: Params) -> Response:
    """Start a new thread at a point."""
    new = ui.vault.thread(required(params, "id")).fork(required(params, "name"), at=required(params, "at"))
    return ui.go("thread", id=new.id, done="fork")


def rewind(ui: Ui, params: Params) -> Response:
    """Move the head to a point, unless it has moved since the page was shown."""
    thread, head = ui.vault.thread(required(params, "id")), required(params, "head")
    try:
        thread.rewind(required(params, "at"), rerun_tools=params.get("rerun") == "yes", expect=head)
    except Busy as busy:
        run = _run(ui, thread.id)
        by = f" ({formatting.holder_name(run.owner)})" if run is not None else ""
        raise Busy(f"a run holds this thread{by}, and nothing was changed; rewind when it is done") from busy
    return ui.go("thread", id=thread.id, done="rewind", undo=head)


# -- what the page shows ---------------------------------------------------------------------------


def _thread(ui: Ui, params: Params) -> tuple[Thread, ThreadInfo]:
    thread_id = required(params, "id")
    info = ui.vault.info(thread_id)
    if info is None:
        raise ThreadNotFound(f"thread {thread_id!r} does not exist; it was deleted, or has no checkpoints yet")
    if info.damage is not None:
        raise CorruptionError(info.damage, thread_id=thread_id)
    return ui.vault.thread(thread_id), info


def _run(ui: Ui, thread_id: str) -> RunInfo | None:
    return next((run for run in ui.overview.runs() if run.thread_id == thread_id), None)


def _goes_on(ui: Ui, thread_id: str) -> bool:
    """Whether calls of a thread wait, or it sleeps: then its run goes on some time, though nothing holds or resumes it now."""
    waiting = (one.thread_id for one in ui.overview.known().open_calls)
    return thread_id in waiting or any(one.thread_id == thread_id for one in ui.overview.sleeping())


def _point(thread: Thread, window: Window, at: str) -> tuple[Checkpoint | None, CorruptionError | None]:
    try:
        return window.states.get(at) or thread.load(at), None
    except CorruptionError as error:
        return None, error


def _first_view(point: Checkpoint | None) -> str:
    return "state" if point is None or find_messages(point.state) is None else "conversation"


def _window(thread: Thread, info: ThreadInfo, params: Params) -> Window:
    """The requested page of the timeline; by default the newest, or the one with the requested point."""
    before, lanes = params.get("before") or None, params.get("lanes", "").split(",") if params.get("lanes") else []
    rows, damage = _rows(thread, before)
    if before is None:
        lanes = start_lanes(info.head)
        at = params.get("at")
        if at and all(row.id != at for row in rows[:ROWS]):
            before, lanes = at if damage else _above(thread, at), start_lanes(at)
            rows, damage = _rows(thread, before)
    drawing = timeline.draw(rows[:ROWS], lanes)
    older = rows[ROWS - 1].id if len(rows) > ROWS else None
    states = _states(thread, rows[:ROWS])
    previews = {name: text for name, point in states.items() if (text := conversation.preview(point.state))}
    return Window(drawing, states, previews, before is None, before, older, ",".join(drawing.waiting), damage)


def _rows(thread: Thread, before: str | None) -> tuple[list[Checkpoint], CorruptionError | None]:
    """A page of the timeline plus one checkpoint; after damage, the readable part of the head's line."""
    try:
        return list(thread.history(branches=True, before=before, limit=ROWS + 1)), None
    except CorruptionError as error:
        return list(_line(thread, before)), error


def _line(thread: Thread, before: str | None) -> Iterator[Checkpoint]:
    try:
        yield from thread.history(before=before, limit=ROWS + 1)
    except CorruptionError:  # the window shows the damage
        return


def _above(thread: Thread, at: str) -> str | None:
    """The checkpoint above the page that shows a point; None if that is the newest page."""
    newer = list(islice(thread.watch(since=at, timeout=dt.timedelta(0)), ABOVE + 1))
    return newer[ABOVE].id if len(newer) > ABOVE else None


def _states(thread: Thread, rows: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    """The states of a page, replayed in order: that costs little more than loading one, because they share most data."""
    small = [row for row in rows if row.size_bytes <= MOST_PREVIEWED]
    found: dict[str, Checkpoint] = {}
    try:
        found.update((point.id, point) for point in thread.replay(small))
    except (CorruptionError, NotFoundError):  # load the others one by one
        rest = ((row.id, _load_sound(thread, row.id)) for row in small if row.id not in found)
        found.update((name, point) for name, point in rest if point is not None)
    return found


def _load_sound(thread: Thread, name: str) -> Checkpoint | None:
    try:
        return thread.load(name)
    except (CorruptionError, NotFoundError):  # reported when the user selects it
        return None


def _view_data(ui: Ui, thread: Thread, window: Window, point: Checkpoint, view: str, params: Params) -> dict[str, Any]:
    """The template data of one view of a point."""
    if view == "conversation":
        return _messages_data(find_messages(point.state) or [], params) | _inbox_data(ui, thread)
    if view == "state":
        first = whole_number(params, "first", 0)
        count = values.count_of(point.state)
        whole = point.state if count else {"state": point.state}  # a leaf is shown by itself
        return {"branches": values.branches(whole, "", first, depth=2), "place": "", **_rest(count, first)}
    if view == "changes":
        return _changes_data(ui, thread, window, point, params)
    if view == "calls":
        return _calls_data(ui, thread, params)
    return {"labels": list(islice((noted for noted in thread.noted() if noted.label), MOST_LABELS))}


def _rest(count: int, first: int) -> dict[str, Any]:
    more = first + values.CHILDREN
    return {"count": count, "more": more if more < count else None}


def _messages_data(messages: Sequence[Any], params: Params) -> dict[str, Any]:
    """The newest messages, or those before the requested one."""
    end = min(whole_number(params, "until", len(messages)), len(messages))
    first = max(0, end - MESSAGES)
    views = conversation.view_messages(messages, first, end)
    return {"messages": views, "first": first, "end": end, "count": len(messages)}


def _inbox_data(ui: Ui, thread: Thread) -> dict[str, Any]:
    """The first messages that wait, and how many there are."""
    try:
        waiting = list(ui.vault.inbox(thread.id))
    except CorruptionError as error:
        return {"inbox": [], "mails": 0, "lost": error}
    return {"inbox": waiting[:MAIL], "mails": len(waiting), "lost": None}


def _changes_data(ui: Ui, thread: Thread, window: Window, point: Checkpoint, params: Params) -> dict[str, Any]:
    """The changes between a point and its parent, or another point; the older is on the left."""
    other = params.get("with")
    if other is None and (point.parent_id is None or point.forked_from is not None):
        return {"changes": [], "changed": 0, "old": None, "new": point}
    try:
        compared = window.states.get(name := other or str(point.parent_id)) or thread.load(name)
    except NotFoundError:
        if other is not None:
            raise
        return {"changes": [], "changed": 0, "old": None, "new": point}
    old, new = sorted((compared, point), key=lambda one: one.seq)
    found = changes_between(ui.vault.codec, old.state, new.state)
    diff, aside = fold(found, old.state, new.state, everything=bool(params.get("all")))
    views = values.change_views(list(diff[:CHANGES]))
    return {"changes": views, "changed": len(diff), "aside": aside, "old": old, "new": new}


def _calls_data(ui: Ui, thread: Thread, params: Params) -> dict[str, Any]:
    """The ledger as a waterfall: the newest calls, or those before the requested one."""
    never = dt.datetime.max.replace(tzinfo=dt.UTC)
    calls: list[CallEntry] = sorted(ui.vault.calls(thread.id), key=lambda call: (call.started_at or never, call.key))
    end = min(whole_number(params, "until", len(calls)), len(calls))
    page = calls[max(0, end - CALLS) : end]
    now = ui.now()
    begun, took = plots.ticks(page, now)
    held = thread.id in ui.overview.held()
    needs = {call.key: call.needs(held=held) for call in page}
    spans = plots.waterfall(page, now)
    first = max(0, end - CALLS)
    info = ui.vault.info(thread.id)
    straight = info is not None and info.checkpoints == info.step  # nothing was left: telling so would read all of it
    left = set() if straight else {effect.key for effect in ui.vault.effects(thread.id) if effect.left}
    counts = {"first": first, "count": len(calls)}
    return {"spans": spans, "begun": begun, "took": took, **counts, "needs": needs, "left_calls": left}


def _rewind_data(thread: Thread, point: Checkpoint) -> dict[str, Any]:
    """The preview of a rewind: the checkpoints that would stay as a branch."""
    try:
        left = list(islice(list_left_behind(thread, point), MOST_LEFT + 1))
    except CorruptionError as error:
        return {"left": [], "far": False, "uncounted": error}
    return {"left": left, "far": len(left) > MOST_LEFT, "uncounted": None}


def _effects_data(ui: Ui, thread: Thread, point: Checkpoint) -> dict[str, Any]:
    """The preview of a rewind or a fork: the effects that would stay in the world."""
    found: dict[str, Any] = {"staying": [], "unread": None, "undo_command": undo_command(thread.id, point.id)}
    try:
        return found | {"staying": staying_effects(ui.vault, thread.id, point)}
    except CorruptionError as error:
        return found | {"unread": error}
