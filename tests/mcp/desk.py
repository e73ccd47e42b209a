"""The SDK's own client for tests that do not await: every answer is held against the schema that its tool declares."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters, types
from mcp.server import Server

ENTRY = Path(sys.executable).with_name("savegame")
"""The command as it was installed."""


class Desk:
    """One connected client."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self.client = client
        self.tools = {tool.name: tool for tool in portal.call(client.list_tools).tools}

    def ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the client."""
        return self._portal.call(method, *arguments)

    def give(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """What a tool answers; it must not fail."""
        result: types.CallToolResult = self.ask(self.client.call_tool, tool, arguments)
        text = self._text(result)
        assert not result.is_error, text
        jsonschema.Draft202012Validator(self.tools[tool].output_schema or False).validate(result.structured_content)
        assert json.loads(text) == result.structured_content
        return dict(result.structured_content)

    def refuse(self, tool: str, /, **arguments: Any) -> str:
        """What a tool says about a call that fails; it must say what to do next."""
        result: types.CallToolResult = self.ask(self.client.call_tool, tool, arguments)
        text = self._text(result)
        assert result.is_error, text
        assert result.structured_content is None
        assert "\nNext: " in text
        return text

    def _text(self, result: types.CallToolResult) -> str:
        (content,) = result.content
        assert isinstance(content, types.TextContent)
        return content.text


@contextmanager
def desk_at(server: Server[Any] | StdioServerParameters, mode: str = "auto") -> Iterator[Desk]:
    """A client that is connected to a server in this process, or to one that it starts."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server, mode=mode)) as client:
        yield Desk(portal, client)


def command(store: str, *options: str) -> StdioServerParameters:
    """How a client starts the server: the installed command, with warnings as errors."""
    return StdioServerParameters(command=str(ENTRY), args=["mcp", "--store", store, *options], env={"PYTHONWARNINGS": "error"})
