"""The MCP server: what clients can list, call and read, and how they get errors.

Built on the SDK's low-level Server, because the high-level one neither pages resource lists nor lets us word argument errors.
Each call runs in a worker thread to its end, even if the client gives up. A failed call changes nothing; its answer has
`isError`, the problem and the next step, so that a model can continue. Only the SDK writes to standard output.
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
    Stopped,
    StoreNotFound,
    ThreadNotFound,
    UnavailableError,
    UndoUnfinished,
    UnsupportedError,
)
from savegame.mcp.excerpts import cut_text
from savegame.mcp.resources import Resources
from savegame.mcp.tools import HINTS, Hints, NotAConversation, Tools
from savegame.vault import Vault

T = TypeVar("T")
Context = ServerRequestContext[Any]

ANSWER_CHARS: Final = 40_000
FEWEST_CHARS: Final = 16_000
LONGEST_ERROR: Final = 2_000

INSTRUCTIONS: Final = """\
savegame stores agents, their conversations and every earlier state of both.
To be able to go back: call agent_save once, conversation_save with append as you go, checkpoint_create before anything risky.
To go back: checkpoint_restore (the agent and all its conversations) or thread_rewind (one conversation). Going back loses
nothing: each answer names an undo. It does not take back what tools did in the world: the answers list these effects.
To inspect: thread_history, thread_diff, thread_load, thread_effects. To try something else: thread_fork.
To reach an agent at work: message_send, thread_stop.
Long answers are paged: pass next as after (or next_start as start) to continue, and the paths under cut to thread_load.
"""

NEXT_STEPS: Final[dict[type[SavegameError], str]] = {
    SavegameError: "Tell the user.",
    NotFoundError: "List the agents with agent_list.",
    ThreadNotFound: "List what exists with conversation_list or thread_list.",
    CheckpointNotFound: "List checkpoints with thread_history, or those of an agent with checkpoint_list.",
    StoreNotFound: "Tell the user that the server was started with the address of a missing vault.",
    AlreadyExistsError: "Choose another id.",
    ConflictError: "Another writer changed it first. Load it again, apply your change to the new version, and save that.",
    Busy: "A program is working on this thread. Wait until it ends, or continue in a copy (thread_fork).",
    OutcomeError: "Tell the user that a person has to look at that call first.",
    Stopped: "A person or program stopped this run. Tell the user, and send a message only if they want it to go on.",
    UndoUnfinished: "A program has to finish its undo first. Tell the user.",
    UnavailableError: "Wait a moment, then call again.",
    OutOfSpace: "Tell the user that the disk is full. Nothing was saved.",
    CorruptionError: "Do not write to this thread. Tell the user to run: savegame verify.",
    UnsupportedError: "This vault cannot do that. Continue without it, or tell the user.",
    InvalidInputError: "Correct the arguments, then call again.",
    NotAConversation: "Read it with thread_load, and do not save it as a conversation.",
    ClosedError: "The server is stopping. Tell the user to start it again.",
}
"""What a model can do about an error, by the nearest class."""


class _ToolBinding(NamedTuple):
    declaration: types.Tool
    adapter: TypeAdapter[Callable[[], BaseModel]]
    """Validates arguments against the signature of the tool, and returns the call to make."""


def serve(vault: Vault, *, read_only: bool = False, answer_chars: int = ANSWER_CHARS) -> None:
    """Serve a vault over standard input and output until the client closes them.

    `read_only` offers only tools that change nothing; open the vault read-only too. `answer_chars` is the maximum length of
    an answer.
    """
    anyio.run(_serve, server_on(vault, read_only=read_only, answer_chars=answer_chars))


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def server_on(vault: Vault, *, read_only: bool = False, answer_chars: int = ANSWER_CHARS) -> Server[Any]:
    """An SDK server with the tools and resources of a vault, for any transport."""
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
    """The SDK's callbacks, one per kind of request."""

    def __init__(self, vault: Vault, *, read_only: bool, answer_chars: int) -> None:
        tools = Tools(vault, answer_chars)
        offered = {name: hints for name, hints in HINTS.items() if hints.reads or not read_only}
        self._tools = {name: _bind_tool(getattr(tools, name), hints) for name, hints in offered.items()}
        self._resources = Resources(vault, tools)

    async def list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool.declaration for tool in self._tools.values()])

    async def call_tool(self, _: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"unknown tool {params.name!r}; list the tools with tools/list")
        try:
            call = tool.adapter.validate_python(ArgsKwargs((), params.arguments or {}))
        except ValidationError as error:
            return _failure(InvalidInputError(_validation_text(error)))
        try:
            answer = await run_sync(call)
        except SavegameError as error:
            return _failure(error)
        found = answer.model_dump(mode="json")
        return types.CallToolResult(content=[types.TextContent(text=_json(found))], structured_content=found)

    async def list_resources(self, _: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return await _run(partial(self._resources.threads, None if params is None else params.cursor))

    async def list_templates(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=self._resources.templates())

    async def read_resource(self, _: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        found = await _run(partial(self._resources.read, params.uri))
        text = _json(found.model_dump(mode="json"))
        content = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[content])

    async def complete(self, _: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        known = {} if params.context is None else params.context.arguments or {}
        values = await _run(partial(self._resources.complete, params.argument.name, params.argument.value, known))
        return types.CompleteResult(completion=types.Completion(values=values))


async def _run(work: Callable[[], T]) -> T:
    """Run `work` in a worker thread. A SavegameError becomes an error of the protocol: resources have no `isError`."""
    try:
        return await run_sync(work)
    except SavegameError as error:
        code = types.INVALID_PARAMS if isinstance(error, NotFoundError | InvalidInputError) else types.INTERNAL_ERROR
        raise MCPError(code, error_text(error)) from error


def _failure(error: SavegameError) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=error_text(error))], is_error=True)


def error_text(error: SavegameError) -> str:
    """An error for a model: kind, message, next step."""
    next_step = next(NEXT_STEPS[cls] for cls in type(error).__mro__ if cls in NEXT_STEPS)
    if isinstance(error, UnavailableError) and error.unknown:
        next_step = f"It may have been saved nevertheless: check first (checkpoint {error.checkpoint_id})."
    if isinstance(error, CorruptionError) and error.newest_sound is not None:
        next_step += f" The newest checkpoint that still loads is {error.newest_sound.id}."
    return f"{error.kind}: {cut_text(str(error), LONGEST_ERROR)}\nNext: {next_step}"


def _validation_text(error: ValidationError) -> str:
    """The invalid arguments, one per line, without their values, which may be long."""
    return "\n".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False))


def _bind_tool(method: Callable[..., BaseModel], hints: Hints) -> _ToolBinding:

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
    return _ToolBinding(tool, adapter)


def _lean(schema: Any) -> Any:
    """A schema without titles, and without null where omitting the value means the same: models read all of it."""
    if isinstance(schema, list):
        return [_lean(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    lean = {name: _lean(value) for name, value in schema.items() if name != "title" or not isinstance(value, str)}
    if lean.get("default", "") is None:
        del lean["default"]
        lean |= next(choice for choice in lean.pop("anyOf") if choice != {"type": "null"})
    return lean


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
