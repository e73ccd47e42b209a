"""What the asynchronous verbs give is what the synchronous ones give."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from addresses import placeholder
from held import on_a_loop

import savegame
from savegame import AsyncVault, Conversation, Message
from savegame.errors import ConflictError


@dataclass
class Note:
    text: str


@on_a_loop
async def test_saving_and_reading(vault: AsyncVault) -> None:
    thread = vault.thread("t", agent="helper")
    assert (thread.id, thread.head, thread.step) == ("t", None, None)
    assert await thread.latest() is None
    first = await thread.save({"n": 1}, label="begin", tags=["old"])
    second = await thread.update(append={"items": ["a"]}, set={"n": 2})
    assert (thread.head, thread.step) == (second.id, 2)
    assert await thread.state() == {"n": 2, "items": ["a"]}
    assert (await thread.load("begin")).state == {"n": 1}
    assert await vault.find("nobody") is None
    assert await vault.load(first.id) == first
    assert len(await thread.diff(1, 2)) == len(await vault.diff(first.id, second.id)) == 2
    assert [info.id async for info in vault.threads(agent="helper")] == ["t"]
    assert len({"t", vault.thread().id, (await thread.fork()).id}) == 3


@on_a_loop
async def test_moving_noting_and_removing(vault: AsyncVault) -> None:
    thread = vault.thread("t")
    for number in range(4):
        await thread.save(number)
    await thread.label(2, "here")
    await thread.tag("here", "a", "b")
    await thread.untag("here", "a")
    assert [entry.tags async for entry in thread.history(label="here")] == [("b",)]
    assert (await thread.rewind("here")).state == 1
    assert thread.step == 2
    twin = await thread.fork("twin", at="head~1")
    assert (twin.id, await twin.state()) == ("twin", 0)
    await thread.put_records({("kind", "name"): {"x": 1}})
    assert await thread.records("kind") == {"name": {"x": 1}}
    assert await thread.remove("head") == 1
    assert await thread.prune(keep=1) == 1
    assert await thread.delete()
    assert not await thread.delete()


@on_a_loop
async def test_looking_after(on_disk: AsyncVault, tmp_path: Path) -> None:
    for number in range(3):
        await on_disk.thread("t").save(number)
    assert (await on_disk.stats()).checkpoints == 3
    assert (await on_disk.verify()).ok
    assert (await on_disk.repair()).ok
    await on_disk.compact()
    await on_disk.backup(str(tmp_path / "copy.db"))
    async with savegame.open_async(tmp_path / "copy.db") as copy, savegame.open_async("memory:") as other:
        assert await copy.thread("t").state() == 2
        assert await copy.copy_to(other) == 3
        assert await other.copy_to(on_disk.sync) == 0
    assert await on_disk.prune(keep=1) == 2


@on_a_loop
async def test_typed_states_come_back_as_objects(vault: AsyncVault) -> None:
    vault.register(Note)
    await vault.thread("plain").save([Note("a")])
    await vault.thread("typed", type=Note).save(Note("b"))
    assert await vault.thread("plain").state() == [Note("a")]
    assert await vault.thread("typed", type=Note).state() == Note("b")


@on_a_loop
async def test_listings_of_several_pages_are_whole_and_in_order(vault: AsyncVault) -> None:
    thread = vault.thread("t")
    await vault.call(lambda sync: [sync.thread("t").save(number) for number in range(200)])
    entries = [entry async for entry in thread.history()]
    assert [entry.step for entry in entries] == list(range(200, 0, -1))
    assert [entry.step async for entry in thread.history(limit=100)] == list(range(200, 100, -1))
    assert [entry.state async for entry in thread.replay(entries)] == list(range(200))


@on_a_loop
async def test_an_entry_of_a_listing_loads_through_its_thread(vault: AsyncVault) -> None:
    thread = vault.thread("t")
    await thread.save({"n": 1})
    async for entry in thread.history():
        with pytest.raises(savegame.InvalidInputError, match="came from a listing"):
            _ = entry.state
        assert (await thread.load(entry)).state == {"n": 1}


@on_a_loop
async def test_errors_pass_as_they_are(vault: AsyncVault) -> None:
    mine, yours = vault.thread("t"), vault.thread("t")
    assert await mine.latest() is None
    theirs = await yours.save(1)
    with pytest.raises(savegame.ConflictError) as caught:
        await mine.save(2)
    assert caught.value.found == theirs.id
    with pytest.raises(savegame.CheckpointNotFound, match="'nowhere' in thread 't'"):
        await mine.load("nowhere")
    with pytest.raises(savegame.InvalidState):
        await mine.save(object(), force=True)
    with pytest.raises(savegame.ThreadNotFound):
        await vault.thread("empty").load()


@on_a_loop
async def test_modify_takes_both_kinds_of_functions(vault: AsyncVault) -> None:
    async def more(state: Any) -> Any:
        await asyncio.sleep(0)
        return (state or 0) + 1

    thread = vault.thread("t")
    await thread.modify(more)
    saved = await thread.modify(lambda state: state + 10, label="twice")
    assert (saved.state, saved.label, thread.head) == (11, "twice", saved.id)


@on_a_loop
async def test_modify_keeps_its_tags_when_somebody_was_quicker(vault: AsyncVault) -> None:
    thread, other = vault.thread("t"), vault.thread("t")
    await thread.save(0)

    async def change(state: int) -> int:
        if state == 0:
            await other.save(5)
        return state + 1

    saved = await thread.modify(change, tags=(tag for tag in "ab"))
    assert (saved.state, saved.tags) == (6, ("a", "b"))


@on_a_loop
async def test_modify_loses_nothing_when_tasks_share_a_handle(vault: AsyncVault) -> None:
    async def more(state: Any) -> Any:
        await asyncio.sleep(0)
        return (state or 0) + 1

    thread = vault.thread("t")
    await asyncio.gather(*(thread.modify(more) for _ in range(20)))
    assert await thread.state() == 20


@on_a_loop
async def test_what_is_called_on_one_handle_happens_in_that_order(vault: AsyncVault) -> None:
    thread = vault.thread("t")
    made = await asyncio.gather(*(thread.save(number) for number in range(20)))
    assert [(one.step, one.state) for one in made] == [(number + 1, number) for number in range(20)]
    assert thread.head == made[-1].id


@on_a_loop
async def test_agents_conversations_and_what_is_looked_up_in_them(vault: AsyncVault) -> None:
    await vault.save_agent(savegame.AgentState("helper", "Helper", "assistant"))
    await vault.save_conversation(savegame.Conversation(id="c", agent_id="helper"))
    await vault.add_message("c", {"role": "user", "content": "a refund, please"})
    kept = await vault.checkpoint_agent("helper", "before")
    await vault.add_message("c", {"role": "assistant", "content": "no"})
    assert [one.id async for one in vault.agent_checkpoints("helper")] == [kept.id]
    await vault.restore_agent(kept.id)
    found = await vault.load_conversation("c")
    assert found is not None
    assert [message.content for message in found.messages] == ["a refund, please"]
    assert [one.id async for one in vault.agents()] == ["helper"]
    assert [one.id async for one in vault.conversations("helper")] == ["c"]
    assert await vault.usage() == vault.sync.usage()
    await vault.thread("c").attach_subject("u1")
    assert (await vault.erase("u1")).threads == ("c",)
    assert await vault.delete_agent("helper")
    assert await vault.load_agent("helper") is None


@on_a_loop
async def test_a_transaction_is_one_call(in_database: AsyncVault) -> None:
    def refund(vault: savegame.Vault) -> str:
        with vault.connection() as db:
            db.execute("CREATE TABLE app_refund (checkpoint TEXT)")
            saved = vault.thread("t").save("refunded")
            db.execute(f"INSERT INTO app_refund VALUES ({placeholder(vault)})", (saved.id,))
            return saved.id

    def fail(vault: savegame.Vault) -> None:
        with vault.connection():
            vault.thread("t").save("never")
            raise RuntimeError("the bank is closed")

    saved = await in_database.call(refund)
    with pytest.raises(RuntimeError, match="the bank"):
        await in_database.call(fail)
    found = await in_database.thread("t").latest()
    assert found is not None
    assert (found.id, found.state) == (saved, "refunded")


@on_a_loop
async def test_what_cannot_work_says_what_does(vault: AsyncVault) -> None:
    async def work(vault: savegame.Vault) -> None: ...

    with pytest.raises(savegame.UnsupportedError, match=r"await vault\.call\(function\)"):
        vault.connection()
    with pytest.raises(savegame.InvalidInputError, match="ordinary function"):
        await vault.call(work)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await vault.call(lambda sync: next(sync.threads()))


@on_a_loop
async def test_opening_can_be_awaited_or_entered(tmp_path: Path) -> None:
    vault = await savegame.open_async(tmp_path / "v.db")
    await vault.thread("t").save(1)
    await vault.close()
    await vault.close()
    async with savegame.open_async(tmp_path / "v.db", read_only=True) as again:
        assert await again.thread("t").state() == 1
    for closed in (vault, again):
        with pytest.raises(savegame.ClosedError):
            await closed.thread("t").state()
        with pytest.raises(savegame.ClosedError):
            await closed.stats()
    with pytest.raises(savegame.StoreNotFound):
        await savegame.open_async("nobody:knows")


@on_a_loop
async def test_a_closed_memory_vault_is_closed_too() -> None:
    async with await savegame.open_async("memory:") as vault:
        await vault.thread("t").save(1)
    with pytest.raises(savegame.ClosedError):
        await vault.thread("t").save(2)
    with pytest.raises(savegame.ClosedError):
        await vault.verify()


@on_a_loop
async def test_a_conversation_is_the_same_however_it_was_saved(vault: AsyncVault) -> None:
    conversation = Conversation("helper", id="talk", messages=[Message.user("hi")])
    for cls in (None, Conversation):
        await vault.thread("talk", type=cls).save(conversation, iteration=1)
        assert await vault.load_conversation("talk") == await vault.thread("talk", type=Conversation).state() == conversation
    await vault.add_message("talk", Message.user("more"))
    with pytest.raises(ConflictError):
        await vault.thread("talk").save(conversation)
    found = await vault.thread("talk", type=Conversation).modify(lambda state: state.with_system_prompt("be brief"))
    assert [message.text for message in found.state.context_window()] == ["be brief", "hi", "more"]
    assert [info.message_count async for info in vault.conversations("helper")] == [3]
