"""Connections that break around a write: the caller is told the truth, whether the server had carried it out or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import savegame
from savegame import AgentState, Checkpoint, Conversation, Message, UnavailableError, Vault
from savegame.testing.postgres import PostgresServer
from savegame.testing.proxy import Proxy

SAVE = b"append_1"
Lose = Callable[..., None]


@pytest.mark.parametrize("what", ["reply", "request"])
def test_100_saves_whose_connection_breaks_are_there_once(proxied: str, proxy: Proxy, what: str) -> None:
    lose = {"reply": proxy.lose_reply, "request": proxy.lose_request}[what]
    with savegame.open(proxied) as vault:
        thread = vault.thread("t")
        saved: list[str] = []
        while proxy.losses < 100:
            lose(SAVE)
            saved.append(thread.update(append={"items": [len(saved)]}).id)
        proxy.lose_nothing()
        assert len(saved) < 120, "nearly every save was hit"
        assert [entry.id for entry in thread.history(newest_first=False, branches=True)] == saved
        assert thread.state() == {"items": list(range(len(saved)))}
        assert vault.verify().ok


def a_save(vault: Vault) -> None:
    vault.thread("old").save({"items": [1], "more": "x" * 100_000})


def a_first_save(vault: Vault) -> None:
    vault.thread("new").save({"items": []}, label="first")


def a_note(vault: Vault) -> None:
    vault.thread("old").label("head", "noted")


def a_rewind(vault: Vault) -> None:
    vault.thread("old").rewind(1)


def a_discarding_rewind(vault: Vault) -> None:
    vault.thread("old").rewind(1, discard=True)


def a_prune(vault: Vault) -> None:
    vault.thread("old").prune(keep=1)


def a_fork(vault: Vault) -> None:
    vault.thread("old").fork("forked")


def a_delete(vault: Vault) -> None:
    vault.thread("old").delete()


def records(vault: Vault) -> None:
    vault.thread("old").put_records({("kind", "a"): 1, ("kind", "b"): 2})


def a_run(vault: Vault) -> None:
    with vault.run("ran") as run:
        run.user("Hello.", key="once")
        run.step("step", lambda: 1)
        run.model(lambda messages: "Hello!")


def a_restore(vault: Vault) -> None:
    (first,) = vault.agent_checkpoints("helper")
    vault.restore_agent(first.id)


def a_transaction(vault: Vault) -> None:
    """What was done inside cannot be done again by the store: its caller is told that nothing of it happened."""
    while True:
        try:
            with vault.connection() as db:
                db.execute("INSERT INTO mine VALUES (%s)", (vault.namespace,))
                vault.thread("old").update(append={"items": ["inside"]})
        except psycopg.OperationalError:  # what the caller's own statements raise
            continue
        except UnavailableError as error:
            if error.unknown:
                raise
        else:
            return


VERBS = [
    a_save, a_first_save, a_note, a_rewind, a_discarding_rewind, a_prune, a_fork, a_delete, records, a_run, a_restore,
    a_transaction,
]  # fmt: skip


def prepared(vault: Vault) -> None:
    """Something of everything that the verbs need."""
    for number in range(3):
        vault.thread("old").update(append={"items": [number]})
    vault.save_agent(AgentState("helper", "Helper", "scripted"))
    vault.save_conversation(Conversation("helper", id="c", messages=[Message.user("one")]))
    vault.checkpoint_agent("helper", "first")
    vault.add_message("c", Message.user("two"))


def shown(entry: Checkpoint) -> Any:
    state = entry.load().state
    return entry.step, entry.label, [message["content"] for message in state["messages"]] if "messages" in state else state


def everything(vault: Vault) -> Any:
    """All that is kept, except for ids and times."""
    names = ["old", "new", "forked", "ran", "c"]
    lines = [[(entry.seq, shown(entry)) for entry in vault.thread(name).history(branches=True)] for name in names]
    with vault.connection() as db:
        mine = list(db.execute("SELECT count(*) FROM mine WHERE namespace = %s", (vault.namespace,)))
    assert vault.verify().ok
    return lines, vault.thread("old").records("kind"), mine


@pytest.mark.parametrize("what", ["reply", "request"])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_wherever_the_connection_breaks_a_verb_happens_once(
    verb: Callable[[Vault], None], what: str, url: str, proxied: str, proxy: Proxy
) -> None:
    """Every exchange of a verb with the server is lost once: the first, the second, and so on until there are no more."""
    PostgresServer(url).execute("CREATE TABLE mine (namespace TEXT)")
    lose = {"reply": proxy.lose_reply, "request": proxy.lose_request}[what]
    with savegame.open(url, namespace="undisturbed") as undisturbed:
        prepared(undisturbed)
        verb(undisturbed)
        wanted = everything(undisturbed)
        for place in range(1000):
            namespace = f"exchange {place}"
            prepared(Vault(undisturbed.store, namespace=namespace))
            with savegame.open(proxied, namespace=namespace) as vault:
                vault.thread("old").state()
                lose(skip=place)
                verb(vault)
                proxy.lose_nothing()
            assert everything(Vault(undisturbed.store, namespace=namespace)) == wanted, namespace
            if proxy.losses == place:
                return
    pytest.fail("there is no end to it")


def test_a_server_that_does_not_come_back_is_told_as_unknown_with_the_id_to_look_for(proxied: str, proxy: Proxy) -> None:
    with savegame.open(f"{proxied}?deadline=1") as vault:
        thread = vault.thread("t")
        thread.save("first")
        proxy.lose_reply(SAVE)
        proxy.refusing = True
        with pytest.raises(UnavailableError, match="look for it with") as told:
            thread.save("second")
        assert told.value.unknown
        assert told.value.checkpoint_id is not None
        proxy.refusing = False
        found = vault.find(told.value.checkpoint_id)
        assert found is not None
        assert found.state == "second"
        assert thread.save("second", id=found.id, force=True).id == found.id
        assert [entry.load().state for entry in thread.history()] == ["second", "first"]


def test_a_server_that_is_not_there_is_not_told_as_unknown(proxied: str, proxy: Proxy) -> None:
    with savegame.open(f"{proxied}?deadline=1") as vault:
        thread = vault.thread("t")
        thread.save("first")
        proxy.refusing = True
        proxy.cut_all()
        with pytest.raises(UnavailableError) as told:
            thread.state()
        assert not told.value.unknown
        proxy.refusing = False
        assert thread.state() == "first"
        assert len(list(thread.history(branches=True))) == 1


@pytest.mark.parametrize("what", ["reply", "request"])
def test_of_two_who_save_on_the_same_head_one_wins_although_its_connection_broke(proxied: str, proxy: Proxy, what: str) -> None:
    lose = {"reply": proxy.lose_reply, "request": proxy.lose_request}[what]
    with savegame.open(proxied) as ours, savegame.open(proxied) as theirs:
        for number in range(10):
            head = ours.thread("t").save(number, force=True)
            mine, other = ours.thread("t"), theirs.thread("t")
            assert other.state() == number
            lose(SAVE)
            saved = mine.save([number, "ours"], expect=head)
            with pytest.raises(savegame.ConflictError) as told:
                other.save([number, "theirs"], expect=head)
            assert told.value.found == saved.id
            assert theirs.thread("t").state() == [number, "ours"]
