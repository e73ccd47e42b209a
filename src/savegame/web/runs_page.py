"""The page of runs: calls that need a person, running, stale, sleeping and stuck runs.

Answers and resolutions are the only writes here, and go through the vault as those of any other program do. Touches overview
and ui.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from savegame.errors import InvalidInputError, SavegameError
from savegame.web.overview import select_needing
from savegame.web.ui import Params, Ui, done_text, required


def show(ui: Ui, params: Params, error: SavegameError | None = None) -> Response:
    """All runs by what they need."""
    ui.overview.runs(0.0)  # so that both are read at the same time
    found, runs = ui.overview.snapshot(), ui.overview.runs()
    held = [run for run in runs if not run.stale]
    busy = {run.thread_id for run in held}
    infos = [entry.info for entry in found.entries if entry.info is not None]
    return ui.show(
        "runs.html",
        status=200 if error is None else error.http_status,
        found=found,
        waiting=select_needing(found.open_calls, "answer", busy),
        answered=[one for one in found.open_calls if one.call.answered],
        unknown=select_needing(found.open_calls, "outcome", busy),
        held=held,
        stale=[run for run in runs if run.stale],
        asleep=[one for one in ui.overview.sleeping() if one.until > ui.now()],
        stoppable={info.id for info in infos if info.status == "in_progress"},
        stuck=[info for info in infos if info.status == "failed" and (info.status.reason or "").startswith("stuck")],
        done=done_text(params),
        error=error,
    )


def show_failure(ui: Ui, params: Params, error: SavegameError) -> Response:
    """The page again, with the error."""
    return show(ui, params, error)


def answer(ui: Ui, params: Params) -> Response:
    """Approve or reject a call, with a comment that the model gets on a rejection; or answer an interrupt with a value."""
    verdict, given = required(params, "verdict"), params.get("value", "")
    if verdict not in ("approve", "reuse", "reject", "text", "json"):
        raise InvalidInputError(f"verdict must be approve, reuse, reject, text or json, not {verdict!r}")
    value = given if verdict == "text" else _json(given) if verdict == "json" else verdict in ("approve", "reuse")
    thread_id, key = required(params, "id"), required(params, "call")
    if verdict in ("text", "json") and not any(one.interrupt for one in ui.vault.calls(thread_id) if one.key == key):
        raise InvalidInputError(f"the graph of {thread_id!r} does not wait for {key!r} any more, or it is a tool call; reload")
    first = ui.vault.answer(thread_id, key, value, comment=params.get("comment") or None, reuse=verdict == "reuse")
    return ui.go("runs", done="answer" if first else "answered")


def resolve(ui: Ui, params: Params) -> Response:
    """Record the outcome of a call: its result as text or JSON, or its error."""
    outcome, text = required(params, "outcome"), params.get("text", "")
    if outcome not in ("text", "json", "failed"):
        raise InvalidInputError(f"outcome must be text, json or failed, not {outcome!r}")
    error = (text or "it did not happen") if outcome == "failed" else None
    result = None if error is not None else _json(text) if outcome == "json" else text
    ui.vault.resolve(required(params, "id"), required(params, "call"), result, error=error)
    return ui.go("runs", done="resolve")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"this is not JSON: {error}; correct it or send it as text") from error
