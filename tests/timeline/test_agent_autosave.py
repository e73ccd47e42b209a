"""autosave_agents: every agent that exists and changed, one loop for each, nothing after stop()."""

from __future__ import annotations

import logging

import pytest
from addresses import Opener

from savegame import AgentState, AlreadyExistsError, ClosedError, Conversation, InvalidInputError, Message, Vault
from savegame.model import ThreadKey
from tests.timeline.test_autosave import HOUR, OFTEN, until


@pytest.fixture
def chat(vault: Vault) -> str:
    """A conversation of the agent `helper`; `other` has none."""
    for agent_id in ("helper", "other"):
        vault.save_agent(AgentState(agent_id, agent_id, "scripted"))
    conversation = Conversation("helper")
    vault.save_conversation(conversation)
    return conversation.id


def kinds(vault: Vault, agent_id: str) -> list[str]:
    return [str(checkpoint.kind) for checkpoint in vault.agent_checkpoints(agent_id)]


@pytest.mark.requirement("D61", "D62")
def test_each_agent_that_exists_is_saved_at_once_and_again_when_it_changed(vault: Vault, chat: str) -> None:
    with vault.autosave_agents(["helper", "other", "nobody"], OFTEN) as saving:
        until(lambda: saving.saved == 2)
        vault.add_message(chat, Message.user("hi"))
        until(lambda: saving.saved == 3)
        agent = vault.load_agent("other")
        assert agent is not None
        agent.set_state("mood", "good")
        vault.save_agent(agent)
        until(lambda: saving.saved == 4)
        assert saving.errors == ()
    assert (kinds(vault, "helper"), kinds(vault, "other")) == (["automatic"] * 2, ["automatic"] * 2)
    newest = next(vault.agent_checkpoints("helper"))
    assert newest.label is None
    assert newest.description is not None
    assert newest.description.startswith("Auto checkpoint 20")
    assert vault.load_agent("nobody") is None


def test_what_did_not_change_is_not_saved(vault: Vault, chat: str) -> None:
    for _ in range(3):
        with vault.autosave_agents(["helper"], HOUR) as saving:
            pass  # a block that is left at once has looked once
    assert saving.saved == 0
    assert kinds(vault, "helper") == ["automatic"]


def test_keep_leaves_the_newest_and_the_named_ones(vault: Vault, chat: str) -> None:
    vault.checkpoint_agent("helper", "by hand")
    with vault.autosave_agents(["helper"], OFTEN, keep=2) as saving:
        for number in range(1, 6):
            vault.add_message(chat, Message.user(str(number)))
            until(lambda number=number: saving.saved >= number)
    assert kinds(vault, "helper") == ["automatic", "automatic", "manual"]
    oldest = list(vault.agent_checkpoints("helper"))[-1]
    vault.restore_agent(oldest.id)
    assert vault.load_conversation(chat).is_empty()  # type: ignore[union-attr]


def test_an_agent_takes_no_second_loop(vault: Vault, chat: str) -> None:
    with vault.autosave_agents(["helper"], HOUR):
        with pytest.raises(AlreadyExistsError, match="agent:helper"):
            vault.autosave_agents(["other", "helper"], HOUR)
        with vault.autosave_agents(["other"], HOUR):  # the refused one holds nothing
            pass
    with vault.autosave_agents(["helper"], HOUR):
        pass


def test_errors_are_reported_and_the_other_agents_follow(vault: Vault, chat: str, caplog: pytest.LogCaptureFixture) -> None:
    vault.store.lease(ThreadKey(vault.namespace, "agent:helper"), "a run", 60_000_000)
    told: list[Exception] = []
    with caplog.at_level(logging.WARNING), vault.autosave_agents(["helper", "other"], HOUR, on_error=told.append) as saving:
        until(lambda: saving.saved)
    assert kinds(vault, "other") == ["automatic"]
    assert [type(error).__name__ for error in told] == ["Busy"]
    assert saving.last_error is told[0]
    assert "agents helper, other: an automatic save failed" in caplog.text


def test_a_closed_vault_ends_it(opened: Opener) -> None:
    vault = opened()
    vault.save_agent(AgentState("helper", "helper", "scripted"))
    saving = vault.autosave_agents(["helper"], OFTEN)
    until(lambda: saving.saved)
    vault.close()
    until(lambda: not saving.running)
    assert isinstance(saving.last_error, ClosedError)


def test_what_cannot_be_is_refused(vault: Vault) -> None:
    with pytest.raises(InvalidInputError, match="every must be longer than zero"):
        vault.autosave_agents(["helper"], HOUR * 0)
    with pytest.raises(InvalidInputError, match="keep must be at least 1"):
        vault.autosave_agents(["helper"], keep=0)
    with pytest.raises(InvalidInputError, match="agent's id"):
        vault.autosave_agents([""])
