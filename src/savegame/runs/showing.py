"""What a run shows a model: the messages of its conversation, after a system prompt, in the form of each API.

The prompt is not kept with the conversation; that of the run's agent is read when it is first needed. Touches core, views and
what an agent is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from savegame.messages import views
from savegame.messages.domain import AgentState
from savegame.messages.input_items import input_items
from savegame.model import checked_text
from savegame.runs.core import RunCore


class Showing:
    """The part of a run that selects the messages for a model."""

    def __init__(self, core: RunCore, load_agent: Callable[[], AgentState | None] | None) -> None:
        self._core, self._load_agent = core, load_agent

    def openai_messages(self, **options: Any) -> list[dict[str, Any]]:
        """The messages that `model` passes, in the form of OpenAI's chat completions; takes the options of `model`."""
        return views.openai_messages(self._select(**options))

    def openai_input(self, **options: Any) -> list[dict[str, Any]]:
        """The messages that `model` passes, as the input items of OpenAI's responses; takes the options of `model`."""
        return input_items(self._select(**options))

    def anthropic_messages(self, **options: Any) -> tuple[str, list[dict[str, Any]]]:
        """The system text and the messages that `model` passes, in Anthropic's form; takes the options of `model`."""
        return views.anthropic_messages(self._select(**options))

    def _select(self, system: str | None = None, **options: Any) -> list[dict[str, Any]]:
        prompt = self._agents_prompt if system is None else checked_text(system, "system")
        return self._core.select_messages(prompt, **options)

    @cached_property
    def _agents_prompt(self) -> str | None:
        agent = None if self._load_agent is None else self._load_agent()
        return None if agent is None else agent.system_prompt
