"""LangGraph threads and checkpoint namespaces, and the ids that they have in a vault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig

from savegame.checkpoint import Checkpoint
from savegame.errors import InvalidInputError
from savegame.timeline.derived import SEPARATOR, framework_id, unescaped


class GraphPlace(NamedTuple):
    """A LangGraph thread and a checkpoint namespace in it ("" for the graph itself)."""

    thread_id: str
    namespace: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> GraphPlace:
        """The place in a config. Raises InvalidInputError."""
        found = config.get("configurable", {})
        if "thread_id" not in found:
            raise InvalidInputError('the config has no thread; pass {"configurable": {"thread_id": "..."}}')
        return cls(str(found["thread_id"]), found.get("checkpoint_ns") or "")

    @classmethod
    def from_id(cls, thread_id: str) -> GraphPlace:
        """The reverse of `id`."""
        root, _, namespace = thread_id.partition(SEPARATOR)
        return cls(unescaped(root), namespace)

    @property
    def root(self) -> str:
        """The id of the vault's thread for the graph itself."""
        return self.thread_id.replace("\u241b", "\u241b0").replace(SEPARATOR, "\u241b1")

    @property
    def id(self) -> str:
        """The id of the vault's thread."""
        return f"{self.root}{SEPARATOR}{self.namespace}" if self.namespace else self.root

    @property
    def parent(self) -> str | None:
        """The id of the parent thread in the vault, None for the graph itself."""
        return self.root if self.namespace else None

    def checkpoint(self, external_id: str) -> str:
        """The id of a LangGraph checkpoint in the vault; always the same, so that retries are recognized."""
        return framework_id(self.thread_id, self.namespace, external_id)

    def owns(self, found: Checkpoint) -> bool:
        """Whether a checkpoint was made by LangGraph at this place."""
        return found.external_id is not None and found.id == self.checkpoint(found.external_id)

    def config(self, external_id: str | None) -> RunnableConfig:
        """The config of a checkpoint here."""
        return {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": self.namespace,
                **({} if external_id is None else {"checkpoint_id": external_id}),
            }
        }
