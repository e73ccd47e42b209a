"""System prompts: shown to the model, not kept; the agent's own unless another is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faces import Face, entered, look

from savegame import AgentState, InvalidInputError


@pytest.fixture
def address(tmp_path: Path) -> Path:
    return tmp_path / "vault.db"


def asked(one: Face, **how: Any) -> list[Any]:
    """What the model is shown, as (role, content)."""
    shown: list[Any] = []
    one.stream(one.source(["ok"], shown), **how)
    return [(message["role"], message["content"]) for message in shown[0]]


def test_it_is_shown_first_and_not_kept(face: type[Face], address: Path) -> None:
    with entered(face, address) as one:
        one.user("hi")
        assert asked(one, system="Be brief.") == [("system", "Be brief."), ("user", "hi")]
        one.user("and now?")
        assert asked(one) == [("user", "hi"), ("assistant", "ok"), ("user", "and now?")]
    stored = look(address, lambda vault: vault.thread("t").state())
    assert [message["role"] for message in stored["messages"]] == ["user", "assistant", "user", "assistant"]
    assert "system" not in stored


def test_the_agents_own(face: type[Face], address: Path) -> None:
    look(address, lambda vault: vault.save_agent(AgentState("helper", "Helper", "chat", system_prompt="You help.")))
    with entered(face, address, agent="helper") as one:
        one.user("hi")
        assert one.run.openai_messages()[0] == {"role": "system", "content": "You help."}
        assert one.run.openai_input()[0] == {"role": "system", "content": "You help."}
        assert one.run.anthropic_messages()[0] == "You help."
        assert one.run.anthropic_messages(system="")[0] == ""
        assert asked(one)[0] == ("system", "You help.")
        one.user("hi")
        assert asked(one, system="Be brief.")[0] == ("system", "Be brief.")
        one.user("hi")
        assert asked(one, system="")[0] == ("user", "hi")
    with entered(face, address, "u", agent="unknown") as one:
        one.user("hi")
        assert asked(one) == [("user", "hi")]
    with entered(face, address, "v") as one:
        one.user("hi")
        assert asked(one) == [("user", "hi")]


def test_it_is_read_once_and_only_when_it_is_needed(face: type[Face], address: Path) -> None:
    look(address, lambda vault: vault.save_agent(AgentState("helper", "Helper", "chat", system_prompt="You help.")))
    with entered(face, address, agent="helper") as one:
        one.user("hi")
        assert asked(one)[0] == ("system", "You help.")
        other = AgentState("helper", "Helper", "chat", system_prompt="You do not.")
        look(address, lambda vault: vault.save_agent(other, force=True))
        assert one.run.openai_messages()[0]["content"] == "You help."


def test_beside_the_system_messages_of_the_conversation(face: type[Face], address: Path) -> None:
    own = [{"role": "system", "content": "You help."}, {"role": "user", "content": "hi"}]
    look(address, lambda vault: vault.thread("t").save({"messages": own}))
    with entered(face, address) as one:
        assert one.run.anthropic_messages(system="Be brief.")[0] == "Be brief.\n\nYou help."
        assert asked(one, system="Be brief.") == [("system", "Be brief."), ("system", "You help."), ("user", "hi")]
        one.user("again")
        assert asked(one, system="You help.")[:2] == [("system", "You help."), ("user", "hi")]


def test_it_counts_in_the_budget_of_the_messages(face: type[Face], address: Path) -> None:
    with entered(face, address) as one:
        for number in range(4):
            one.user(f"question {number} " + "x" * 60)
            one.model("answer " + "y" * 60)
        one.user("last")
        without = len(one.run.openai_messages(budget=60))
        shown = one.run.openai_messages(budget=60, system="z" * 120)
        assert shown[0]["role"] == "system"
        assert shown[-1]["content"] == "last"
        assert len(shown) < without
        assert one.run.openai_messages(strategy="sliding_window", budget=1, system="Be brief.")[0]["role"] == "system"


@pytest.mark.parametrize("system", [7, ["Be brief."], b"x", "\ud800"])
def test_it_is_text(face: type[Face], address: Path, system: Any) -> None:
    with entered(face, address) as one:
        one.user("hi")
        with pytest.raises(InvalidInputError, match="system"):
            one.model("never", system=system)
        assert not one.run.done
