"""The asynchronous face: the same verbs and parameters, awaited. (Over 500 lines: one class each for vault and thread.)

Each verb is the synchronous one in a worker thread, one hop for each operation, or each page of a listing. A worker gets a
copy of a thread's handle; the user's handle moves on the loop, when the outcome is delivered. On a memory store, which never
waits, a thread's verbs run directly. `watch`, `autosave` and `supervise` wait on the loop, never in a worker. Touches vault,
thread, autosave, watch, runs, offload.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, nullcontext, suppress
from copy import copy
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, Final, Generic, NamedTuple, NoReturn, ParamSpec, Self, TypeVar

from savegame.checkpoint import Checkpoint
from savegame.details import checked_tags
from savegame.encoding.classes import Upcast
from savegame.errors import Busy, ClosedError, ConflictError, Fenced, InvalidInputError, UnsupportedError
from savegame.messages import states
from savegame.messages.agents import Agents, AgentSaves
from savegame.model import NEW_ID, checked_duration
from savegame.runs import tracing
from savegame.runs.arun import AsyncRun, called, settled
from savegame.runs.budget import Budget
from savegame.runs.run import in_thread
from savegame.runs.runner import StaleRun, pause_s
from savegame.runs.toolbox import Toolbox
from savegame.runs.undo import AsyncUndoRun, Undone
from savegame.store import ANY
from savegame.stores.memory import MemoryStore
from savegame.thread import Thread
from savegame.timeline.autosave import AutomaticSaves, Reporting, release
from savegame.timeline.lineage import Ref
from savegame.timeline.policy import Strategy
from savegame.timeline.timeline import Timeline
from savegame.timeline.verify import ignore
from savegame.timeline.watch import Watcher, follow
from savegame.vault import Vault
from savegame.waiting.offload import Offload, undisturbed
from savegame.waiting.retrying import TRIES, gave_up

P = ParamSpec("P")
R = TypeVar("R", bound=AsyncRun)
S = TypeVar("S")
T = TypeVar("T")

PER_HOP: Final = 100
"""Number of entries of a listing fetched in one hop."""

STATES: Final = 8
"""The same for entries with their whole states."""


class _Hops(NamedTuple):
    """How an object of this face runs its work in a worker."""

    read: Callable[[Callable[[Any], Any]], Awaitable[Any]]
    write: Callable[[Callable[[Any], Any]], Awaitable[Any]]


class _Face(Generic[S]):
    """The common part of AsyncVault and AsyncThread: the synchronous object and the workers."""

    def __init__(self, sync: S, offload: Offload, *, inline: bool) -> None:
        self._sync = sync
        self._offload = offload
        self._inline = inline

    def _lend(self) -> S:
        """The object that a worker gets."""
        return self._sync

    def _turn(self) -> AbstractAsyncContextManager[Any]:
        """A context for the duration of one operation."""
        return nullcontext()

    async def _read(self, call: Callable[[S], T]) -> T:
        if self._inline:
            return call(self._sync)
        async with self._turn():
            mine, lent = self._sync, self._lend()
            found = await self._offload.read(lambda: call(lent))
            self._move(mine, lent)
            return found

    async def _write(self, call: Callable[[S], T]) -> T:
        if self._inline:
            return call(self._sync)
        async with self._turn():
            mine, lent = self._sync, self._lend()
            try:
                return await self._offload.write(lambda: call(lent))
            finally:  # also if cancelled: it has finished, and the handle's head shows whether it succeeded
                self._move(mine, lent)

    def _hops(self) -> _Hops:
        return _Hops(self._read, self._write)

    def _move(self, mine: S, lent: S) -> None:
        if self._moved(mine, lent):
            self._sync = lent

    def _moved(self, mine: S, lent: S) -> bool:
        return False


def _reads(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Face[S], P], Coroutine[Any, Any, T]]:
    """An awaited verb, abandoned if the caller is cancelled."""

    @wraps(verb)
    async def awaited(self: _Face[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(lambda sync: verb(sync, *args, **kwargs))

    return awaited


def _writes(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Face[S], P], Coroutine[Any, Any, T]]:
    """An awaited verb that finishes once started, even if the caller is cancelled."""

    @wraps(verb)
    async def awaited(self: _Face[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._write(lambda sync: verb(sync, *args, **kwargs))

    return awaited


def _lists(
    verb: Callable[Concatenate[S, P], Iterable[T]], page: int = PER_HOP
) -> Callable[Concatenate[_Face[S], P], AsyncIterator[T]]:
    """A verb that returns an iterator, as an asynchronous iterator; holds no worker between pages."""

    @wraps(verb)
    async def listed(self: _Face[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        def entries() -> Iterator[T]:  # called in a worker: a verb that returns a list reads all of it at once
            yield from verb(lent, *args, **kwargs)

        lent, found = self._lend(), entries()
        while True:
            fetched = await self._read(lambda _: list(islice(found, page)))
            for entry in fetched:
                yield entry
            if len(fetched) < page:
                return

    return listed


class AsyncThread(_Face[Thread]):
    """A Thread whose verbs are awaited. Made by `AsyncVault.thread`. Calls on one handle run in order.

    Use `load(entry)` to load the state of an entry of a listing; its own `.load()` would block the loop.
    """

    _turns: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"

    def _lend(self) -> Thread:
        return copy(self._sync)

    def _moved(self, mine: Thread, lent: Thread) -> bool:
        return (lent.head, lent.step) != (mine.head, mine.step)

    def _turn(self) -> asyncio.Lock:
        """One operation after the other; a lock belongs to one loop, so each loop gets its own."""
        loop = asyncio.get_running_loop()
        if self._turns is None or self._turns[0] is not loop:
            self._turns = loop, asyncio.Lock()
        return self._turns[1]

    @property
    def sync(self) -> Thread:
        """The synchronous handle behind this one; its calls block."""
        return self._sync

    @property
    def timeline(self) -> Timeline:
        """The thread itself, without the expected head: for code that works below handles; its calls block."""
        return self._sync.timeline

    @property
    def id(self) -> str:
        """The thread's id."""
        return self._sync.id

    @property
    def head(self) -> str | None:
        """The id of the head that this handle last read, saved or moved; None if it knows none."""
        return self._sync.head

    @property
    def step(self) -> int | None:
        """The step of that head; 0 if the thread was empty, None if this handle has not read it yet."""
        return self._sync.step

    save = _writes(Thread.save)
    update = _writes(Thread.update)

    async def modify(self, change: Callable[[Any], Any], **details: Any) -> Checkpoint:
        """Read, `change(state)`, save; repeated if another writer was faster. The state of an empty thread is None.

        `change` may be asynchronous. It is called on the loop, not in a worker.
        """
        if "tags" in details:
            details["tags"] = checked_tags(details["tags"])  # an iterator must last for every attempt
        own = AsyncThread(self._lend(), self._offload, inline=self._inline)  # no other task moves what its save expects
        for _ in range(TRIES):
            found = await own.latest()
            state = await settled(change(None if found is None else found.state))
            try:
                return await own.save(state, **details)
            except (Busy, Fenced):
                raise
            except ConflictError as error:
                if details.get("expect") is not None:
                    raise
                last = error
            finally:
                self._sync = own.sync
        raise gave_up(last, TRIES) from last

    latest = _reads(Thread.latest)
    load = _reads(Thread.load)
    has_checkpoint = _reads(Thread.has_checkpoint)
    state = _reads(Thread.state)
    history = _lists(Thread.history)
    noted = _lists(Thread.noted)
    replay = _lists(Thread.replay, STATES)
    diff = _reads(Thread.diff)
    rewind = _writes(Thread.rewind)

    async def fork(self, id: str = NEW_ID, *, at: Ref | None = None) -> AsyncThread:  # noqa: A002 - the design's name
        """A new, independent thread that begins with a copy of one checkpoint. Raises AlreadyExistsError for an existing one.

        Without `id` it gets a new id.
        """
        return AsyncThread(await self._write(lambda thread: thread.fork(id, at=at)), self._offload, inline=self._inline)

    label = _writes(Thread.label)
    tag = _writes(Thread.tag)
    untag = _writes(Thread.untag)
    note = _writes(Thread.note)
    records = _reads(Thread.records)
    put_records = _writes(Thread.put_records)
    attach_subject = _writes(Thread.attach_subject)
    subjects = _reads(Thread.subjects)
    remove = _writes(Thread.remove)
    prune = _writes(Thread.prune)
    prunable = _reads(Thread.prunable)
    delete = _writes(Thread.delete)

    async def autosave(
        self,
        get_state: Callable[[], Any],
        every: dt.timedelta = dt.timedelta(minutes=5),
        *,
        keep: int | None = None,
        on_error: Callable[[Exception], object] | None = None,
        description: str = "Automatic checkpoint",
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncAutosave:
        """Save what `get_state()` returns, at once and then at the interval `every`, in a task of this loop.

        `get_state` may be asynchronous; it and `on_error` are called on the loop. Otherwise like `Thread.autosave`.
        """
        if self.step is None:
            await self.latest()
        details = {"description": description, "tags": tags, "metadata": metadata}
        return AsyncAutosave(self, self._hops(), get_state, every=every, keep=keep, on_error=on_error, **details)

    async def watch(
        self,
        *,
        since: Ref | None = None,
        poll: dt.timedelta = dt.timedelta(milliseconds=200),
        timeout: dt.timedelta | None = None,
    ) -> AsyncIterator[Checkpoint]:
        """`Thread.watch`; without `since`, starts after the newest checkpoint when iteration begins. Holds no worker."""
        watcher = await self._read(lambda thread: Watcher(thread.timeline, since))
        follow(watcher, poll, timeout)  # refuses invalid durations
        pause: float | None = 0.0
        while pause is not None:
            await asyncio.sleep(pause)
            for checkpoint in await self._read(lambda _: watcher.look()):
                yield checkpoint
            pause = watcher.pause(poll, timeout)


class _AsyncLoop(Reporting, ABC):
    """A task that saves at once and then at an interval, until `await stop()` or the end of its `async with` block."""

    def _begin(self) -> None:
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"autosave of {self._name}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}: {'running' if self.running else 'ended'}, {self.saved} saved>"

    @property
    def running(self) -> bool:
        """Whether it may still save."""
        return not self._task.done()

    async def stop(self) -> None:
        """End it: wait for a save that is under way; nothing is saved afterwards. A second call does nothing."""
        self._stopping.set()
        if asyncio.current_task() is not self._task:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while await self._tick() and not self._stopping.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), self._pause)
        except ClosedError as error:
            self._report(error)
        finally:
            release(self)

    @abstractmethod
    async def _tick(self) -> bool:
        """Save once. False, or ClosedError, ends the loop."""


class AsyncAutosave(AutomaticSaves, _AsyncLoop):
    """A task that saves automatically until `await stop()`, the end of its `async with` block, or the end of its loop.

    A closed vault or a deleted thread also ends it at its next save, and is its `last_error`.
    """

    def __init__(self, face: AsyncThread, hops: _Hops, get_state: Callable[[], Any], **how: Any) -> None:
        how["on_error"] = _on_this_loop(how["on_error"])
        super().__init__(face.sync, states.holds, **how)
        self._face, self._hops = face, hops
        self._get_state = get_state
        self._begin()

    async def _tick(self) -> bool:
        try:
            self._thread = self._face.sync
            known = self._known()
            expected = await self._hops.read(lambda _: self._head()) if known == ANY else known  # first, as in Autosave
            state = await settled(self._get_state())
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - the caller's function: whatever it raises is reported
            self._report(error)
            return True
        saved: bool = await self._hops.write(lambda thread: self._save_through(thread, state, expected))
        return saved

    def _save_through(self, thread: Thread, state: Any, expected: str | None) -> bool:
        self._thread = thread
        return self._save(state, expected)


class AsyncAgentAutosave(AgentSaves, _AsyncLoop):
    """A task that checkpoints agents until `await stop()`, the end of its `async with` block, or of its loop."""

    def __init__(self, agents: Agents, hops: _Hops, agent_ids: Iterable[str], **how: Any) -> None:
        how["on_error"] = _on_this_loop(how["on_error"])
        super().__init__(agents, agent_ids, **how)
        self._hops = hops
        self._begin()

    async def _tick(self) -> bool:
        saved: bool = await self._hops.write(lambda _: self._save_all())
        return saved


def _on_this_loop(callback: Callable[[Exception], object] | None) -> Callable[[Exception], object] | None:
    if callback is None:
        return None
    loop = asyncio.get_running_loop()
    return lambda error: loop.call_soon_threadsafe(callback, error)


class _Running(AbstractAsyncContextManager[R]):
    """A run that is entered and left in a worker; a caller cancelled meanwhile holds no lease afterwards."""

    def __init__(self, offload: Offload, run: AbstractContextManager[R], span: AbstractContextManager[object]) -> None:
        self._offload, self._run, self._span, self._entered = offload, run, span, ExitStack()

    async def __aenter__(self) -> R:
        try:
            run: R = await self._offload.write(lambda: self._entered.enter_context(self._run))
        except BaseException as error:
            await self._leave(type(error), error, error.__traceback__)
            raise
        self._span.__enter__()
        return run

    async def __aexit__(self, *error: Any) -> None:
        try:
            self._span.__exit__(*error)
        finally:
            await self._leave(*error)

    async def _leave(self, *error: Any) -> None:
        leaving = in_thread(
            lambda: self._entered.__exit__(*error)
        )  # a worker may take long to become free, and the lease would stay held
        await undisturbed(asyncio.wrap_future(leaving))


class AsyncVault(_Face[Vault]):
    """A Vault whose verbs are awaited, over a pool of threads as wide as its store. Belongs to no event loop.

    Functions that are passed in (`progress`) are called in a worker.
    """

    def __init__(self, vault: Vault) -> None:
        super().__init__(vault, Offload(vault.store.width), inline=False)

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"

    async def __aenter__(self) -> AsyncVault:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def sync(self) -> Vault:
        """The synchronous vault behind this one; its calls block."""
        return self._sync

    async def close(self) -> None:
        """Close the store when everything that was started has finished. A second call does nothing."""
        await self._offload.close(self._sync.close)

    async def call(self, work: Callable[[Vault], T]) -> T:
        """`work(vault)` with the synchronous vault, in a worker: several verbs in one hop, or a whole transaction.

        Once started it finishes, even if the caller is cancelled.
        """
        if inspect.iscoroutinefunction(work):
            raise InvalidInputError("call() runs an ordinary function in a worker; await an asynchronous one yourself")
        return await self._write(work)

    def connection(self) -> NoReturn:
        """Raises UnsupportedError: a transaction belongs to one thread and blocks every writer; use `call`."""
        raise UnsupportedError(
            "a transaction belongs to one thread, which must not wait for the loop; put `with vault.connection() as db:` "
            "into an ordinary function and `await vault.call(function)`"
        )

    def thread(
        self,
        id: str = NEW_ID,  # noqa: A002 - the design's names
        *,
        agent: str | None = None,
        type: type | None = None,  # noqa: A002
        foreign: Callable[[str, bytes], Any] | None = None,
        child_of: str | None = None,
        copy_of: str | None = None,
    ) -> AsyncThread:
        """A handle on a thread, like `Vault.thread`. Reads nothing, so it is not awaited."""
        thread = self._sync.thread(id, agent=agent, type=type, foreign=foreign, child_of=child_of, copy_of=copy_of)
        return AsyncThread(thread, self._offload, inline=_never_waits(self._sync))

    def register(self, cls: type, *, schema_version: int = 1, upcast: Upcast | None = None, name: str | None = None) -> None:
        """`Vault.register`. Reads nothing, so it is not awaited."""
        self._sync.register(cls, schema_version=schema_version, upcast=upcast, name=name)

    threads = _lists(Vault.threads)
    info = _reads(Vault.info)
    fingerprints = _reads(Vault.fingerprints)
    find = _reads(Vault.find)
    load = _reads(Vault.load)
    diff = _reads(Vault.diff)
    search = _reads(Vault.search)
    drop_search_index = _writes(Vault.drop_search_index)
    save_agent = _writes(Vault.save_agent)
    load_agent = _reads(Vault.load_agent)
    delete_agent = _writes(Vault.delete_agent)
    agents = _lists(Vault.agents)
    save_conversation = _writes(Vault.save_conversation)
    load_conversation = _reads(Vault.load_conversation)
    add_message = _writes(Vault.add_message)
    delete_conversation = _writes(Vault.delete_conversation)
    conversations = _lists(Vault.conversations)
    checkpoint_agent = _writes(Vault.checkpoint_agent)
    agent_checkpoints = _lists(Vault.agent_checkpoints)
    restore_agent = _writes(Vault.restore_agent)
    delete_checkpoint = _writes(Vault.delete_checkpoint)
    calls = _lists(Vault.calls)
    effects = _lists(Vault.effects)

    async def undo(self, thread_id: str, *, to: Ref, tools: Toolbox, dry_run: bool = False) -> Undone:
        """Take back what was done after a checkpoint, newest first, by the `undo` functions of the tools; then move the head.

        These functions may be asynchronous; others are called in a thread of their own. Otherwise like `Vault.undo`.
        """
        if dry_run:
            return await self._read(lambda vault: vault.rooms.runner.plan_undo(thread_id, to, tools, awaits=True))
        driver = partial(AsyncUndoRun, self._offload)
        undoing = self._sync.rooms.runner.undo(thread_id, to, tools, driver, awaits=True)
        async with _Running(self._offload, undoing, nullcontext()) as run:
            return await run.undo()

    answer = _writes(Vault.answer)
    resolve = _writes(Vault.resolve)
    send = _writes(Vault.send)
    inbox = _lists(Vault.inbox)
    unsend = _writes(Vault.unsend)
    stop = _writes(Vault.stop)
    stale = _lists(Vault.stale)
    runs = _lists(Vault.runs)
    erase = _writes(Vault.erase)
    stats = _reads(Vault.stats)
    usage = _reads(Vault.usage)
    verify = _reads(Vault.verify)
    repair = _writes(Vault.repair)
    prune = _writes(Vault.prune)
    compact = _writes(Vault.compact)
    backup = _writes(Vault.backup)
    export = _writes(Vault.export)
    import_ = _writes(Vault.import_)

    async def autosave_agents(
        self,
        agent_ids: Iterable[str],
        every: dt.timedelta = dt.timedelta(minutes=5),
        *,
        keep: int | None = None,
        on_error: Callable[[Exception], object] | None = None,
    ) -> AsyncAgentAutosave:
        """`Vault.autosave_agents` as a task of the running loop; `on_error` is called on the loop."""
        return AsyncAgentAutosave(self.sync.rooms.agents, self._hops(), agent_ids, every=every, keep=keep, on_error=on_error)

    def run(
        self,
        thread_id: str,
        *,
        agent: str | None = None,
        tools: Toolbox | None = None,
        strategy: Strategy | str | None = None,
        lease: dt.timedelta = dt.timedelta(seconds=30),
        budget: Budget | None = None,
    ) -> AbstractAsyncContextManager[AsyncRun]:
        """`Vault.run`, entered with `async with`, which takes the lease; its end releases it, even if cancelled.

        Tools may be asynchronous, except transactions.
        """
        driver = self._sync.rooms.driver(partial(AsyncRun, self._offload), agent, budget)
        run = self._sync.rooms.runner.run(thread_id, agent, tools, lease, driver, strategy=strategy, awaits=True)
        return _Running(self._offload, run, tracing.run(thread_id, agent))

    async def supervise(
        self,
        resume: Callable[[str], Any],
        *,
        poll: dt.timedelta = dt.timedelta(seconds=1),
        give_up_after: int = 3,
        stop: asyncio.Event | None = None,
        once: bool = False,
    ) -> int:
        """`Vault.supervise`, until `stop` is set or it is cancelled. `resume` may be asynchronous; else it runs in a thread."""
        checked_duration(poll, "poll")
        resumed, stop = 0, stop or asyncio.Event()
        while not stop.is_set():
            work = await self._write(lambda vault: vault.rooms.runner.work(give_up_after, patient=not once))
            for run in work.runs:
                resumed += await self._resume(resume, run)
            if once:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s(work, poll))
        return resumed

    async def _resume(self, resume: Callable[[str], Any], run: StaleRun) -> bool:
        before = await self._write(lambda vault: vault.rooms.runner.begin(run))
        if before is None:
            return False
        try:
            await called(resume, run.thread_id)
        except Exception as error:  # noqa: BLE001 - the caller's function: whatever it raises is logged
            failed = error
            await self._write(lambda vault: vault.rooms.runner.not_resumed(run, before, failed))
            return False
        return True

    async def copy_to(
        self, other: AsyncVault | Vault, progress: Callable[[int, int], None] = ignore, *, full: bool = False
    ) -> int:
        """`Vault.copy_to`; the other vault may be of either kind."""
        target = other.sync if isinstance(other, AsyncVault) else other
        return await self._write(lambda vault: vault.copy_to(target, progress, full=full))


def _never_waits(vault: Vault) -> bool:
    return type(vault.store) is MemoryStore  # what builds on it may well wait


class Opening(Awaitable[AsyncVault]):
    """A vault about to be opened: await it, or enter it with `async with`, which closes it at the end."""

    def __init__(self, make: Callable[[], Vault]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, Any, AsyncVault]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncVault:
        self._vault = await self._open()
        return self._vault

    async def __aexit__(self, *_: object) -> None:
        await self._vault.close()

    async def _open(self) -> AsyncVault:
        """Open it in a worker; a caller cancelled meanwhile leaves no open vault behind."""
        offload, opened = Offload(1), ExitStack()
        try:
            return AsyncVault(await offload.write(lambda: opened.enter_context(self._make())))
        except BaseException:
            await offload.close(opened.close)
            raise
