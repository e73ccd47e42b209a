"""The tools: one method each, in the order in which clients list them. Touches shapes, showing, the vault and its errors.

A method is what a client calls: its parameters are the input schema, its docstring is the description, what it gives is the
output schema. It asks the vault, and shows the answer in no more characters than `room`. Nothing of the domain is decided
here. Parameters that are not given leave what they name as it is. Annotations are not postponed: schemas are made of them.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import dropwhile, islice
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field

from savegame.encoding.codec import format_path
from savegame.encoding.plain import inside
from savegame.errors import InvalidInputError, NotFoundError, ThreadNotFound
from savegame.mcp import shapes, showing
from savegame.mcp.shapes import After, AgentId, CheckpointId, ConversationId, Limit, Message, Patch, Ref, Start, ThreadId
from savegame.messages.agents import AgentInfo
from savegame.messages.conversations import ConversationInfo
from savegame.messages.domain import AgentState, Conversation
from savegame.messages.domain import Message as DomainMessage
from savegame.messages.states import own_thread
from savegame.model import MAX_KIND, MISSING, Change, Kind, ThreadInfo
from savegame.present.completion import is_there
from savegame.runs.keys import digest_of
from savegame.runs.ledger import MARKS
from savegame.search.catching_up import Hit
from savegame.timeline.lineage import Ref as Reference
from savegame.timeline.lineage import by_text
from savegame.vault import Vault
from savegame.waiting.retrying import retried

T = TypeVar("T")
E = TypeVar("E", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., BaseModel])

ENVELOPE: Final = 6000
"""Characters of an answer that are left for what stands around its entries."""

SKIPPED: Final = 5
"""How many threads that could not be searched are named."""

LONG: Final = (
    "name", "agent_type", "system_prompt", "capabilities", "config", "custom_state", "metadata", "active_conversations",
)  # fmt: skip
"""Fields of an agent that can be."""

A_CHANGE: Final = 2000
"""Characters that a difference shows of a value."""


class NotAConversation(InvalidInputError):
    """The thread is there, and can be looked at, but holds something else, or messages of another kind."""


class Hints(NamedTuple):
    """What a client may think of a tool before it calls it."""

    title: str
    reads: bool = False
    """It changes nothing."""
    destroys: bool = False
    """What it takes away cannot be had back."""
    repeatable: bool = False
    """Called again with the same arguments, it changes nothing more."""


HINTS: Final[dict[str, Hints]] = {}
"""By the names of the tools, in their order."""


def _tool(title: str, *, reads: bool = False, destroys: bool = False, repeatable: bool = False) -> Callable[[F], F]:
    def marked(function: F) -> F:
        HINTS[function.__name__] = Hints(title, reads, destroys, reads or repeatable)
        return function

    return marked


class Tools:
    """The tools on one vault. May be called from several threads."""

    def __init__(self, vault: Vault, answer_chars: int) -> None:
        self._vault = vault
        self._chars = answer_chars
        self._room = answer_chars - ENVELOPE

    # -- agents ------------------------------------------------------------------------------------

    @_tool("Save an agent")
    def agent_save(
        self,
        *,
        agent_id: AgentId,
        name: Annotated[str | None, Field(description="Needed for a new agent.")] = None,
        agent_type: Annotated[str | None, Field(description="What it runs on or does. Needed for a new agent.")] = None,
        system_prompt: str | None = None,
        capabilities: list[str] | None = None,
        config: Patch = None,
        custom_state: Patch = None,
        metadata: Patch = None,
        expect_revision: Annotated[
            str | None, Field(description="Refuse to save if this is no longer its revision, so that nothing is overwritten.")
        ] = None,
    ) -> shapes.AgentSaved:
        """Save agent state to persistent storage: begin an agent, or change what is named of one. Earlier states stay."""
        given = {"name": name, "agent_type": agent_type, "system_prompt": system_prompt, "capabilities": capabilities}
        patches = {"config": config, "custom_state": custom_state, "metadata": metadata}

        def attempt() -> shapes.AgentSaved:
            found = self._vault.load_agent(agent_id)
            old = {} if found is None else found.to_dict()
            agent = AgentState.from_dict({**old, "agent_id": agent_id, **_present(given), **_patched(old, patches)})
            agent.known = expect_revision or (None if found is None else found.known)
            agent.touch()
            saved = self._vault.save_agent(agent)
            return shapes.AgentSaved(
                agent_id=agent_id,
                version=agent.version,
                revision=str(agent.known),
                checkpoint_id=saved.id,
                created=found is None,
            )

        return retried(attempt) if expect_revision is None else attempt()

    @_tool("Load an agent", reads=True)
    def agent_load(self, *, agent_id: AgentId) -> shapes.AgentLoaded:
        """Load agent state from persistent storage: what the agent is and knows, and which conversations it has."""
        agent = self._vault.load_agent(agent_id)
        if agent is None:
            raise NotFoundError(f"agent not found: {agent_id!r}")
        shown, cut = showing.fields({name: getattr(agent, name) for name in LONG}, self._room, "/agent")
        same = ("agent_id", "version", "created_at", "modified_at")
        return shapes.AgentLoaded(
            **{name: getattr(agent, name) for name in same},
            **shown,
            revision=str(agent.known),
            thread_id=own_thread(agent_id),
            cut=cut,
        )

    @_tool("Delete an agent", destroys=True, repeatable=True)
    def agent_delete(self, *, agent_id: AgentId) -> shapes.Deleted:
        """Delete agent and all associated data: its conversations, checkpoints and other threads. Cannot be undone."""
        return shapes.Deleted(deleted=self._vault.delete_agent(agent_id))

    @_tool("List agents", reads=True)
    def agent_list(self, *, limit: Limit = 50, after: After = None) -> shapes.AgentPage:
        """List all persisted agents, without their states."""
        found = _behind(self._vault.agents(), after, lambda info: info.id)
        agents, more = self.page(found, limit, _agent_entry)
        return shapes.AgentPage(agents=agents, next=agents[-1].agent_id if more else None)

    # -- conversations -----------------------------------------------------------------------------

    @_tool("Save a conversation")
    def conversation_save(
        self,
        *,
        conversation_id: Annotated[str | None, Field(description="Which one; a new one gets an id if none is given.")] = None,
        agent_id: Annotated[str | None, Field(description="The agent that it belongs to.")] = None,
        messages: Annotated[list[Message] | None, Field(description="All messages: they replace those that are there.")] = None,
        append: Annotated[list[Message] | None, Field(description="Messages to add after those that are there.")] = None,
        title: Annotated[str | None, Field(description="If there is none, it is taken from the first user message.")] = None,
        tags: list[str] | None = None,
        archived: bool | None = None,
        metadata: Patch = None,
        expect_head: Annotated[
            str | None,
            Field(description="Refuse to save if this is no longer its newest checkpoint (head of the last answer)."),
        ] = None,
    ) -> shapes.ConversationSaved:
        """Save a conversation: begin one, append to it (cheapest), or replace its messages. Every save is a checkpoint."""
        given: dict[str, Any] = {"agent_id": agent_id, "messages": messages, "title": title, "tags": tags, "archived": archived}

        def attempt() -> shapes.ConversationSaved:
            found = None if conversation_id is None else self._conversation(conversation_id)
            old = {"messages": [], **_present({"id": conversation_id})} if found is None else found.to_dict()
            self._refuse_marks(found, messages or (), append or ())
            conversation = Conversation.from_dict({**old, **_present(given), **_patched(old, {"metadata": metadata})})
            for place, message in enumerate(append or ()):
                inside(f"append[{place}]", partial(conversation.add_message, message))
            conversation.auto_title()
            conversation.known = expect_head or (None if found is None else found.known)
            saved = self._vault.save_conversation(conversation)
            count = conversation.message_count()
            return shapes.ConversationSaved(
                conversation_id=conversation.id, head=saved.id, message_count=count, created=found is None
            )

        return retried(attempt) if expect_head is None else attempt()

    @_tool("Load a conversation", reads=True)
    def conversation_load(
        self, *, conversation_id: ConversationId, start: Start = 0, limit: Limit = 50
    ) -> shapes.ConversationLoaded:
        """Load a conversation: what it is, and its messages from `start` on. start=-10 gives the newest ten."""
        found = self._conversation(conversation_id)
        if found is None:
            raise ThreadNotFound(f"conversation not found: {conversation_id!r}")
        beside, cut = showing.fields({name: getattr(found, name) for name in ("title", "tags", "metadata")}, self._room // 4)
        count = found.message_count()
        part = showing.part({"messages": found.messages}, "/messages", start, limit, self._room - self._room // 4)
        same = ("agent_id", "archived", "created_at", "last_message_at")
        return shapes.ConversationLoaded(
            **{name: getattr(found, name) for name in same},
            **beside,
            conversation_id=found.id,
            head=str(found.known),
            message_count=count,
            start=start if start >= 0 else max(0, count + start),
            messages=part.value,
            next_start=part.following,
            cut=[*cut, *part.cuts],
        )

    @_tool("Delete a conversation", destroys=True, repeatable=True)
    def conversation_delete(self, *, conversation_id: ConversationId) -> shapes.Deleted:
        """Delete a conversation with its whole history.

        Cannot be undone, except by restoring a checkpoint of its agent that names it; to go back, use thread_rewind.
        """
        return shapes.Deleted(deleted=self._vault.delete_conversation(conversation_id))

    @_tool("List conversations", reads=True)
    def conversation_list(
        self,
        *,
        agent_id: Annotated[str | None, Field(description="Only those of this agent.")] = None,
        tag: Annotated[str | None, Field(description="Only those with this tag.")] = None,
        archived: Annotated[bool | None, Field(description="Only those that are archived, or are not.")] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> shapes.ConversationPage:
        """List conversations for an agent, or of all, without their messages; that with the newest message first."""
        found = _older(self._vault.conversations(agent_id, tag=tag, archived=archived), after)
        entries, more = self.page(found, limit, _conversation_entry)
        last = f"{entries[-1].last_message_at.isoformat()} {entries[-1].conversation_id}" if more else None
        return shapes.ConversationPage(conversations=entries, next=last)

    @_tool("Search conversations", reads=True)
    def conversation_search(
        self,
        *,
        query: Annotated[
            str, Field(description='Words that one message must hold, in any order; "quoted words" stand together.')
        ],
        match: Annotated[
            Literal["words", "substring"],
            Field(description="substring: find the query as it stands, inside words too, newest first."),
        ] = "words",
        agent_id: Annotated[str | None, Field(description="Only those of this agent.")] = None,
        limit: Limit = 20,
        after: After = None,
    ) -> shapes.HitPage:
        """Search conversations by content, other threads too: whose messages hold the words, best first, with the words."""
        first = _number(after)
        hits = self._vault.search(query, agent=agent_id, limit=first + limit + 1, match=match)
        entries, more = self.page(hits[first:], limit, _hit_entry)
        return shapes.HitPage(
            hits=entries, skipped=list(hits.skipped[:SKIPPED]), next=str(first + len(entries)) if more else None
        )

    # -- checkpoints of agents ---------------------------------------------------------------------

    @_tool("Create a checkpoint")
    def checkpoint_create(
        self,
        *,
        agent_id: AgentId,
        name: Annotated[str | None, Field(description="Becomes the checkpoint's label.")] = None,
        kind: Annotated[
            str, Field(max_length=MAX_KIND, description=f"Why it is made, any text. With a meaning: {', '.join(Kind)}.")
        ] = Kind.MANUAL,
        description: str | None = None,
    ) -> shapes.CheckpointEntry:
        """Create a checkpoint for recovery: the agent and all its conversations as they are at this moment."""
        return shapes.CheckpointEntry.of(self._vault.checkpoint_agent(agent_id, name, kind, description=description))

    @_tool("Restore a checkpoint")
    def checkpoint_restore(
        self,
        *,
        checkpoint_id: CheckpointId,
        skip_missing: Annotated[
            bool, Field(description="Restore the rest if some conversations were erased or pruned since, instead of refusing.")
        ] = False,
    ) -> shapes.Restored:
        """Restore from a checkpoint: the agent and all its conversations go back, all or none. Nothing is lost.

        Conversations that were deleted since come back, too.
        """
        agent = self._vault.restore_agent(checkpoint_id, skip_missing=skip_missing)
        undo = next(self._vault.agent_checkpoints(agent.agent_id, limit=1))
        return shapes.Restored(agent_id=agent.agent_id, version=agent.version, undo=undo.id)

    @_tool("List checkpoints", reads=True)
    def checkpoint_list(self, *, agent_id: AgentId, limit: Limit = 50, after: After = None) -> shapes.CheckpointPage:
        """List checkpoints for an agent, newest first: what checkpoint_create made, and the undo points of restores."""
        found = _behind(self._vault.agent_checkpoints(agent_id), after, lambda checkpoint: checkpoint.id)
        entries, more = self.page(found, limit, shapes.CheckpointEntry.of)
        return shapes.CheckpointPage(checkpoints=entries, next=entries[-1].id if more else None)

    @_tool("Delete a checkpoint", destroys=True, repeatable=True)
    def checkpoint_delete(self, *, checkpoint_id: CheckpointId) -> shapes.Deleted:
        """Delete a checkpoint, of an agent or of any thread. Those before and after it stay. Cannot be undone."""
        return shapes.Deleted(deleted=self._vault.delete_checkpoint(checkpoint_id))

    @_tool("Storage statistics", reads=True)
    def persistence_stats(self) -> shapes.Statistics:
        """Get storage statistics: how many agents, conversations, messages, threads and checkpoints; bytes."""
        stats = self._vault.stats()
        counts = ("agents", "conversations", "messages", "threads", "checkpoints", "damaged", "total_bytes")
        return shapes.Statistics(**{name: getattr(stats, name) for name in counts}, sizes=dict(stats.sizes))

    # -- time travel -------------------------------------------------------------------------------

    @_tool("History of a thread", reads=True)
    def thread_history(
        self,
        *,
        thread_id: ThreadId,
        branches: Annotated[bool, Field(description="Also what was left behind by rewinding.")] = False,
        label: Annotated[str | None, Field(description="Only those with this label.")] = None,
        tag: Annotated[str | None, Field(description="Only those with this tag.")] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> shapes.History:
        """The checkpoints of a thread, newest first, without their states."""
        thread = self._vault.thread(thread_id)
        if not is_there(thread):
            raise ThreadNotFound(f"thread not found: {thread_id!r} has no checkpoints")
        found = thread.history(branches=branches, label=label, tag=tag, before=after)
        entries, more = self.page(found, limit, shapes.CheckpointEntry.of)
        head = next(thread.history(limit=1), None)
        return shapes.History(
            thread_id=thread_id,
            head=None if head is None else head.id,
            checkpoints=entries,
            next=entries[-1].id if more else None,
        )

    @_tool("Compare two checkpoints", reads=True)
    def thread_diff(
        self,
        *,
        thread_id: ThreadId,
        old: Ref = "head~1",
        new: Ref = "head",
        new_thread_id: Annotated[
            str | None, Field(description="If new is a checkpoint of another thread, such as a fork.")
        ] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> shapes.Differences:
        """What changed in the state from one checkpoint to another, by place; without parameters, what the last step did."""
        first = _number(after)
        left = _at(old, self._vault.thread(thread_id).load)
        right = _at(new, self._vault.thread(new_thread_id or thread_id).load)
        changes = self._vault.diff(left.id, right.id)
        entries, more = self.page(changes[first:], limit, _change_entry)
        return shapes.Differences(
            old=left.id,
            new=right.id,
            changes=entries,
            total=len(changes),
            next=str(first + len(entries)) if more else None,
        )

    @_tool("Fork a thread")
    def thread_fork(
        self,
        *,
        thread_id: ThreadId,
        new_thread_id: Annotated[str, Field(description="The id of the new thread; there must be none yet.")],
        at: Ref = "head",
    ) -> shapes.Forked:
        """Begin a new thread with the state of a checkpoint, to try something else. The old thread stays as it is."""
        source = self._vault.thread(thread_id)
        made = _at(at, lambda ref: source.fork(new_thread_id, at=ref))
        return shapes.Forked(thread_id=made.id, forked_from=thread_id, head=str(made.head))

    @_tool("Rewind a thread")
    def thread_rewind(self, *, thread_id: ThreadId, to: Ref) -> shapes.Rewound:
        """Go back (or forth) to a checkpoint: the next save continues from there. What came after stays as a branch."""
        thread = self._vault.thread(thread_id)
        before = next(thread.history(limit=1), None)
        head = _at(to, lambda ref: thread.rewind(ref, expect=before))
        return shapes.Rewound(head=shapes.CheckpointEntry.of(head), undo=None if before is None else before.id)

    @_tool("Label a checkpoint", repeatable=True)
    def checkpoint_label(
        self,
        *,
        thread_id: ThreadId,
        checkpoint: Ref = "head",
        label: Annotated[str | None, Field(description="A name to find it by; null takes the label away.")],
    ) -> shapes.Labelled:
        """Give a checkpoint a name, by which every tool finds it; labelled ones are spared when old ones are pruned."""
        thread = self._vault.thread(thread_id)
        before = _at(checkpoint, thread.load)
        return shapes.Labelled(checkpoint=shapes.CheckpointEntry.of(thread.label(before, label)), was=before.label)

    @_tool("List threads", reads=True)
    def thread_list(
        self,
        *,
        agent_id: Annotated[str | None, Field(description="Only those of this agent.")] = None,
        status: Annotated[str | None, Field(description="Only those in_progress, completed, failed or halted.")] = None,
        tag: Annotated[str | None, Field(description="Only those with a checkpoint that has this tag.")] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> shapes.ThreadPage:
        """List threads by id: conversations, agents' own threads, and whatever else programs keep in this vault."""
        found = self._vault.threads(agent=agent_id, status=status, tag=tag, after=after)
        entries, more = self.page(found, limit, _thread_entry)
        return shapes.ThreadPage(threads=entries, next=entries[-1].thread_id if more else None)

    @_tool("Load a state", reads=True)
    def thread_load(
        self,
        *,
        thread_id: ThreadId,
        at: Ref = "head",
        path: Annotated[
            str, Field(description="JSON pointer to a place of the state, /messages/3/content; empty: all of it.")
        ] = "",
        start: Start = 0,
    ) -> shapes.StateLoaded:
        """Load the state of any thread at any checkpoint, or a place of it: also what other answers had to cut."""
        found = _at(at, self._vault.thread(thread_id).load)
        entry = shapes.CheckpointEntry.of(found)
        room = self._chars - len(entry.model_dump_json()) - shapes.ASIDE
        part = showing.part(found.state, path, start, shapes.MAX_LIMIT, room)
        return shapes.StateLoaded(
            checkpoint=entry,
            path=showing.short(path, showing.LONGEST_PATH),
            value=part.value,
            total=part.total,
            next_start=part.following,
            cut=part.cuts,
        )

    def _conversation(self, conversation_id: str) -> Conversation | None:
        """The conversation with an id. Raises NotAConversation for a thread of something else."""
        self._vault.thread(conversation_id)  # what is no id at all is told as that
        try:
            return self._vault.load_conversation(conversation_id)
        except InvalidInputError as error:
            raise NotAConversation(f"this thread cannot be read as a conversation: {error}") from error

    def _refuse_marks(
        self, found: Conversation | None, messages: Iterable[dict[str, Any]], append: Iterable[dict[str, Any]]
    ) -> None:
        """Refuse what only runs write: they rely on it to know which calls were made and approved."""
        kept = {message.id: message for message in (found.messages if found else ()) if MARKS & message.extra.keys()}
        for name, given in (("messages", messages), ("append", append)):
            for place, message in enumerate(given):
                marks, known = sorted(MARKS & message.keys()), kept.get(str(message.get("id")))
                if (marks or known) and not (known and name == "messages" and self._is_same(message, known)):
                    what = f"{name}[{place}].{marks[0] if marks else 'id'}"
                    raise InvalidInputError(
                        f"{what} was written by a run, and only a run may write it; give the message back as it was loaded, "
                        f"or leave out {', '.join(['id', *sorted(MARKS)])}"
                    )

    def _is_same(self, given: dict[str, Any], known: DomainMessage) -> bool:
        encode = self._vault.codec.encode
        return digest_of("", DomainMessage.from_dict(given).to_dict(), encode) == digest_of("", known.to_dict(), encode)

    def page(self, items: Iterable[T], limit: int, entry: Callable[[T], E]) -> tuple[list[E], bool]:
        """For lists: their first entries, as many as were asked for and fit, at least one; and whether there are more."""
        taken: list[E] = []
        room = self._room
        for item in items:
            made = entry(item)
            room -= len(made.model_dump_json()) + 1
            if len(taken) == limit or (taken and room < 0):
                return taken, True
            taken.append(made)
        return taken, False


def _at(ref: str | int, verb: Callable[[Reference], T]) -> T:
    """What a verb gives for a reference, as models write them: steps may be texts, too."""
    return by_text(ref, verb) if isinstance(ref, str) else verb(ref)


def _agent_entry(info: AgentInfo) -> shapes.AgentEntry:
    shown, _ = showing.fields({"name": info.name, "agent_type": info.agent_type}, shapes.ASIDE)
    return shapes.AgentEntry(agent_id=info.id, **shown, version=info.version, updated_at=info.updated_at)


def _hit_entry(hit: Hit) -> shapes.HitEntry:
    shown, _ = showing.fields({"role": hit.role, "snippet": hit.snippet}, shapes.ASIDE)
    names = ("agent_id", "checkpoint_id", "message", "score", "matches")
    return shapes.HitEntry(conversation_id=hit.thread_id, **shown, **{name: getattr(hit, name) for name in names})


def _thread_entry(info: ThreadInfo) -> shapes.ThreadEntry:
    shown, _ = showing.fields({"damage": info.damage}, shapes.ASIDE)
    names = ("agent_id", "head", "step", "checkpoints", "size_bytes", "updated_at", "forked_from")
    same = {name: getattr(info, name) for name in names}
    return shapes.ThreadEntry(thread_id=info.id, status=str.__str__(info.status), **same, **shown)


def _conversation_entry(info: ConversationInfo) -> shapes.ConversationEntry:
    shown, _ = showing.fields({"title": info.title, "tags": info.tags}, shapes.ASIDE)
    names = ("agent_id", "message_count", "last_message_at", "archived", "head")
    return shapes.ConversationEntry(conversation_id=info.id, **shown, **{name: getattr(info, name) for name in names})


def _change_entry(change: Change) -> shapes.ChangeEntry:
    added, removed = change.old is MISSING, change.new is MISSING
    values = {"old": None if added else change.old, "new": None if removed else change.new}
    shown, _ = showing.fields(values, 2 * A_CHANGE)
    place = showing.short(format_path(change.path), showing.LONGEST_PATH)
    return shapes.ChangeEntry(path=place, change="added" if added else "removed" if removed else "changed", **shown)


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _patched(old: Mapping[str, Any], patches: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """Fields that are maps, with the keys of their patches set, or removed where a patch has None."""
    merged = {name: (patch or {}, {**old.get(name, {}), **(patch or {})}) for name, patch in patches.items()}
    return {
        name: {key: value for key, value in values.items() if key not in patch or value is not None}
        for name, (patch, values) in merged.items()
    }


def _behind(items: Iterator[T], after: str | None, name: Callable[[T], str]) -> Iterator[T]:
    """What comes after the entry of this name."""
    if after is None:
        return items
    rest = dropwhile(lambda item: name(item) != after, items)
    if not list(islice(rest, 1)):
        raise InvalidInputError(f"after: {after!r} is not in the list any more; begin again without it")
    return rest


def _older(items: Iterator[ConversationInfo], after: str | None) -> Iterator[ConversationInfo]:
    """What comes after a place in a list of the newest first, also if the one that was there moved on meanwhile."""
    if after is None:
        return items
    time, _, last = after.partition(" ")
    try:
        moment = dt.datetime.fromisoformat(time)
    except ValueError as error:
        raise _not_ours(after) from error
    if moment.tzinfo is None:
        raise _not_ours(after)
    return (info for info in items if info.last_message_at < moment or (info.last_message_at == moment and info.id > last))


def _number(after: str | None) -> int:
    if after is None:
        return 0
    if not after.isdecimal() or len(after) > 18:
        raise _not_ours(after)
    return int(after)


def _not_ours(after: str) -> InvalidInputError:
    return InvalidInputError(f"after: {after!r} is not what an earlier answer gave as next; begin again without it")
