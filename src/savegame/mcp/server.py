"""The MCP server: what clients may list, call and read, and how errors are told. Touches tools, resources, the SDK.

Built on the SDK's low-level Server, since its other one neither pages lists of resources nor lets us word what is wrong with
arguments. Every call runs in a worker thread, which is waited for also if the client gives up. A call that fails is answered
with `isError`, what is wrong and what to do next, so that a model can go on; nothing is changed by it. Only the SDK writes to
standard output.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial, wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import anyio
from anyio.to_thread import run_sync
from mcp import MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from savegame.errors import (
    AlreadyExistsError,
    Busy,
    CheckpointNotFound,
    ClosedError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    OutcomeError,
    OutOfSpace,
    SavegameError,
    StoreNotFound,
    ThreadNotFound,
    UnavailableError,
    UnsupportedError,
)
from savegame.mcp.resources import Resources
from savegame.mcp.showing import short
from savegame.mcp.tools import HINTS, Hints, NotAConversation, Tools
from savegame.vault import Vault

T = TypeVar("T")
Context = ServerRequestContext[Any]

ANSWER_CHARS: Final = 40_000
FEWEST_CHARS: Final = 16_000
LONGEST_ERROR: Final = 2_000

INSTRUCTIONS: Final = """\
savegame keeps agents, their conversations and every earlier state of both.
To be able to go back: agent_save once, conversation_save with append as you go, checkpoint_create before anything risky.
To go back: checkpoint_restore (the agent and all its conversations) or thread_rewind (one conversation). Nothing is lost by
going back: each answer names an undo. To look: thread_history, thread_diff, thread_load. To try something else: thread_fork.
A long answer is a page: pass its next as after (or next_start as start) to read on, and what it lists under cut to thread_load.
"""

NEXT: Final[dict[type[SavegameError], str]] = {
    SavegameError: "Tell the user.",
    NotFoundError: "Look which there are with agent_list.",
    ThreadNotFound: "Look which there are with conversation_list or thread_list.",
    CheckpointNotFound: "Look which there are with thread_history, or for an agent with checkpoint_list.",
    StoreNotFound: "Tell the user: the server was started with the address of a vault that is not there.",
    AlreadyExistsError: "Choose another id.",
    ConflictError: "Somebody else was quicker. Load it again, apply your change to how it is now, and save that.",
    Busy: "A program is working on this thread. Wait until it has ended, or go on in a copy (thread_fork).",
    OutcomeError: "Tell the user: a person has to look at that call first.",
    UnavailableError: "Wait a little, then call again.",
    OutOfSpace: "Tell the user that the disk is full. Nothing was saved.",
    CorruptionError: "Do not write to this thread. Tell the user to run: savegame verify.",
    UnsupportedError: "This vault cannot do that. Go on without it, or tell the user.",
    InvalidInputError: "Correct the arguments, then call again.",
    NotAConversation: "Look at it with thread_load, and do not save it as a conversation.",
    ClosedError: "The server is stopping. Tell the user to start it again.",
}
"""What a model can do about an error, by the nearest class."""


class _Tool(NamedTuple):
    declared: types.Tool
    checked: TypeAdapter[Callable[[], BaseModel]]
    """Makes a call of arguments, if they fit the signature of the tool."""


def serve(vault: Vault, *, read_only: bool = False, answer_chars: int = ANSWER_CHARS) -> None:
    """Serve a vault over standard input and output until the client closes them.

    `read_only` offers the tools that change nothing; open the vault so, too. `answer_chars` is how long an answer may be.
    """
    anyio.run(_serve, server_on(vault, read_only=read_only, answer_chars=answer_chars))


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def server_on(vault: Vault, *, read_only: bool = False, answer_chars: int = ANSWER_CHARS) -> Server[Any]:
    """A server of the SDK with our tools and resources on a vault, for whatever transport."""
    if answer_chars < FEWEST_CHARS:
        raise InvalidInputError(f"answer_chars must be at least {FEWEST_CHARS}, not {answer_chars}")
    handlers = _Handlers(vault, read_only=read_only, answer_chars=answer_chars)
    return Server(
        "savegame",
        version=_version(),
        title="savegame",
        description="Save games for AI agents: every step durable, rewindable, forkable, resumable.",
        instructions=INSTRUCTIONS,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_completion=handlers.complete,
    )


def _version() -> str:
    try:
        return version("savegame")
    except PackageNotFoundError:  # in a source tree
        return ""


class _Handlers:
    """What the SDK calls for each request."""

    def __init__(self, vault: Vault, *, read_only: bool, answer_chars: int) -> None:
        tools = Tools(vault, answer_chars)
        offered = {name: hints for name, hints in HINTS.items() if hints.reads or not read_only}
        self._tools = {name: _declared(getattr(tools, name), hints) for name, hints in offered.items()}
        self._resources = Resources(vault, tools)

    async def list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool.declared for tool in self._tools.values()])

    async def call_tool(self, _: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"unknown tool {params.name!r}; tools/list says which there are")
        try:
            call = tool.checked.validate_python(ArgsKwargs((), params.arguments or {}))
        except ValidationError as error:
            return _failure(InvalidInputError(_wrong(error)))
        try:
            answer = await run_sync(call)
        except SavegameError as error:
            return _failure(error)
        found = answer.model_dump(mode="json")
        return types.CallToolResult(content=[types.TextContent(text=_json(found))], structured_content=found)

    async def list_resources(self, _: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return await _asked(partial(self._resources.threads, None if params is None else params.cursor))

    async def list_templates(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=self._resources.templates())

    async def read_resource(self, _: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        found = await _asked(partial(self._resources.read, params.uri))
        text = _json(found.model_dump(mode="json"))
        content = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[content])

    async def complete(self, _: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        known = {} if params.context is None else params.context.arguments or {}
        values = await _asked(partial(self._resources.complete, params.argument.name, params.argument.value, known))
        return types.CompleteResult(completion=types.Completion(values=values))


async def _asked(work: Callable[[], T]) -> T:
    """What `work` gives, from a worker thread; errors of ours become those of the protocol, as resources have no others."""
    try:
        return await run_sync(work)
    except SavegameError as error:
        code = types.INVALID_PARAMS if isinstance(error, NotFoundError | InvalidInputError) else types.INTERNAL_ERROR
        raise MCPError(code, _told(error)) from error


def _failure(error: SavegameError) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=_told(error))], is_error=True)


def _told(error: SavegameError) -> str:
    """An error for a model: its kind, what is wrong, what to do next."""
    following = next(NEXT[cls] for cls in type(error).__mro__ if cls in NEXT)
    if isinstance(error, UnavailableError) and error.unknown:
        following = f"It may have been saved nevertheless: look first (checkpoint {error.checkpoint_id})."
    if isinstance(error, CorruptionError) and error.newest_sound is not None:
        following += f" The newest checkpoint that still loads is {error.newest_sound.id}."
    return f"{error.kind}: {short(str(error), LONGEST_ERROR)}\nNext: {following}"


def _wrong(error: ValidationError) -> str:
    """What is wrong with arguments, a line each, without the values: they are the caller's, and may be long."""
    return "\n".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False))


def _declared(method: Callable[..., BaseModel], hints: Hints) -> _Tool:

    @wraps(method)
    def later(**arguments: Any) -> Callable[[], BaseModel]:
        return partial(method, **arguments)

    signature: Any = later
    adapter: TypeAdapter[Callable[[], BaseModel]] = TypeAdapter(signature)
    answer = get_type_hints(method)["return"]
    tool = types.Tool(
        name=method.__name__,
        title=hints.title,
        description=" ".join((method.__doc__ or "").split()),
        input_schema=_lean(adapter.json_schema()),
        output_schema=_lean(answer.model_json_schema(mode="serialization")),
        annotations=types.ToolAnnotations(
            read_only_hint=hints.reads,
            destructive_hint=hints.destroys,
            idempotent_hint=hints.repeatable,
            open_world_hint=False,
        ),
    )
    return _Tool(tool, adapter)


def _lean(schema: Any) -> Any:
    """A schema without what says nothing, since models read all of them: titles, and null where leaving out is the same."""
    if isinstance(schema, list):
        return [_lean(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _lean(value) for name, value in schema.items() if name != "title" or not isinstance(value, str)}
    if kept.get("default", "") is None:
        del kept["default"]
        kept |= next(choice for choice in kept.pop("anyOf") if choice != {"type": "null"})
    return kept


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
