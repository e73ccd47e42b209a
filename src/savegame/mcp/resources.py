"""Threads and checkpoints as resources: their addresses, and what is behind them, which is what the tools answer.

A thread is `savegame://threads/ID`, its history; a checkpoint `savegame://threads/ID/checkpoints/REF`, its state. Ids are
percent-encoded. Touches tools, shapes and the vault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Final

from mcp import UriTemplate, types

from savegame.errors import InvalidInputError
from savegame.mcp import shapes
from savegame.mcp.tools import Tools
from savegame.model import ThreadInfo
from savegame.present.completion import checkpoints_named, threads_named
from savegame.vault import Vault

PAGE: Final = 100
COMPLETIONS: Final = 100
"""The protocol's own limit."""

THREAD: Final = UriTemplate.parse("savegame://threads/{thread_id}{?after}")
CHECKPOINT: Final = UriTemplate.parse("savegame://threads/{thread_id}/checkpoints/{checkpoint}{?path,start}")


class Resources:
    """What can be read at an address, without calling a tool."""

    def __init__(self, vault: Vault, tools: Tools) -> None:
        self._vault = vault
        self._tools = tools

    def threads(self, cursor: str | None) -> types.ListResourcesResult:
        """Threads by id, a page of them."""
        found, more = self._tools.page(self._vault.threads(after=cursor), PAGE, _listed)
        return types.ListResourcesResult(resources=found, next_cursor=found[-1].name if more else None)

    def templates(self) -> list[types.ResourceTemplate]:
        """How addresses are made."""
        return [
            types.ResourceTemplate(
                uri_template=str(THREAD),
                name="thread",
                title="A thread",
                description="The checkpoints of a thread, newest first; after reads on.",
                mime_type="application/json",
            ),
            types.ResourceTemplate(
                uri_template=str(CHECKPOINT),
                name="checkpoint",
                title="A checkpoint",
                description="The state at a checkpoint (id, prefix, label, head, head~2, step); path: a JSON pointer into it.",
                mime_type="application/json",
            ),
        ]

    def read(self, uri: str) -> shapes.History | shapes.StateLoaded:
        """What is at an address. Raises InvalidInputError for one that is not ours, NotFoundError for nothing."""
        if named := _matched(CHECKPOINT, uri):
            start = named.get("start", "0")
            if not re.fullmatch(r"-?\d{1,18}", start):
                raise InvalidInputError(f"start must be a whole number, not {start!r}")
            return self._tools.thread_load(
                thread_id=named["thread_id"], at=named["checkpoint"], path=named.get("path", ""), start=int(start)
            )
        if named := _matched(THREAD, uri):
            return self._tools.thread_history(thread_id=named["thread_id"], after=named.get("after"))
        raise InvalidInputError(f"{uri!r} is no address of this server; they are like {THREAD} and {CHECKPOINT}")

    def complete(self, name: str, begun: str, known: Mapping[str, str]) -> list[str]:
        """Ids of threads, or names of checkpoints of a known thread, that begin like this."""
        if name == "thread_id":
            return list(islice(threads_named(self._vault, begun), COMPLETIONS))
        if name == "checkpoint" and known.get("thread_id"):
            return checkpoints_named(self._vault.thread(known["thread_id"]), begun)[:COMPLETIONS]
        return []


def _matched(template: UriTemplate, uri: str) -> dict[str, str] | None:
    found = template.match(uri)
    return None if found is None else {name: value for name, value in found.items() if isinstance(value, str)}


def _listed(info: ThreadInfo) -> types.Resource:
    about = f"step {info.step}, {info.checkpoints} checkpoints, {info.status!r}" if info.damage is None else info.damage
    return types.Resource(
        uri=THREAD.expand({"thread_id": info.id}),
        name=info.id,
        description=f"{about}, agent {info.agent_id}" if info.agent_id else about,
        mime_type="application/json",
        annotations=types.Annotations(last_modified=info.updated_at.isoformat()),
    )
