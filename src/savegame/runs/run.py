"""A run: one holder working on a thread under a lease, calling the model and the tools in turn.

The conversation is the program counter: a resumed run finds the messages so far, settles the calls without an answer, and
continues. Nothing is replayed. After a crash the kind of a tool decides what to do about a started call; it is never guessed.
Touches core, lease, toolbox, tracing, views, store, errors.
"""

from __future__ import annotations

import copy
import datetime as dt
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, NamedTuple, ParamSpec, TypeGuard, TypeVar

from savegame.checkpoint import Checkpoint
from savegame.errors import InvalidInputError, TransactionFailed, UnavailableError, UnsupportedError
from savegame.messages import views
from savegame.messages.domain import AgentState
from savegame.model import Kind, Status, checked_id
from savegame.runs import tracing
from savegame.runs.boundary import checked_moment, checked_pause
from savegame.runs.budget import OVER_BUDGET, Budget, Usage, spent_by
from savegame.runs.conversation import NO_RESULT
from savegame.runs.core import Go, KnownCall, RunCore
from savegame.runs.lease import Hold
from savegame.runs.replies import plain_reply, quoting
from savegame.runs.sdk_replies import usage_of
from savegame.runs.showing import Showing
from savegame.runs.streams import END, closers, next_piece, receiving, source_of
from savegame.runs.toolbox import Call, Toolbox, ToolKind, delays
from savegame.store import Capability, Store
from savegame.waiting.awaiting import plain_result

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE: Final = 8
"""Maximum number of calls of one reply that run at the same time."""

LOOK_S: Final = 0.2
"""For how many seconds `call.alive()` relies on what it read."""


class Outcome(NamedTuple):
    """The outcome of a call: its last attempt, whether it returned, and its result or exception."""

    go: Go
    done: bool
    value: Any


class _Failed(Exception):
    """Wraps what a tool raised inside a transaction, which must be rolled back."""


class TimedOut(TimeoutError):
    """A tool did not return in time; its thread keeps running."""

    def __init__(self, timeout: dt.timedelta) -> None:
        super().__init__(f"it did not return within {timeout.total_seconds():g} s")


class CutShort(Exception):
    """A call was cancelled because its run is stopped."""

    def __init__(self) -> None:
        super().__init__("it was cancelled because the run was stopped")


class AnyRun(Showing):
    """The common part of Run and AsyncRun: the state of a run, and saving the outcomes of calls."""

    def __init__(
        self,
        core: RunCore,
        hold: Hold,
        store: Store,
        thread_id: str,
        *,
        budget: Budget | None = None,
        load_agent: Callable[[], AgentState | None] | None = None,
    ) -> None:
        super().__init__(core, load_agent)
        self._hold, self._store, self._thread_id, self._budget = hold, store, thread_id, budget
        if budget is not None:
            core.count_spent()
        self._paid: tuple[Checkpoint | None, Any, Usage | None] | None = None
        """A reply that the store could not take yet: the model is not asked for it again."""
        self._stopped = False
        """Whether it is known that the run was asked to stop."""
        self._looked = -LOOK_S

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as any provider accepts it: every call answered, in order. The stored one does not change."""
        return views.closed(self._core.messages, notes=self._core.notes)

    @property
    def state(self) -> dict[str, Any]:
        """The state of the thread besides the messages. Change it, then `save()`."""
        return self._core.state

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint of the run; None before the first."""
        return self._core.checkpoint

    @property
    def done(self) -> bool:
        """Whether nothing is left to do: the newest reply calls nothing, or the run was halted."""
        return self._core.done

    @property
    def reply(self) -> Any:
        """What the model's newest reply says: its text, or its content if that is neither text nor parts; None without any."""
        return self._core.reply

    @property
    def alive(self) -> bool:
        """False once the lease is known to be lost: nothing can be written any more."""
        return not self._hold.lost.is_set()

    def _goes_on(self) -> bool:
        """Whether a call should go on: the lease is not lost, and the run was not stopped. Asks the store now and then."""
        now = time.monotonic()
        if self.alive and not self._stopped and now - self._looked >= LOOK_S:
            self._looked = now
            with suppress(UnavailableError):  # it is asked again
                self._stopped = self._core.is_stopped()
        return self.alive and not self._stopped

    def _still_on(self, go: Go) -> Callable[[], bool]:
        """What `call.alive` of a call is."""
        return self._goes_on

    def _question(self, system: str | None, options: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Take in the inbox; the messages for the model, or None if the budget is spent, so that the run has halted.

        Raises InvalidInputError while calls of the model's last reply have no answer.
        """
        self._core.look()
        if self._core.pending():
            raise InvalidInputError("calls of the last reply are not settled yet; call run.tools() before run.model()")
        return None if self._is_over_budget() else self._select(system, **options)

    def _is_over_budget(self) -> bool:
        """Whether the budget is spent. The run is then halted, and stays so until the next user message."""
        if self._budget is None:
            return False
        status = self._core.status
        if str.__str__(status) == "halted" and (status.reason or "").startswith(OVER_BUDGET):
            return True
        reason = self._core.spent.over(self._budget)
        if reason is not None:
            self._saving(Kind.MANUAL, self._core.save, None, Status.halted(reason))
        return reason is not None

    def _between_pieces(self) -> None:
        """Called before each piece of a stream is handed on. Raises if the whole could not be saved."""
        self._core.check()

    def _unkept_reply(self) -> tuple[Any, Usage | None] | None:
        """The unsaved reply that the model already gave at this point of the conversation."""
        if self._paid is None or self._paid[0] is not self._core.checkpoint:
            return None
        return self._paid[1:]

    def _journal(self, reply: Any, usage: Usage | None, asked: int | None = None) -> Any:
        """Save a reply; an error of `usage` is raised afterwards. `asked`: to how many messages it is the reply."""
        if asked not in (None, len(self._core.messages)):  # it would answer something else
            with quoting(reply):
                raise InvalidInputError("the conversation went on while the stream was read; read a stream to its end first")
        spent, wrong = spent_by(reply, usage)
        self._paid = None
        try:
            self._saving(Kind.LLM_RESPONSE, self._core.journal_reply, reply, *spent)
        except UnavailableError:
            self._paid = (self._core.checkpoint, reply, usage)
            raise
        if wrong is not None:
            raise wrong
        return self.reply

    def _keep(self, outcome: Outcome) -> None:
        go, done, result = outcome
        if done:
            self._saving(Kind.TOOL_CALL, self._core.finish, go, result)
        elif isinstance(result, CutShort):
            self._core.cut_short(go, str(result))
        elif isinstance(result, TimedOut) and not go.tool.may_run_again:
            self._core.lose(go, str(result))
        else:
            self._saving(Kind.TOOL_CALL, self._core.fail, go, _described(result))

    def _settle_now(self, found: Go | KnownCall) -> None:
        if isinstance(found, KnownCall):
            self._core.settle(found.pending, found.entry)
        else:
            self._in_transaction(found)

    def _in_transaction(self, go: Go) -> None:
        try:
            with self._core.undone_on_error(), self._store.connection() as db:
                try:
                    with self._calling(go):
                        result = self._in_time(go, db)
                except Exception as error:
                    raise _Failed(error) from error
                if not db.in_transaction:  # the result would be saved without its writes
                    raise TransactionFailed("the tool ended the transaction itself", unknown=True)
                self._saving(Kind.TOOL_CALL, self._core.finish, go, result)
        except _Failed as failed:
            self._saving(Kind.TOOL_CALL, self._core.fail, go, _described(failed.args[0]))
        except TransactionFailed as error:
            if error.unknown:
                self._core.lose(go, str(error))
            self._saving(Kind.TOOL_CALL, self._core.fail, go, str(error))

    def _in_time(self, go: Go, db: Any) -> Any:
        """The result of a transaction. It cannot be stopped while it holds the connection; a late one is rolled back."""
        began, timeout = time.monotonic(), go.tool.timeout
        advice = "a transaction holds the database while it runs, so it must not await"
        result = plain_result(self._invoke(go, db), f"tool {go.tool.name!r}", advice)
        if timeout is not None and time.monotonic() - began > timeout.total_seconds():
            raise TimedOut(timeout)
        return result

    def _calling(self, go: Go) -> AbstractContextManager[tracing.Span]:
        return tracing.tool(self._thread_id, go.pending.name, go.pending.call_id, go.pending.key)

    def _saving(self, kind: Kind, write: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        with tracing.save(self._thread_id, kind):
            return write(*given, **named)

    def _invoke(self, go: Go, db: Any = None) -> Any:
        arguments = copy.deepcopy(go.pending.arguments)  # a tool that changes them must not change the model's message
        return go.tool.invoke(self._call(go, arguments, db), arguments)

    def _call(self, go: Go, arguments: Any, db: Any) -> Call:
        timeout = go.tool.timeout
        return Call(
            key=go.tool.key_for(go.pending.key, arguments),
            name=go.pending.name,
            thread_id=self._thread_id,
            arguments=arguments,
            attempt=go.entry.attempt,
            db=db,
            deadline=None if timeout is None else dt.datetime.now(dt.UTC) + timeout,
            undoes=go.entry.undoes,
            alive=self._still_on(go),
            spent=go.spent,
        )


class Run(AnyRun):
    """What `vault.run` returns in its `with` block."""

    def user(self, content: Any, key: str | None = None) -> bool:
        """Add a user message, after those that wait in the inbox.

        Returns False if the `key` (a webhook's id, a click) was used before; then nothing is added. A message ends a sleep.
        """
        checked = None if key is None else checked_id(key, "a key")
        return self._saving(Kind.MANUAL, self._core.user, content, checked)

    def model(
        self,
        llm: Callable[[list[dict[str, Any]]], Any],
        *,
        system: str | None = None,
        usage: Usage | None = None,
        **options: Any,
    ) -> Any:
        """Ask the model, and save its reply before any of its calls starts. Returns what the reply says.

        Takes in the inbox first. `llm(messages)` returns text, an assistant message, or what the SDKs of OpenAI and Anthropic
        return; `usage(reply)` its tokens and cost, by default the tokens that the reply states. `system` is shown to the model
        before the messages and not saved; by default the system prompt of the run's agent, "" for none. The messages are
        limited to `budget` tokens, or the conversation's `max_context_tokens`; `strategy`, `keep_recent` and `summary` are
        those of `Conversation.compact`. The vault keeps everything. Returns None, without asking, if the run's own budget is
        spent: the run has halted. Raises Stopped if the run was stopped.
        """
        known = self._unkept_reply()
        if known is not None:
            return self._journal(*known)
        question = self._question(system, options)
        if question is None:
            return None
        with tracing.chat(self._thread_id) as span:
            reply = plain_reply(llm(question))
            span.used(usage_of(reply))
        return self._journal(reply, usage)

    def stream(
        self,
        llm: Callable[[list[dict[str, Any]]], Any],
        *,
        system: str | None = None,
        usage: Usage | None = None,
        **options: Any,
    ) -> Generator[str, None, Any]:
        """Ask a model that streams: yields its pieces of text as they come, then saves the whole reply.

        `llm(messages)` returns an iterable of texts and, if it likes, the message at the end, as for `model`; without one the
        joined text is the reply. The reply is saved when the iteration has ended, and is then `run.reply`. If the iteration is
        left before, nothing is saved, and the next `stream` or `model` asks again.
        """
        known = self._unkept_reply()
        if known is not None:
            return self._journal(*known)
        question = self._question(system, options)
        if question is None:
            return None
        with receiving(self._thread_id) as pieces:
            asked = len(self._core.messages)
            with pieces.span.current():
                stream = plain_reply(llm(question))
            source = source_of(stream, awaits=False)
            try:
                while (piece := next_piece(source, pieces)) is not END:
                    text = pieces.take(piece)
                    if text is not None:  # a message that has arrived is whole: it is saved
                        self._between_pieces()
                        if not self._goes_on():
                            self._core.look()
                        yield text
            finally:
                for close in closers(stream, source, "close"):
                    close()
            reply = pieces.reply()
        return self._journal(reply, usage, asked)

    def tools(self, *, at_once: bool = False) -> None:
        """Settle every call of the newest reply that has no answer, one by one or `at_once`; answers in the model's order.

        Then takes in the inbox. Raises Paused if a call waits for a person, Unknown if the outcome of a call that must not run
        twice is unknown, Stopped if the run was stopped: then no further call is begun, and known results are kept.
        """
        if at_once:
            self._all_at_once()
        else:
            for pending in self._core.open_calls():
                if self._core.is_stopped():
                    break
                self._settle(self._core.prepare(pending))
        self._core.look()

    def step(self, name: str, work: Callable[[], T]) -> T:
        """The result of `work()`, saved under a name: later runs return the saved result. A crash may repeat `work()`."""
        found = self._core.step(checked_id(name, "a step's name"))
        if found is NO_RESULT:
            found = plain_result(work(), f"the function of step {name!r}")
            self._core.keep_step(name, found)
        value: T = found
        return value

    def sleep(self, duration: dt.timedelta, *, name: str) -> None:
        """Sleep without a process: records the time, releases the lease and raises Paused with `until`.

        Call the function again when it is due, or a message came: then, and from then on, the sleep with this `name` returns at
        once. A duration that is not longer than zero returns too.
        """
        self._core.sleep(checked_id(name, "a sleep's name"), checked_pause(duration))

    def sleep_until(self, when: dt.datetime, *, name: str) -> None:
        """`sleep` until a time with a zone. A time in the past returns at once."""
        self._core.sleep(checked_id(name, "a sleep's name"), None, checked_moment(when))

    def save(self, label: str | None = None) -> Checkpoint:
        """Save a checkpoint of the conversation and of `state`."""
        return self._saving(Kind.MANUAL, self._core.save, label, None)

    def halt(self, reason: str, *, resume_hint: str | None = None) -> Checkpoint:
        """End the run on purpose: it is not resumed automatically. The next user message reopens it."""
        return self._saving(Kind.MANUAL, self._core.save, None, Status.halted(reason), resume_hint)

    # -- calling tools -----------------------------------------------------------------------------

    def _all_at_once(self) -> None:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tool") as pool:
            waiting: list[Future[Outcome]] = []
            try:
                for pending in self._core.open_calls():
                    _wait_for_a_place(waiting)  # a call that is only queued is not recorded as started
                    if self._core.is_stopped():
                        break
                    found = self._core.prepare(pending)
                    if takes_long(found):
                        waiting.append(pool.submit(copy_context().run, self._outcome, found))
                    else:
                        self._collect(waiting)  # answers keep the model's order
                        self._settle(found)
            finally:  # also if one waits for a person: the outcomes of the others must not be lost
                self._collect(waiting)

    def _collect(self, waiting: list[Future[Outcome]]) -> None:
        """Save every outcome, in the model's order; then raise the first error, or an interrupt that came meanwhile."""
        raised: list[BaseException] = []
        while waiting:
            try:
                wait(waiting[:1])
                self._keep(waiting.pop(0).result())
            except BaseException as error:  # noqa: BLE001 - an interrupt too; raised again when the others are saved
                raised.append(error)
        if raised:
            raise raised[0]

    def _settle(self, found: Go | KnownCall) -> None:
        if takes_long(found):
            self._keep(self._outcome(found))
        else:
            self._settle_now(found)

    def _result(self, go: Go) -> Any:
        return plain_result(self._invoke(go), f"tool {go.tool.name!r}")

    def _outcome(self, go: Go) -> Outcome:
        waits = delays(go.tool)
        with self._calling(go) as span:
            while True:
                try:
                    return Outcome(go, done=True, value=_within(go.tool.timeout, partial(self._result, go)))
                except Exception as error:  # noqa: BLE001 - a tool may raise anything: it is saved, and the model gets it
                    pause = next(waits, None)
                    if pause is None or not self._goes_on():
                        span.failed(error)
                        return Outcome(go, done=False, value=error)
                    time.sleep(pause.total_seconds())
                    go = go.again()


def takes_long(found: Go | KnownCall) -> TypeGuard[Go]:
    """Whether a call is made outside the transaction that saves it. A transaction tool is not: it blocks every writer."""
    return isinstance(found, Go) and found.tool.kind != ToolKind.TRANSACTION


def refuse_what_cannot_run(store: Store, tools: Toolbox, *, awaits: bool) -> None:
    """Refuse unsupported tools at the start of a run. `awaits`: its driver can call asynchronous tools."""
    for tool in tools:
        if tool.kind == ToolKind.TRANSACTION and Capability.CONNECTION not in store.capabilities:
            raise UnsupportedError(
                f"tool {tool.name!r} is a transaction, which {store.scheme} stores do not support; use SQLite or PostgreSQL"
            )
        if tool.is_async and not awaits:
            raise InvalidInputError(f"tool {tool.name!r} is asynchronous; open the vault with savegame.open_async")


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run `work()` in its own thread, with the context of the caller. It cannot be stopped, and no exit waits for it."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # it can no longer be cancelled
    context = copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - passed on to the waiting thread
            future.set_exception(error)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return future


def _within(timeout: dt.timedelta | None, work: Callable[[], Any]) -> Any:
    """The result of `work()`. Raises TimedOut after the timeout; `work()` keeps running and its result is lost."""
    if timeout is None:
        return work()
    future = in_thread(work)
    try:
        return future.result(timeout.total_seconds())
    except TimeoutError as error:
        if future.done():
            raise
        raise TimedOut(timeout) from error


def _wait_for_a_place(waiting: list[Future[Outcome]]) -> None:
    running = [future for future in waiting if not future.done()]
    if len(running) >= AT_ONCE:
        wait(running, return_when=FIRST_COMPLETED)


def _described(error: Exception) -> str:
    if isinstance(error, TimedOut):
        return str(error)
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its text cannot be computed; only its name is left
        return type(error).__name__
