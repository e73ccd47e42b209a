"""What a person tells the run of a thread: a message, that a message is taken back, to stop. Touches vault and ui.

No run needs to be alive, and a live one is not disturbed: it looks when it next comes to it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from starlette.responses import Response

from savegame.errors import NotFoundError, SavegameError
from savegame.web import runs_page, thread_page
from savegame.web.ui import Params, Ui, required

UNEXPLAINED: Final = "stopped on the web page"


def send(ui: Ui, params: Params) -> Response:
    """Send a message. The same text from the same form counts once: people click twice."""
    thread_id, content = required(params, "id"), required(params, "content").replace("\r\n", "\n")
    key = hashlib.blake2b(f"{params.get('form', '')} {content}".encode(), digest_size=16).hexdigest()
    new = ui.vault.send(thread_id, content, key=f"page:{key}")
    ui.count_sent(thread_id)
    return ui.go("thread", id=thread_id, done="send" if new else "sent")


def unsend(ui: Ui, params: Params) -> Response:
    """Take a message back."""
    thread_id = required(params, "id")
    if not ui.vault.unsend(thread_id, required(params, "key")):
        raise NotFoundError("a run took this message in, or it was taken back already; nothing was changed")
    return ui.go("thread", id=thread_id, done="unsend")


def stop(ui: Ui, params: Params) -> Response:
    """Stop a run, from the page of its thread or that of all runs."""
    thread_id = required(params, "id")
    stopped = ui.vault.stop(thread_id, params.get("reason", "").strip() or UNEXPLAINED)
    done = "stop" if stopped else "ended"
    return ui.go("runs", done=done) if params.get("back") == "runs" else ui.go("thread", id=thread_id, done=done)


def show_failure(ui: Ui, params: Params, error: SavegameError) -> Response:
    """The page with the form again, with the error."""
    show = runs_page.show_failure if params.get("back") == "runs" else thread_page.show_failure
    return show(ui, params, error)
