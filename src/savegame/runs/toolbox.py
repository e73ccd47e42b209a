"""The tools of an agent: functions, marked by what may be done with them after a crash. Touches schema, model and errors.

    tools = Toolbox()

    @tools.tool(idempotent=True)
    def refund(call, order: str, cents: int): return pay_back(order, cents, idempotency_key=call.key)

Unmarked is the careful kind: at most once. This module is pure: a tool has a kind, a schema, a key and delays, and calls its
function; leases, ledgers, retries and timeouts are enforced by the run.
"""

from __future__ import annotations

import copy
import datetime as dt
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, TypeVar, overload

from savegame.errors import InvalidInputError, NotFoundError
from savegame.model import checked_duration, checked_id, checked_number
from savegame.runs.schema import Parameters, parameters_of
from savegame.waiting.awaiting import plain_result, refuse_asynchronous

F = TypeVar("F", bound=Callable[..., Any])

RETRIES: Final = 2
"""Default number of retries of a tool that only reads, or has a key."""
BACKOFF: Final = dt.timedelta(milliseconds=100)
"""Pause before the first retry; doubled for each further one."""
MAX_BACKOFF: Final = dt.timedelta(seconds=30)


class ToolKind(StrEnum):
    """What may be done about a call whose outcome is unknown."""

    READ_ONLY = "read_only"
    """It changes nothing: run it again."""
    IDEMPOTENT = "idempotent"
    """Its effect happens once per key: run it again with the same key."""
    TRANSACTION = "transaction"
    """Its writes commit together with its result, or not at all: run it again."""
    PLAIN = "plain"
    """No promise: run it at most once, and ask a person about an unknown outcome."""


class Repeat(StrEnum):
    """What to do if the model asks again for what was done on a line that was left."""

    ASK = "ask"
    """Ask a person, saying what was done and when."""
    REUSE = "reuse"
    """Answer with the kept result; without one, ask."""
    RUN = "run"
    """Run it."""


def _kind_from_mcp(hints: Mapping[str, Any]) -> ToolKind:
    """The kind of a tool of an MCP server, by its hints, which are trusted."""
    if hints.get("readOnlyHint") is True:
        return ToolKind.READ_ONLY
    return ToolKind.IDEMPOTENT if hints.get("idempotentHint") is True else ToolKind.PLAIN


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a tool; passed to it if its first parameter is named `call`."""

    key: str
    """The same whenever this call runs again, so that other systems can recognise repetitions."""
    name: str
    thread_id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """As the model passed them."""
    attempt: int = 1
    db: Any = None
    """The connection, inside the transaction that also saves the result; None unless the tool is a transaction."""
    deadline: dt.datetime | None = None
    """When the tool's timeout ends, if it has one. A function in a worker thread cannot be stopped: check it yourself."""
    undoes: str | None = None
    """In an `undo` function: the key of the call to take back. `key` is then that of the undo itself."""
    alive: Callable[[], bool] = _always
    """False once the run has lost its lease: its result cannot be saved, so a long tool should stop."""
    spent: dict[str, Any] = field(default_factory=dict)

    def spend(self, *, tokens_used: int = 0, cost: float = 0.0) -> None:
        """Report what the call cost; repeated calls add up. Saved with its outcome, and counted by `vault.usage`."""
        more = checked_number(tokens_used, "tokens_used"), float(checked_number(cost, "cost", whole=False))
        self.spent["tokens_used"] = self.spent.get("tokens_used", 0) + more[0]
        self.spent["cost"] = self.spent.get("cost", 0.0) + more[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call. Created by `Toolbox.tool`."""

    name: str
    kind: ToolKind
    ask: bool
    """Whether a person has to agree before each call."""
    description: str
    timeout: dt.timedelta | None
    """Maximum duration of a call. Then the run stops waiting, cancels an asynchronous tool, rolls back a transaction."""
    retries: int
    """Number of retries of a call that raised."""
    backoff: dt.timedelta
    repeat: Repeat
    """What to do if the model asks again for what was done on a line that was left."""
    undo: Callable[..., Any] | None = field(repr=False)
    """`undo(call, result)` takes a call back."""
    function: Callable[..., Any] = field(repr=False)
    _parameters: Parameters = field(repr=False)
    _domain_key: Callable[..., str] | None = field(repr=False)
    _same: Callable[..., Any] | None = field(repr=False)

    @property
    def may_run_again(self) -> bool:
        """Whether a started call with an unknown outcome may be run again."""
        return self.kind is not ToolKind.PLAIN

    @property
    def repeats_freely(self) -> bool:
        """Whether a repetition does nothing new: it only reads, or its own key makes the effect happen once."""
        return self.kind is ToolKind.READ_ONLY or self._domain_key is not None

    @property
    def is_async(self) -> bool:
        """Whether `invoke` returns an awaitable."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments; yours to change."""
        return copy.deepcopy(self._parameters.schema)

    @property
    def annotations(self) -> dict[str, bool]:
        """MCP hints. There, idempotent means once per arguments, which only a key computed from the arguments promises."""
        reads = self.kind is ToolKind.READ_ONLY
        once = reads or self._domain_key is not None
        return {"readOnlyHint": reads, "destructiveHint": not reads, "idempotentHint": once}

    def for_openai(self) -> dict[str, Any]:
        """This tool for OpenAI's chat completions, and for the many APIs compatible with them."""
        about = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": about}

    def for_anthropic(self) -> dict[str, Any]:
        """This tool for Anthropic's messages API."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}

    def check(self, arguments: Any) -> str | None:
        """What is wrong with a model's arguments, as a text for the model; None if they fit. Does not run the tool."""
        try:
            self._parameters.read(arguments)
        except InvalidInputError as error:
            return str(error)
        return None

    def key_for(self, call_key: str, arguments: Mapping[str, Any]) -> str:
        """The key under which these arguments take effect once: from the tool's own key function, else the call's."""
        if self._domain_key is None:
            return call_key
        return checked_id(self._domain_key(**self._parameters.read(arguments)), f"the key of tool {self.name!r}")

    @property
    def has_own_same(self) -> bool:
        """Whether a `same` function says what makes two calls the same, instead of all their arguments."""
        return self._same is not None

    def same(self, arguments: Mapping[str, Any]) -> Any:
        """What makes two calls the same, by the `same` function. Raises InvalidInputError if that fails."""
        assert self._same is not None
        try:
            return plain_result(
                self._same(**self._parameters.read(arguments)), "the function same=", "pass an ordinary function"
            )
        except Exception as error:
            raise InvalidInputError(
                f"the function same= of tool {self.name!r} raised {type(error).__name__}: {error}"
            ) from error

    def invoke(self, call: Call, arguments: Mapping[str, Any]) -> Any:
        """Call the function once. Raises InvalidInputError before that if the arguments do not fit."""
        given = self._parameters.read(arguments)
        return self.function(call=call, **given) if self._parameters.takes_call else self.function(**given)

    def for_undo(self, result: Any) -> UndoTool:
        """The tool that takes back a call with this result; of the same kind, under the same rules."""
        assert self.undo is not None
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return UndoTool(**{**given, "function": self.undo, "_domain_key": None, "result": result})


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoTool(Tool):
    """The undo function of a tool, for one call of it."""

    result: Any = field(repr=False)
    """The result of that call."""

    def invoke(self, call: Call, arguments: Mapping[str, Any]) -> Any:
        """Call the undo function once, with the call and the result."""
        return self.function(call, copy.deepcopy(self.result))


def delays(tool: Tool) -> Iterator[dt.timedelta]:
    """The pause before each retry of a call that raised; empty for a tool without retries."""
    delay, longest = tool.backoff, max(tool.backoff, MAX_BACKOFF)
    for _ in range(tool.retries):
        yield delay
        delay = min(delay * 2, longest)


class Toolbox:
    """The tools that a run may use, by name, in the order in which they were added. Iterating yields each Tool."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self,
        /,
        *,
        read_only: bool = False,
        idempotent: bool | Callable[..., str] = False,
        transaction: bool = False,
        ask: bool = False,
        repeat: str | None = None,
        same: Callable[..., Any] | None = None,
        undo: Callable[..., Any] | None = None,
        name: str | None = None,
        description: str | None = None,
        timeout: dt.timedelta | None = None,
        retries: int | None = None,
        backoff: dt.timedelta | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        read_only: bool = False,
        idempotent: bool | Callable[..., str] = False,
        transaction: bool = False,
        ask: bool = False,
        repeat: str | None = None,
        same: Callable[..., Any] | None = None,
        undo: Callable[..., Any] | None = None,
        name: str | None = None,
        description: str | None = None,
        timeout: dt.timedelta | None = None,
        retries: int | None = None,
        backoff: dt.timedelta | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> Any:
        """Add a function, `@tools.tool` or `@tools.tool(read_only=True)`; returns it unchanged.

        At most one mark: `read_only` (changes nothing), `idempotent` (once per `call.key`, or per key that a function computes
        from the arguments), `transaction` (writes through `call.db` only). Unmarked runs at most once. `ask` goes with any.
        `annotations`, the hints of an MCP server that you trust, replace a mark.
        `repeat`: what to do if the model asks again for what was done on a line that was left by a rewind or a fork: "ask" a
        person (default), "reuse" the kept result, or "run". Two calls are the same if all their arguments are equal, or what
        `same` returns for them. `undo(call, result)` takes a call back, see `Vault.undo`.
        The function gets the Call if its first parameter is named `call`, and the arguments by name. Its docstring's first
        paragraph is the description. A failed call is retried `retries` times, by default 2 if it reads or has a key.
        Raises InvalidInputError, naming the tool, for contradictions and for signatures that a model cannot call.
        """

        def add(found: F) -> F:
            called = _checked_name(found, name)
            try:
                kind = _kind(read_only=read_only, idempotent=idempotent, transaction=transaction, annotations=annotations)
                parameters = parameters_of(found)
                _check_function(found, kind, parameters)
                own_key = None if isinstance(idempotent, bool) else _checked_key(idempotent, parameters)
                if kind is ToolKind.READ_ONLY or own_key is not None:
                    _refuse_needless(kind, repeat=repeat, same=same, undo=undo)
                new = Tool(
                    name=called,
                    kind=kind,
                    ask=ask,
                    description=_first_paragraph(found) if description is None else description,
                    timeout=None if timeout is None else checked_duration(timeout, "timeout"),
                    retries=_checked_retries(kind, retries, backoff),
                    backoff=BACKOFF if backoff is None else checked_duration(backoff, "backoff"),
                    repeat=_checked_repeat(repeat),
                    undo=None if undo is None else _checked_undo(undo, kind),
                    function=found,
                    _parameters=parameters,
                    _domain_key=own_key,
                    _same=None if same is None else _checked_same(same, parameters),
                )
            except InvalidInputError as error:
                raise InvalidInputError(f"tool {called!r}: {error}") from error
            self._add(new)
            return found

        return add if function is None else add(function)

    def _add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise InvalidInputError(f"tool {tool.name!r} already exists; give one of the two another name=")
        self._tools[tool.name] = tool

    def __getitem__(self, name: str) -> Tool:
        if name not in self._tools:
            raise NotFoundError(f"tool {name!r} does not exist; known tools: {', '.join(self._tools) or 'none'}")
        return self._tools[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __or__(self, other: Toolbox) -> Toolbox:
        both = Toolbox()
        for tool in (*self, *other):
            both._add(tool)
        return both

    def __repr__(self) -> str:
        return f"<Toolbox {', '.join(self._tools)}>"


def _checked_name(function: Any, name: str | None) -> str:
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise InvalidInputError(f"a tool must be a function, not {function!r}; wrap it in one")
    called = function.__name__ if name is None else name
    if not isinstance(called, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", called):
        raise InvalidInputError(
            f"tool {called!r}: a name has 1 to 64 characters, each A-Z, a-z, 0-9, _ or -; pass another name="
        )
    return called


def _kind(*, read_only: bool, idempotent: object, transaction: bool, annotations: Mapping[str, Any] | None) -> ToolKind:
    if not isinstance(idempotent, bool) and not callable(idempotent):
        raise InvalidInputError(f"idempotent must be True or a function that returns a key, not {idempotent!r}")
    marks = {ToolKind.READ_ONLY: read_only, ToolKind.IDEMPOTENT: idempotent, ToolKind.TRANSACTION: transaction}
    marked = [kind for kind, given in marks.items() if given]
    if len(marked) > 1:
        raise InvalidInputError(f"{' and '.join(marked)} exclude each other; mark it with one of them")
    return marked[0] if marked else _kind_from_mcp(annotations or {})


def _check_function(function: Callable[..., Any], kind: ToolKind, parameters: Parameters) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInputError("it is a generator, whose values cannot be saved; return a list")
    if kind is ToolKind.TRANSACTION and not parameters.takes_call:
        raise InvalidInputError("a transaction writes through call.db; name its first parameter call")
    if kind is ToolKind.TRANSACTION and inspect.iscoroutinefunction(function):
        raise InvalidInputError("a transaction holds the database while it runs, so it must not await; make it a plain def")


def _checked_retries(kind: ToolKind, retries: int | None, backoff: dt.timedelta | None) -> int:
    repeatable = kind in (ToolKind.READ_ONLY, ToolKind.IDEMPOTENT)
    if not repeatable and (retries is not None or backoff is not None):
        raise InvalidInputError(
            f"{'an unmarked tool runs at most once' if kind is ToolKind.PLAIN else 'a transaction is tried once'}; "
            f"retries and backoff need read_only or idempotent"
        )
    if retries is None:
        return RETRIES if repeatable else 0
    if type(retries) is not int or retries < 0:
        raise InvalidInputError(f"retries must be a whole number, at least 0, not {retries!r}")
    return retries


def _checked_key(make: Callable[..., str], parameters: Parameters) -> Callable[..., str]:
    _check_of_arguments(make, "the function that returns its key", parameters)
    return make


def _check_of_arguments(function: Callable[..., Any], what: str, parameters: Parameters) -> None:
    """Raise InvalidInputError unless this is an ordinary function of a tool's arguments."""
    refuse_asynchronous(function, what, "pass an ordinary function")
    names = dict.fromkeys(parameters.schema["properties"])
    try:
        inspect.signature(function).bind(**names)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{what} must take its arguments by name ({error})") from error


def _checked_same(same: Callable[..., Any], parameters: Parameters) -> Callable[..., Any]:
    if not callable(same):
        raise InvalidInputError(f"same must be a function of its arguments, not {same!r}")
    _check_of_arguments(same, "the function same=", parameters)
    return same


def _checked_repeat(repeat: str | None) -> Repeat:
    if repeat not in (None, *Repeat):
        raise InvalidInputError(f"repeat must be 'ask', 'reuse' or 'run', not {repeat!r}")
    return Repeat(repeat or Repeat.ASK)


def _checked_undo(undo: Callable[..., Any], kind: ToolKind) -> Callable[..., Any]:
    if not callable(undo):
        raise InvalidInputError(f"undo must be a function, not {undo!r}")
    try:
        inspect.signature(undo).bind("call", "result")
    except TypeError as error:
        raise InvalidInputError(f"undo must take a call and its result ({error})") from error
    if inspect.isgeneratorfunction(undo) or inspect.isasyncgenfunction(undo):
        raise InvalidInputError("its undo is a generator, which does nothing when it is called; make it an ordinary function")
    if kind is ToolKind.TRANSACTION and inspect.iscoroutinefunction(undo):
        raise InvalidInputError(
            "a transaction holds the database while it is undone, so undo must not await; make it a plain def"
        )
    return undo


def _refuse_needless(kind: ToolKind, **given: Any) -> None:
    """Refuse options that have no meaning for a tool whose calls may be repeated freely."""
    reads = kind is ToolKind.READ_ONLY
    needless = [name for name, value in given.items() if value is not None and (reads or name != "undo")]
    if needless:
        why = "a read_only tool has no effect" if reads else "a tool with its own key repeats freely"
        raise InvalidInputError(f"{why}, so it takes no {' or '.join(needless)}=; remove it")


def _first_paragraph(function: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
