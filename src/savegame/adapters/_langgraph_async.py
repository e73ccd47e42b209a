"""The asynchronous methods of the saver: each runs its synchronous twin in a worker thread of the vault."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from savegame.aio import AsyncVault

PAGE: Final = 50
"""Checkpoints that are read at a time."""


class AsyncMethods(BaseCheckpointSaver[Any]):
    """Needs the synchronous methods, and `_aio`."""

    _aio: AsyncVault

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """`put`, awaited."""
        return await self._aio.call(lambda _: self.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`, awaited."""
        await self._aio.call(lambda _: self.put_writes(config, writes, task_id, task_path))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, awaited."""
        return await self._aio.call(lambda _: self.get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, awaited page by page."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while page := await self._aio.call(lambda _: list(islice(found, PAGE))):
            for item in page:
                yield item

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, awaited."""
        await self._aio.call(lambda _: self.delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, awaited."""
        await self._aio.call(lambda _: self.delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, awaited."""
        await self._aio.call(lambda _: self.copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, awaited."""
        await self._aio.call(lambda _: self.prune(thread_ids, strategy=strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, awaited."""
        return await self._aio.call(lambda _: self.get_delta_channel_history(config=config, channels=channels))
