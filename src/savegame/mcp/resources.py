"""Threads and checkpoints as resources, with the same contents as the answers of the tools.

`savegame://threads/ID` is the history of a thread, `savegame://threads/ID/checkpoints/REF` the state of a checkpoint. Ids are
percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Final

from mcp import UriTemplate, types

from savegame.errors import InvalidInputError
from savegame.mcp import schemas
from savegame.mcp.paging import fill_page
from savegame.mcp.tools import Tools
from savegame.model import ThreadInfo
from savegame.present.completion import matching_checkpoints, matching_threads
from savegame.vault import Vault

RESOURCES: Final = 100
COMPLETIONS: Final = 100
"""The limit of the protocol."""

THREAD_URI: Final = UriTemplate.parse("savegame://threads/{thread_id}{?after}")
CHECKPOINT_URI: Final = UriTemplate.parse("savegame://threads/{thread_id}/checkpoints/{checkpoint}{?path,start}")


class Resources:
    """Reads addresses, without a tool call."""

    def __init__(self, vault: Vault, tools: Tools) -> None:
        self._vault = vault
        self._tools = tools

    def threads(self, cursor: str | None) -> types.ListResourcesResult:
        """A page of threads by id."""
        found, more = fill_page(self._vault.threads(after=cursor), RESOURCES, _resource, self._tools.room)
        return types.ListResourcesResult(resources=found, next_cursor=found[-1].name if more else None)

    def templates(self) -> list[types.ResourceTemplate]:
        """The URI templates of threads and checkpoints."""
        return [
            types.ResourceTemplate(
                uri_template=str(THREAD_URI),
                name="thread",
                title="A thread",
                description="The checkpoints of a thread, newest first; continue with after.",
                mime_type="application/json",
            ),
            types.ResourceTemplate(
                uri_template=str(CHECKPOINT_URI),
                name="checkpoint",
                title="A checkpoint",
                description="The state at a checkpoint (id, prefix, label, head, head~2, step); path is a JSON pointer.",
                mime_type="application/json",
            ),
        ]

    def read(self, uri: str) -> schemas.History | schemas.StateLoaded:
        """The contents of an address. Raises InvalidInputError for a foreign address, NotFoundError for a missing one."""
        if named := _match(CHECKPOINT_URI, uri):
            start = named.get("start", "0")
            if not re.fullmatch(r"-?\d{1,18}", start):
                raise InvalidInputError(f"start must be a whole number, not {start!r}")
            return self._tools.thread_load(
                thread_id=named["thread_id"], at=named["checkpoint"], path=named.get("path", ""), start=int(start)
            )
        if named := _match(THREAD_URI, uri):
            return self._tools.thread_history(thread_id=named["thread_id"], after=named.get("after"))
        raise InvalidInputError(f"{uri!r} is not an address of this server; use {THREAD_URI} or {CHECKPOINT_URI}")

    def complete(self, name: str, prefix: str, known: Mapping[str, str]) -> list[str]:
        """Thread ids, or names of checkpoints of a known thread, with this prefix."""
        if name == "thread_id":
            return list(islice(matching_threads(self._vault, prefix), COMPLETIONS))
        if name == "checkpoint" and known.get("thread_id"):
            return matching_checkpoints(self._vault.thread(known["thread_id"]), prefix)[:COMPLETIONS]
        return []


def _match(template: UriTemplate, uri: str) -> dict[str, str] | None:
    found = template.match(uri)
    return None if found is None else {name: value for name, value in found.items() if isinstance(value, str)}


def _resource(info: ThreadInfo) -> types.Resource:
    about = f"step {info.step}, {info.checkpoints} checkpoints, {info.status!r}" if info.damage is None else info.damage
    return types.Resource(
        uri=THREAD_URI.expand({"thread_id": info.id}),
        name=info.id,
        description=f"{about}, agent {info.agent_id}" if info.agent_id else about,
        mime_type="application/json",
        annotations=types.Annotations(last_modified=info.updated_at.isoformat()),
    )
