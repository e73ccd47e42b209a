"""Tools: what they are marked as, what a model is told of them, and what of its arguments is refused."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Optional, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from savegame.errors import InvalidInputError, NotFoundError
from savegame.runs.toolbox import MAX_BACKOFF, Call, Tool, Toolbox, ToolKind, delays

if TYPE_CHECKING:
    from decimal import Decimal

SECOND = dt.timedelta(seconds=1)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Odd(Enum):
    PAIR = (1, 2)


@dataclass
class Line:
    item: str
    cents: int = 0
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise ValueError("cents must not be negative")


@dataclass
class Tree:
    children: list[Tree]


class Place(TypedDict):
    city: str
    street: NotRequired[str]


class Inner(BaseModel):
    at: dt.datetime


class Order(BaseModel):
    number: int
    inner: Inner | None = None

    @field_validator("number")
    @classmethod
    def positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError("numbers start at 1")
        return value


class Folder(BaseModel):
    folders: list[Folder] = []


def a_call(**more: Any) -> Call:
    return Call(key="k1", name="tool", thread_id="t1", **more)


def made(function: Callable[..., Any], **marks: Any) -> Tool:
    tools = Toolbox()
    tools.tool(**marks)(function)
    (tool,) = tools
    return tool


def taking(annotation: Any) -> Tool:
    """A tool that gives back its only argument, `x`, which has this type."""

    def echo(x):  # type: ignore[no-untyped-def]
        return x

    echo.__annotations__["x"] = annotation
    return made(echo)


def shown(annotation: Any) -> Any:
    return taking(annotation).schema["properties"]["x"]


def refund(call: Call, order: str, cents: int = 0) -> str:
    """Give money back.
    It takes a day.

    Args:
        order: which one
        cents (int): how much
    """
    return f"{call.key}:{order}:{cents}"


# -- kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marks", "kind", "again"),
    [
        ({}, ToolKind.PLAIN, False),
        ({"read_only": True}, ToolKind.READ_ONLY, True),
        ({"idempotent": True}, ToolKind.IDEMPOTENT, True),
        ({"idempotent": lambda order, cents: order}, ToolKind.IDEMPOTENT, True),
        ({"transaction": True}, ToolKind.TRANSACTION, True),
    ],
)
@pytest.mark.parametrize("ask", [True, False])
def test_only_an_unmarked_tool_must_not_run_again_and_any_may_ask(
    marks: dict[str, Any], kind: ToolKind, again: bool, ask: bool
) -> None:
    tool = made(refund, ask=ask, **marks)
    assert (tool.kind, tool.may_run_again, tool.ask) == (kind, again, ask)


def test_without_parentheses_a_tool_is_unmarked_and_the_function_stays_a_function() -> None:
    tools = Toolbox()

    @tools.tool
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert tools["double"].kind is ToolKind.PLAIN
    assert not tools["double"].ask


def test_a_tool_cannot_be_changed() -> None:
    tool = made(refund)
    with pytest.raises(FrozenInstanceError):
        tool.name = "other"  # type: ignore[misc]
    tool.schema["properties"].clear()
    tool.for_openai()["function"]["parameters"]["properties"].clear()
    assert set(tool.schema["properties"]) == {"order", "cents"}


def yields(x: int) -> Iterator[int]:
    yield x


async def awaits(call: Call) -> None:
    await asyncio.sleep(0)


def rest(*x: int) -> None: ...
def options(**x: int) -> None: ...
def by_place(x: int, /) -> None: ...
def late(x: int, call: Call) -> None: ...
def größe(x: int) -> None: ...
def unresolved(x: Decimal) -> None: ...


@pytest.mark.parametrize(
    ("function", "marks", "says"),
    [
        (refund, {"read_only": True, "idempotent": True}, "'refund': read_only and idempotent exclude each other"),
        (refund, {"idempotent": lambda **_: "k", "transaction": True}, "'refund': idempotent and transaction exclude"),
        (refund, {"idempotent": "order"}, "'refund': idempotent must be True or a function"),
        (refund, {"idempotent": lambda order: order}, "'refund': the function that returns its key must take"),
        (refund, {"retries": 1}, "'refund': an unmarked tool runs at most once"),
        (refund, {"backoff": SECOND}, "'refund': an unmarked tool runs at most once"),
        (refund, {"transaction": True, "retries": 1}, "'refund': a transaction is tried once"),
        (refund, {"transaction": True, "backoff": SECOND}, "'refund': a transaction is tried once"),
        (refund, {"read_only": True, "retries": -1}, "'refund': retries must be"),
        (refund, {"read_only": True, "retries": True}, "'refund': retries must be"),
        (refund, {"read_only": True, "backoff": dt.timedelta(0)}, "'refund': backoff must be longer"),
        (refund, {"timeout": 5}, "'refund': timeout must be a timedelta"),
        (refund, {"name": "pay back"}, "'pay back': a name has 1 to 64"),
        (größe, {}, "pass another name="),
        (lambda x: x, {}, "pass another name="),
        (late, {"transaction": True}, "'late': the parameter call must come first"),
        (late, {}, "'late': the parameter call must come first"),
        (by_place, {}, "'by_place': its parameter 'x' cannot be passed by name"),
        (rest, {}, "'rest': its parameter 'x' cannot be passed by name"),
        (options, {}, "'options': its parameter 'x' cannot be passed by name"),
        (yields, {}, "'yields': it is a generator"),
        (awaits, {"transaction": True}, "'awaits': a transaction holds the database"),
        (yields, {"transaction": True}, "'yields'"),
        (unresolved, {}, "'unresolved': a type cannot be resolved: name 'Decimal'"),
        (functools.partial(refund, cents=1), {}, "a tool must be a function, not functools.partial"),
        (Line, {}, "a tool must be a function, not <class"),
        (print, {}, "a tool must be a function, not <built-in"),
    ],
)
def test_a_contradiction_is_refused_by_name(function: Any, marks: dict[str, Any], says: str) -> None:
    tools = Toolbox()
    with pytest.raises(InvalidInputError) as caught:
        tools.tool(**marks)(function)
    assert says in str(caught.value)
    assert len(tools) == 0


def test_a_transaction_must_take_the_call_for_its_connection() -> None:
    with pytest.raises(InvalidInputError, match=r"tool 'note': a transaction writes through call\.db"):
        made(lambda text: None, transaction=True, name="note")


# -- what a model is told --------------------------------------------------------------------------


def test_providers_are_told_name_description_and_parameters() -> None:
    schema = {
        "type": "object",
        "properties": {
            "order": {"type": "string", "description": "which one"},
            "cents": {"type": "integer", "description": "how much", "default": 0},
        },
        "required": ["order"],
        "additionalProperties": False,
    }
    tool = made(refund)
    about = {"name": "refund", "description": "Give money back. It takes a day."}
    assert tool.for_openai() == {"type": "function", "function": {**about, "parameters": schema}}
    assert tool.for_anthropic() == {**about, "input_schema": schema}


def test_a_name_and_a_description_can_be_given() -> None:
    tool = made(refund, name="pay-back", description="Pay back.")
    assert (tool.name, tool.description) == ("pay-back", "Pay back.")
    assert made(lambda: 1, name="one").description == ""


LINE = {
    "type": "object",
    "properties": {
        "item": {"type": "string"},
        "cents": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["item"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (list, {"type": "array", "items": {}}),
        (dict, {"type": "object", "additionalProperties": {}}),
        (list[list[int]], {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, None], {"enum": [1, None]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045 - the old spelling too
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Size, {"type": "integer", "enum": [1, 2]}),
        (Annotated[int, "in cents"], {"type": "integer", "description": "in cents"}),
        (Line, LINE),
        ("list[Line]", {"type": "array", "items": LINE}),
        (
            Place,
            {
                "type": "object",
                "properties": {"city": {"type": "string"}, "street": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_the_schema_follows_the_annotation(annotation: Any, schema: Any) -> None:
    assert shown(annotation) == schema


def test_what_pydantic_models_refer_to_is_found_from_the_root() -> None:
    schema = taking(list[Order]).schema
    assert schema["properties"]["x"]["items"]["properties"]["inner"]["anyOf"][0] == {"$ref": "#/$defs/Inner"}
    assert schema["$defs"]["Inner"]["properties"]["at"]["format"] == "date-time"
    assert "$defs" not in schema["properties"]["x"]["items"]
    assert taking(Folder).check({"x": {"folders": [{"folders": []}]}}) is None


@pytest.mark.parametrize("annotation", [complex, set[int], tuple[int, ...], bytes, dict[int, str], Odd, Tree, "list[Tree]"])
def test_what_json_has_no_words_for_is_refused_by_parameter(annotation: Any) -> None:
    with pytest.raises(InvalidInputError, match="tool 'echo': its parameter 'x': "):
        taking(annotation)


def test_two_different_models_of_one_name_are_refused() -> None:
    class Other(BaseModel):
        inner: list[type_called_inner()]  # type: ignore[misc]

    def both(x: Any, y: Any) -> None: ...

    both.__annotations__.update(x=Order, y=Other)
    with pytest.raises(InvalidInputError, match="two models are called 'Inner'"):
        made(both)


def type_called_inner() -> type:
    return type("Inner", (BaseModel,), {"__annotations__": {"other": int}})


@pytest.mark.parametrize(
    ("marks", "reads", "once"),
    [
        ({}, False, False),
        ({"read_only": True}, True, True),
        ({"idempotent": True}, False, False),
        ({"idempotent": lambda order, cents: order}, False, True),
        ({"transaction": True}, False, False),
    ],
)
def test_mcp_is_told_no_more_than_is_true(marks: dict[str, Any], reads: bool, once: bool) -> None:
    hints = made(refund, **marks).annotations
    assert hints == {"readOnlyHint": reads, "destructiveHint": not reads, "idempotentHint": once}


@pytest.mark.parametrize(
    ("hints", "kind"),
    [
        (None, ToolKind.PLAIN),
        ({}, ToolKind.PLAIN),
        ({"destructiveHint": False}, ToolKind.PLAIN),
        ({"readOnlyHint": True, "idempotentHint": True}, ToolKind.READ_ONLY),
        ({"readOnlyHint": False, "idempotentHint": True}, ToolKind.IDEMPOTENT),
        ({"readOnlyHint": "true", "idempotentHint": 1}, ToolKind.PLAIN),
    ],
)
def test_the_hints_of_mcp_map_onto_kinds(hints: Any, kind: ToolKind) -> None:
    assert made(refund, annotations=hints).kind is kind


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "given", "read"),
    [
        (float, 3, 3.0),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (int | str, "3", "3"),
        (Colour, "blue", Colour.BLUE),
        (Size | None, 2, Size.LARGE),
        (Literal[1, True], True, True),
        (dict[str, Line], {"a": {"item": "tea"}}, {"a": Line("tea")}),
        (Line | Place, {"city": "Oslo"}, {"city": "Oslo"}),
        (
            Order,
            {"number": 1, "inner": {"at": "2026-01-02T00:00:00Z"}},
            Order(number=1, inner=Inner(at="2026-01-02T00:00:00Z")),
        ),
        (Any, [1, "a", None], [1, "a", None]),
    ],
)
def test_a_function_gets_what_its_signature_says(annotation: Any, given: Any, read: Any) -> None:
    tool = taking(annotation)
    assert tool.check({"x": given}) is None
    found = tool.invoke(a_call(), {"x": given})
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("annotation", "given", "says"),
    [
        (str, 3, "x must be a string, not an integer"),
        (int, "3", "x must be an integer, not a string"),
        (int, 3.0, "x must be an integer, not a number"),
        (int, True, "x must be an integer, not a boolean"),
        (bool, 1, "x must be a boolean, not an integer"),
        (float, "3", "x must be a number, not a string"),
        (float, 10**400, "x is too large a number"),
        (str, None, "x must be a string, not null"),
        (list[int], {"a": 1}, "x must be an array, not an object"),
        (list[int], [1, "2"], "x[1] must be an integer, not a string"),
        (dict[str, int], [1], "x must be an object, not an array"),
        (dict[str, int], {"a": None}, "x.a must be an integer, not null"),
        (int | None, "a", "x must be an integer, not a string, or x must be null, not a string"),
        (Colour, "green", 'x must be one of "red", "blue"; not \'green\''),
        (Literal[1, "a"], True, 'x must be one of 1, "a"; not True'),
        (Line, {"cents": "1"}, "x.item is missing; x.cents must be an integer, not a string"),
        (Line, {"item": "tea", "cents": -1}, "x: cents must not be negative"),
        (list[Line], [{"item": "tea", "price": 1}], "x[0].price is unknown; expected: item, cents, tags"),
        (Place, {"street": "Main"}, "x.city is missing"),
        (Order, {"number": "1"}, "x.number: Input should be a valid integer"),
        (Order, {"number": 0}, "x.number: Value error, numbers start at 1"),
        (Order, {"number": 1, "inner": {}}, "x.inner.at: Field required"),
        (Order, {"number": object()}, "x is not JSON: Object of type object is not JSON serializable"),
    ],
)
def test_a_wrong_argument_is_told_in_words_and_runs_nothing(annotation: Any, given: Any, says: str) -> None:
    ran = []

    def note(x: Any) -> None:
        ran.append(x)

    note.__annotations__["x"] = annotation
    tool = made(note)
    assert tool.check({"x": given}) == says
    with pytest.raises(InvalidInputError):
        tool.invoke(a_call(), {"x": given})
    assert not ran


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "order is missing"),
        ({"order": "o1", "amount": 3}, "amount is unknown; expected: order, cents"),
        ({"order": 1, "cents": "2"}, "order must be a string, not an integer; cents must be an integer, not a string"),
        ({"order": "o1", "call": "k2"}, "call is unknown; expected: order, cents"),
        (["o1"], "the arguments must be an object, not an array"),
        ("{", "the arguments must be an object, not a string"),
        (None, "the arguments must be an object, not null"),
    ],
)
def test_missing_and_unknown_arguments_are_told_all_at_once(arguments: Any, says: str) -> None:
    assert made(refund).check(arguments) == says


def test_what_a_model_makes_up_is_cut_short() -> None:
    told = made(refund).check({"order": "o1", "x" * 10_000: 1}) or ""
    assert "is unknown" in told
    assert len(told) < 200
    assert len(taking(Colour).check({"x": "y" * 10_000}) or "") < 200


def test_a_parameter_without_a_type_takes_anything() -> None:
    tool = made(lambda order: order, name="find")
    assert tool.schema["properties"] == {"order": {}}
    assert tool.invoke(a_call(), {"order": [1]}) == [1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ANNOTATIONS = [str, int, float, list[Line], dict[str, int | None], Colour, Place, Order, Folder, Line | Literal["a", 1]]


@given(st.sampled_from(ANNOTATIONS).map(taking), JSON | st.fixed_dictionaries({"x": JSON}))
def test_whatever_a_model_says_is_either_told_wrong_or_runs(tool: Tool, arguments: Any) -> None:
    problem = tool.check(arguments)
    if problem is None:
        tool.invoke(a_call(), arguments)
    else:
        with pytest.raises(InvalidInputError):
            tool.invoke(a_call(), arguments)


# -- calling ---------------------------------------------------------------------------------------


def test_a_first_parameter_named_call_gets_the_call() -> None:
    assert made(refund).invoke(a_call(), {"order": "o1"}) == "k1:o1:0"
    assert made(lambda: "pong", name="ping").invoke(a_call(), {}) == "pong"


def test_a_bound_method_is_a_tool() -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        def greet(self, call: Call, who: str) -> str:
            return f"{who} at {self.name} ({call.thread_id})"

    assert made(Shop("A").greet).invoke(a_call(), {"who": "you"}) == "you at A (t1)"


def test_a_wrapped_function_keeps_its_signature() -> None:
    @functools.wraps(refund)
    def logged(*args: Any, **kwargs: Any) -> Any:
        return refund(*args, **kwargs)

    tool = made(logged)
    assert tool.schema == made(refund).schema
    assert tool.invoke(a_call(), {"order": "o1", "cents": 5}) == "k1:o1:5"


def test_an_asynchronous_tool_gives_something_to_await() -> None:
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    tool = made(later)
    assert tool.is_async
    assert not made(refund).is_async
    assert asyncio.run(tool.invoke(a_call(), {"x": 1})) == 2


def test_a_tool_can_ask_whether_its_run_still_holds_the_lease() -> None:
    held = [True]
    call = a_call(alive=lambda: held[0])
    assert call.alive()
    held[0] = False
    assert not call.alive()
    assert a_call().alive()
    assert (a_call().db, a_call().deadline, a_call().attempt) == (None, None, 1)


def test_a_domain_key_is_made_of_the_arguments_and_their_defaults() -> None:
    tool = made(refund, idempotent=lambda order, cents: f"refund:{order}:{cents}")
    assert tool.key_for("k1", {"order": "o1"}) == tool.key_for("k2", {"order": "o1", "cents": 0}) == "refund:o1:0"
    assert made(refund, idempotent=True).key_for("k1", {"order": "o1"}) == "k1"


@pytest.mark.parametrize("key", ["", None, 5, "a\0b", "k" * 1000])
def test_a_domain_key_that_no_store_could_keep_is_refused(key: Any) -> None:
    with pytest.raises(InvalidInputError, match="the key of tool 'refund'"):
        made(refund, idempotent=lambda **_: key).key_for("k1", {"order": "o1"})


# -- retries ---------------------------------------------------------------------------------------


def waits(**marks: Any) -> list[float]:
    return [delay.total_seconds() for delay in delays(made(refund, **marks))]


@pytest.mark.parametrize("marks", [{"read_only": True}, {"idempotent": True}])
def test_what_may_be_repeated_is_tried_three_times(marks: dict[str, Any]) -> None:
    assert waits(**marks) == [0.1, 0.2]


@pytest.mark.parametrize("marks", [{}, {"transaction": True}, {"ask": True}, {"read_only": True, "retries": 0}])
def test_nothing_else_is_tried_again_unasked(marks: dict[str, Any]) -> None:
    assert waits(**marks) == []


def test_delays_double_up_to_a_cap() -> None:
    assert waits(read_only=True, retries=7, backoff=SECOND)[-2:] == [MAX_BACKOFF.total_seconds()] * 2
    assert waits(read_only=True, retries=2, backoff=90 * SECOND) == [90, 90]
    assert len(waits(read_only=True, retries=5_000)) == 5_000


# -- the box ---------------------------------------------------------------------------------------


def test_tools_are_found_by_name_in_their_order() -> None:
    tools = Toolbox()
    tools.tool(refund)
    tools.tool(name="again")(refund)
    assert [tool.name for tool in tools] == ["refund", "again"]
    assert len(tools) == 2
    assert "again" in tools
    assert "other" not in tools
    assert tools["again"].function is refund
    with pytest.raises(NotFoundError, match="tool 'other' does not exist; known tools: refund, again"):
        tools["other"]


def test_a_name_is_given_once() -> None:
    tools = Toolbox()
    tools.tool(refund)
    with pytest.raises(InvalidInputError, match="tool 'refund' already exists"):
        tools.tool(read_only=True)(refund)
    assert tools["refund"].kind is ToolKind.PLAIN


def test_two_boxes_make_a_third() -> None:
    one, two = Toolbox(), Toolbox()
    one.tool(refund)
    two.tool(name="other")(refund)
    assert [tool.name for tool in one | two] == ["refund", "other"]
    assert (len(one), len(two)) == (1, 1)
    with pytest.raises(InvalidInputError, match="'refund' already exists"):
        one | one
