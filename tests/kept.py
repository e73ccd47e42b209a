"""A vault with some of everything in it, and all that it keeps of its threads, to be compared with another vault's."""

from __future__ import annotations

import os
from typing import Any

from savegame import AgentState, Conversation, Message
from savegame.encoding.frames import references, unwrap
from savegame.model import Frame, ThreadKey
from savegame.store import PutRecord
from savegame.timeline.companions import COPIED
from savegame.timeline.lineage import Lineage
from savegame.vault import Vault


def filled(vault: Vault) -> Vault:
    """Branches, labels, tags, forks, large values, pruned lines, subjects, records, agents, threads without a head."""
    thread = vault.thread("../chat 🎲", agent="helper")
    for number in range(6):
        thread.update(append={"messages": [{"role": "user", "content": f"{number}"}]}, set={"odd": (1, b"\xff", {2.5})})
    thread.save({"text": "ü" * 9000, "picture": os.urandom(9000)}, label="large", tags=["a", "b"], metadata={"who": "me"})
    thread.save({"text": "ü" * 9000, "picture": b"x" * 9000}, status="failed(reason)", cost=0.5, id="chosen")
    thread.rewind(3)
    thread.save({"text": "ü" * 9000}, description="a branch")
    thread.fork("fork", at="chosen").save({"text": "forked"})
    thread.attach_subject("somebody")
    pruned = vault.thread("pruned")
    for number in range(12):
        pruned.save({"items": list(range(number)), "text": "t" * 9000 + str(number)})
    pruned.prune(keep=4)
    vault.store.commit([PutRecord(ThreadKey(vault.namespace, "only a record"), "kind", "name", b"\x93 foreign")])
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    moment = vault.checkpoint_agent("helper", "before")
    later = Conversation("helper")
    later.add_message(Message.user("too late"))
    vault.save_conversation(later)
    vault.restore_agent(moment.id)
    return vault


def kept(vault: Vault) -> dict[str, Any]:
    """Threads by id: agent, head, every frame with its base's id and its delta, large values, records.

    No leases, and none of the marks that copying leaves.
    """
    keys = [ThreadKey(vault.namespace, name) for name, _ in vault.store.heads(vault.namespace)]
    return {key.id: found for key in keys if (found := _thread(vault, key)) is not None}


def _thread(vault: Vault, key: ThreadKey) -> Any:
    thread = Lineage(vault.rooms.engine.without_cache(), key)
    row = thread.row()
    assert row is not None
    frames = [thread.frame(frame.seq, delta=True) for frame in thread.everything(newest_first=False)]
    ids = {0: None} | {frame.seq: frame.id for frame in frames}
    beside = [record for kind in thread.kinds() if kind != COPIED for record in thread.records(kind)]
    if not frames and not beside:
        return None
    return row.agent, row.head_id, [_frame(thread, frame, ids) for frame in frames], beside


def _frame(thread: Lineage, frame: Frame, ids: dict[int, Any]) -> Any:
    body = frame.delta or b""
    large = {name: thread.large_value(name) for name in references(body)}
    return frame.id, ids[frame.base], frame.meta, frame.note, unwrap(body)[1], large
