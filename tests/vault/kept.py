"""Everything that a vault keeps of its threads, to be compared with another vault's."""

from __future__ import annotations

from typing import Any

from savegame.frames import references, unwrap
from savegame.lineage import everything
from savegame.model import Frame, ThreadKey
from savegame.upkeep import records, with_delta
from savegame.vault import Vault


def kept(vault: Vault) -> dict[str, Any]:
    """Threads by id: agent, head, every frame with its base's id and its delta, large values, records; no leases."""
    keys = [ThreadKey(vault.namespace, name) for name, _ in vault.store.heads(vault.namespace)]
    return {key.id: found for key in keys if (found := _thread(vault, key)) is not None}


def _thread(vault: Vault, key: ThreadKey) -> Any:
    engine = vault._engine.without_cache()
    row = engine.store.thread(key)
    assert row is not None
    frames = [with_delta(engine, key, frame.seq) for frame in everything(engine, key, newest_first=False)]
    ids = {0: None} | {frame.seq: frame.id for frame in frames}
    beside = [record for kind in engine.store.kinds(key) for record in records(engine, key, kind)]
    if not frames and not beside:
        return None
    return row.agent, row.head_id, [_frame(vault, key, frame, ids) for frame in frames], beside


def _frame(vault: Vault, key: ThreadKey, frame: Frame, ids: dict[int, Any]) -> Any:
    body = frame.delta or b""
    large = {name: vault._engine.fetcher(key)(name) for name in references(body)}
    return frame.id, ids[frame.base], frame.meta, frame.note, unwrap(body)[1], large
