"""Spans of a run for OpenTelemetry, named by its conventions for generative AI; none if its API is not installed.

The only module that knows OpenTelemetry, which is imported when the first run begins. A span has names, ids, counts and the
type of an error. It never contains content: no message, argument or result, and not the text of an error, which may quote
them. Touches errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from savegame.errors import Paused, Stopped, needs_descriptors

if TYPE_CHECKING:
    from opentelemetry.trace import Span as ApiSpan
    from opentelemetry.trace import Tracer

_TOKENS: Final = {
    "gen_ai.usage.input_tokens": ("input_tokens", "prompt_tokens"),
    "gen_ai.usage.output_tokens": ("output_tokens", "completion_tokens"),
}
"""Names of the counts in a reply's `usage`, by attribute: two providers, two spellings."""
_CHAT: Final = {"gen_ai.operation.name": "chat"}


class Span:
    """A traced piece of work. Without OpenTelemetry its methods do nothing."""

    def __init__(self, span: ApiSpan | None = None) -> None:
        self._span = span

    def used(self, counts: Mapping[str, Any] | None) -> None:
        """Record the token counts of a model's reply, if it has any."""
        if self._span is None or counts is None:
            return
        for attribute, spellings in _TOKENS.items():
            found = [counts[name] for name in spellings if isinstance(counts.get(name), int)]
            if found:
                self._span.set_attribute(attribute, found[0])

    def current(self) -> AbstractContextManager[Any]:
        """Make it the parent of spans that begin in the block; for a span that is not."""
        if self._span is None:
            return nullcontext()
        from opentelemetry.trace import use_span

        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    def failed(self, error: BaseException) -> None:
        """Record that the work ended with an error, and its type."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("error.type", _type_of(error))
        self._span.set_status(StatusCode.ERROR)


_UNTRACED: Final = nullcontext(Span())


def run(thread_id: str, agent: str | None) -> AbstractContextManager[Span]:
    """The span of a run, while it holds its lease."""
    title = "invoke_agent" if agent is None else f"invoke_agent {agent}"
    about = {"gen_ai.agent.id": agent, "gen_ai.agent.name": agent}
    return _span(title, thread_id, about | {"gen_ai.operation.name": "invoke_agent"})


def chat(thread_id: str) -> AbstractContextManager[Span]:
    """The span of one call of the model."""
    return _span("chat", thread_id, _CHAT)


@contextmanager
def stream(thread_id: str) -> Iterator[Span]:
    """The span of one call of the model that streams. It is not current: the caller's code runs between the pieces."""
    tracer = _tracer()
    if tracer is None:
        yield Span()
        return
    from opentelemetry.trace import SpanKind

    opened = tracer.start_span("chat", kind=SpanKind.CLIENT, attributes={**_CHAT, "gen_ai.conversation.id": thread_id})
    span = Span(opened)
    try:
        yield span
    except BaseException as error:  # a caller that leaves ends the span too
        span.failed(error)
        raise
    finally:
        opened.end()


def tool(thread_id: str, name: str, call_id: str, key: str) -> AbstractContextManager[Span]:
    """The span of one tool call with all its retries. `key` is the call's in the ledger."""
    about = {"gen_ai.tool.name": name, "gen_ai.tool.type": "function", "gen_ai.tool.call.id": call_id}
    about |= {"gen_ai.operation.name": "execute_tool", "savegame.call.key": key}
    return _span(f"execute_tool {name}", thread_id, about)


def save(thread_id: str, kind: str) -> AbstractContextManager[Span]:
    """The span of writing one checkpoint; the conventions have no operation name for it."""
    return _span("save", thread_id, {"savegame.checkpoint.kind": str(kind)})


def _span(title: str, thread_id: str, about: Mapping[str, str | None]) -> AbstractContextManager[Span]:
    tracer = _tracer()
    if tracer is None:
        return _UNTRACED
    known = {name: value for name, value in about.items() if value is not None}
    return _traced(tracer, title, known | {"gen_ai.conversation.id": thread_id})


@contextmanager
def _traced(tracer: Tracer, title: str, known: Mapping[str, str]) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind

    opened = tracer.start_as_current_span(
        title,
        kind=SpanKind.CLIENT if title == "chat" else SpanKind.INTERNAL,
        attributes=known,
        record_exception=False,  # both would record the error's text
        set_status_on_exception=False,
    )
    with opened as found:
        span = Span(found)
        try:
            yield span
        except (Paused, Stopped):  # it waits for a person or the time, or was ended by one, as it should
            raise
        except BaseException as error:  # an interrupt ends the span too
            span.failed(error)
            raise


@cache
def _tracer() -> Tracer | None:
    try:
        with needs_descriptors("opentelemetry"):
            from opentelemetry.trace import get_tracer
    except ImportError:
        return None
    return get_tracer("savegame")


def _type_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
