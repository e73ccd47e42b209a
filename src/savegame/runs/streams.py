"""A model's stream: its pieces are handed on as they come, and become one reply at its end. Both colours use this.

Nothing of a stream is kept before it is whole: a stream that is cut is logged, and the model is asked again. Touches replies,
sdk_replies, tracing and errors.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from savegame.errors import InvalidInputError
from savegame.messages.domain import Message
from savegame.runs import tracing
from savegame.runs.replies import quoting, refuse_unread
from savegame.runs.sdk_replies import read_reply, usage_of
from savegame.waiting.awaiting import OPEN_ASYNC

logger = logging.getLogger("savegame")

END: Final = object()
"""Takes the place of the piece after the last one."""


class StreamPieces:
    """The pieces of one stream so far: texts and, at the end, the message if the stream has one."""

    def __init__(self, span: tracing.Span) -> None:
        self.span = span
        self._received: list[Any] = []
        self._message: Any = END

    def take(self, piece: Any) -> str | None:
        """The text to hand on; None for the message at the end. Raises InvalidInputError for anything else."""
        self._received.append(piece)
        with quoting(self._received):
            if self._message is not END:
                raise InvalidInputError("the stream goes on after its message; yield pieces of text first, then the message")
            if isinstance(piece, str):
                return piece
            if piece is None:
                raise InvalidInputError("a piece of the stream is None; yield text, and leave out what is empty")
            refuse_unread(read_reply(piece))
        self._message = piece
        return None

    def reply(self) -> Any:
        """The whole reply: the message, or the joined texts."""
        if not self._received:
            raise InvalidInputError("the stream ended without a piece: there is no reply; ask again")
        whole = "".join(self._received) if self._message is END else self._message
        self.span.used(usage_of(whole))
        return whole

    def __len__(self) -> int:
        return len(self._received)


@contextmanager
def receiving(thread_id: str) -> Iterator[StreamPieces]:
    """Receive a stream inside the block. If the block is left early, by an exception or by the caller, that is logged."""
    pieces: StreamPieces | None = None
    try:
        with tracing.stream(thread_id) as span:
            pieces = StreamPieces(span)
            yield pieces
    except BaseException as error:  # a caller that leaves or is cancelled too
        why = "its reader left" if isinstance(error, GeneratorExit) else type(error).__name__
        logger.warning(
            "thread %r: a stream was cut (%s), pieces so far: %d; nothing of it was kept", thread_id, why, len(pieces or ())
        )
        raise


def source_of(stream: Any, *, awaits: bool) -> Any:
    """An iterator over what the model's function returned; asynchronous only if the run `awaits`."""
    if not isinstance(stream, (str, bytes, Mapping, Message)) and not hasattr(stream, "model_dump"):
        if awaits and isinstance(stream, AsyncIterable):
            return aiter(stream)
        if isinstance(stream, Iterable):
            return iter(stream)
    with quoting(stream):
        if isinstance(stream, AsyncIterable):
            raise InvalidInputError(
                f"the model's function is asynchronous: it returned a stream to iterate with async for; {OPEN_ASYNC}"
            )
        raise InvalidInputError(
            f"run.stream needs a function that returns pieces of text one by one, not {type(stream).__name__}; "
            f"use run.model for a function that returns a whole reply"
        )


def closers(stream: Any, source: Any, name: str) -> Iterator[Any]:
    """The methods that end a stream and its iterator, if they have any."""
    for one in dict.fromkeys((id(source), id(stream))):
        close = getattr(source if one == id(source) else stream, name, None)
        if callable(close):
            yield close


def next_piece(source: Iterator[Any], pieces: StreamPieces) -> Any:
    """The next piece, or END."""
    with pieces.span.current():
        return next(source, END)
