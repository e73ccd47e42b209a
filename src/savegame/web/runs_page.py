"""The page of runs: calls that need a person, who holds what, what is stale or stuck. Touches ui, overview, vault."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from savegame.errors import InvalidInputError, SavegameError
from savegame.web.overview import needing
from savegame.web.ui import Asked, Ui, needed, said_done


def show(ui: Ui, asked: Asked, error: SavegameError | None = None) -> Response:
    """What runs, and what does not and why."""
    ui.overview.runs(0.0)  # both are read at once
    found, runs = ui.overview.snapshot(), ui.overview.runs()
    held = [run for run in runs if not run.stale]
    busy = {run.thread_id for run in held}
    infos = [entry.info for entry in found.entries if entry.info is not None]
    return ui.show(
        "runs.html",
        status=200 if error is None else error.http_status,
        found=found,
        waiting=needing(found.pending, "answer", busy),
        answered=[one for one in found.pending if one.call.answered],
        unknown=needing(found.pending, "outcome", busy),
        held=held,
        stale=[run for run in runs if run.stale],
        stuck=[info for info in infos if info.status == "failed" and (info.status.reason or "").startswith("stuck")],
        done=said_done(asked),
        error=error,
    )


def failed(ui: Ui, asked: Asked, error: SavegameError) -> Response:
    """The page again, with what went wrong."""
    return show(ui, asked, error)


def answer(ui: Ui, asked: Asked) -> Response:
    """Let a call go on, or refuse it and tell the model why."""
    verdict = needed(asked, "verdict")
    if verdict not in ("approve", "reject"):
        raise InvalidInputError(f"an answer is approve or reject, not {verdict!r}")
    comment = asked.get("comment") or None
    taken = ui.vault.answer(needed(asked, "id"), needed(asked, "call"), verdict == "approve", comment=comment)
    return ui.go("runs", done="answer" if taken else "answered")


def resolve(ui: Ui, asked: Asked) -> Response:
    """Say what became of a call: its result, as text or JSON, or how it failed."""
    outcome, text = needed(asked, "outcome"), asked.get("text", "")
    if outcome not in ("text", "json", "failed"):
        raise InvalidInputError(f"an outcome is text, json or failed, not {outcome!r}")
    error = (text or "it did not happen") if outcome == "failed" else None
    result = None if error is not None else _json(text) if outcome == "json" else text
    ui.vault.resolve(needed(asked, "id"), needed(asked, "call"), result, error=error)
    return ui.go("runs", done="resolve")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the result is not JSON: {error}; send it as text, or mend it") from error
