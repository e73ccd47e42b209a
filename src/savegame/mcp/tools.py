"""The tools: one method each, in the order in which clients list them. (Over 500 lines: one per tool.)

A method defines a tool: its parameters are the input schema, its docstring the description, its return type the output schema.
It calls the vault and fits the answer into `room` characters; it decides nothing itself. Omitted parameters change nothing.
Annotations are not postponed, because schemas are made from them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field

from savegame.encoding.plain import inside
from savegame.errors import InvalidInputError, NotFoundError, ThreadNotFound
from savegame.mcp import excerpts, schemas
from savegame.mcp.paging import fill_page, parse_number, skip_newer, skip_past
from savegame.mcp.schemas import After, AgentId, CheckpointId, ConversationId, Limit, Message, Patch, Ref, Start, ThreadId
from savegame.messages.domain import AgentState, Conversation
from savegame.messages.domain import Message as DomainMessage
from savegame.messages.locate import fold
from savegame.messages.states import own_thread
from savegame.model import MAX_KIND, Kind
from savegame.present.completion import exists
from savegame.present.diffs import changes_between
from savegame.present.effects import staying_effects
from savegame.present.families import as_listed, children_of
from savegame.runs.keys import digest_of
from savegame.runs.ledger import MARKS, CallEntry
from savegame.thread import Thread
from savegame.timeline.lineage import Ref as Reference
from savegame.timeline.lineage import by_text
from savegame.vault import Vault
from savegame.waiting.retrying import retried

T = TypeVar("T")
E = TypeVar("E", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., BaseModel])

ENVELOPE: Final = 6000
"""Characters of an answer that are reserved for everything but its entries."""

SENDER: Final = "mcp:"
"""Before the keys of messages, so that a model cannot use up the key of another sender, whose message would be dropped."""

LONGEST_KEY: Final = 400
LONGEST_REASON: Final = 2000

SKIPPED: Final = 5
"""Maximum number of skipped threads that an answer names."""

LONG: Final = (
    "name", "agent_type", "system_prompt", "capabilities", "config", "custom_state", "metadata", "active_conversations",
)  # fmt: skip
"""Fields of an agent that may be long."""


class NotAConversation(InvalidInputError):
    """The thread exists, but holds something else, or messages of another format."""


class Hints(NamedTuple):
    """What clients know about a tool."""

    title: str
    reads: bool = False
    """It changes nothing."""
    destroys: bool = False
    """What it deletes cannot be recovered."""
    repeatable: bool = False
    """A second call with the same arguments changes nothing."""


HINTS: Final[dict[str, Hints]] = {}
"""By the names of the tools, in their order."""


def _tool(title: str, *, reads: bool = False, destroys: bool = False, repeatable: bool = False) -> Callable[[F], F]:
    def register(function: F) -> F:
        HINTS[function.__name__] = Hints(title, reads, destroys, reads or repeatable)
        return function

    return register


class Tools:
    """The tools of one vault. Thread-safe. `room` is the number of characters for the entries of an answer."""

    def __init__(self, vault: Vault, answer_chars: int) -> None:
        self._vault = vault
        self._chars = answer_chars
        self.room = answer_chars - ENVELOPE

    # -- agents ------------------------------------------------------------------------------------

    @_tool("Save an agent")
    def agent_save(
        self,
        *,
        agent_id: AgentId,
        name: Annotated[str | None, Field(description="Required for a new agent.")] = None,
        agent_type: Annotated[str | None, Field(description="What it runs on or does. Required for a new agent.")] = None,
        system_prompt: str | None = None,
        capabilities: list[str] | None = None,
        config: Patch = None,
        custom_state: Patch = None,
        metadata: Patch = None,
        expect_revision: Annotated[
            str | None, Field(description="Save only if this is still its revision, so that nothing is overwritten.")
        ] = None,
    ) -> schemas.AgentSaved:
        """Save agent state to persistent storage: create an agent, or change the given fields. Earlier states are kept."""
        given = {"name": name, "agent_type": agent_type, "system_prompt": system_prompt, "capabilities": capabilities}
        patches = {"config": config, "custom_state": custom_state, "metadata": metadata}

        def attempt() -> schemas.AgentSaved:
            found = self._vault.load_agent(agent_id)
            old = {} if found is None else found.to_dict()
            agent = AgentState.from_dict({**old, "agent_id": agent_id, **_present(given), **_apply_patches(old, patches)})
            agent.known = expect_revision or (None if found is None else found.known)
            agent.touch()
            saved = self._vault.save_agent(agent)
            return schemas.AgentSaved(
                agent_id=agent_id,
                version=agent.version,
                revision=str(agent.known),
                checkpoint_id=saved.id,
                created=found is None,
            )

        return retried(attempt) if expect_revision is None else attempt()

    @_tool("Load an agent", reads=True)
    def agent_load(self, *, agent_id: AgentId) -> schemas.AgentLoaded:
        """Load agent state from persistent storage: what the agent is and knows, and its conversations."""
        agent = self._vault.load_agent(agent_id)
        if agent is None:
            raise NotFoundError(f"agent {agent_id!r} does not exist")
        fields, cut = excerpts.cut_fields({name: getattr(agent, name) for name in LONG}, self.room, "/agent")
        same = ("agent_id", "version", "created_at", "modified_at")
        return schemas.AgentLoaded(
            **{name: getattr(agent, name) for name in same},
            **fields,
            revision=str(agent.known),
            thread_id=own_thread(agent_id),
            cut=cut,
        )

    @_tool("Delete an agent", destroys=True, repeatable=True)
    def agent_delete(self, *, agent_id: AgentId) -> schemas.Deletion:
        """Delete agent and all associated data: its conversations, checkpoints and other threads. Cannot be undone."""
        return schemas.Deletion(deleted=self._vault.delete_agent(agent_id))

    @_tool("List agents", reads=True)
    def agent_list(self, *, limit: Limit = 50, after: After = None) -> schemas.AgentPage:
        """List all persisted agents, without their states."""
        found = skip_past(self._vault.agents(), after, lambda info: info.id)
        agents, more = fill_page(found, limit, schemas.AgentEntry.of, self.room)
        return schemas.AgentPage(agents=agents, next=agents[-1].agent_id if more else None)

    # -- conversations -----------------------------------------------------------------------------

    @_tool("Save a conversation")
    def conversation_save(
        self,
        *,
        conversation_id: Annotated[str | None, Field(description="Omit it to create a conversation with a new id.")] = None,
        agent_id: Annotated[str | None, Field(description="The agent it belongs to.")] = None,
        messages: Annotated[list[Message] | None, Field(description="All messages; they replace the existing ones.")] = None,
        append: Annotated[list[Message] | None, Field(description="Messages to add after the existing ones.")] = None,
        title: Annotated[str | None, Field(description="Taken from the first user message if there is none.")] = None,
        tags: list[str] | None = None,
        archived: bool | None = None,
        metadata: Patch = None,
        expect_head: Annotated[
            str | None,
            Field(description="Save only if this is still its newest checkpoint (head of the last answer)."),
        ] = None,
    ) -> schemas.ConversationSaved:
        """Save a conversation: create one, append to it (cheapest), or replace its messages. Every save is a checkpoint."""
        given: dict[str, Any] = {"agent_id": agent_id, "messages": messages, "title": title, "tags": tags, "archived": archived}

        def attempt() -> schemas.ConversationSaved:
            found = None if conversation_id is None else self._conversation(conversation_id)
            old = {"messages": [], **_present({"id": conversation_id})} if found is None else found.to_dict()
            self._refuse_marks(found, messages or (), append or ())
            conversation = Conversation.from_dict({**old, **_present(given), **_apply_patches(old, {"metadata": metadata})})
            for place, message in enumerate(append or ()):
                inside(f"append[{place}]", partial(conversation.add_message, message))
            conversation.auto_title()
            conversation.known = expect_head or (None if found is None else found.known)
            saved = self._vault.save_conversation(conversation)
            count = conversation.message_count()
            return schemas.ConversationSaved(
                conversation_id=conversation.id, head=saved.id, message_count=count, created=found is None
            )

        return retried(attempt) if expect_head is None else attempt()

    @_tool("Load a conversation", reads=True)
    def conversation_load(
        self, *, conversation_id: ConversationId, start: Start = 0, limit: Limit = 50
    ) -> schemas.ConversationLoaded:
        """Load a conversation and its messages from `start` on; start=-10 loads the newest ten."""
        found = self._conversation(conversation_id)
        if found is None:
            raise ThreadNotFound(f"conversation {conversation_id!r} does not exist")
        beside, cut = excerpts.cut_fields(
            {name: getattr(found, name) for name in ("title", "tags", "metadata")}, self.room // 4
        )
        count = found.message_count()
        part = excerpts.read_part({"messages": found.messages}, "/messages", start, limit, self.room - self.room // 4)
        same = ("agent_id", "archived", "created_at", "last_message_at")
        return schemas.ConversationLoaded(
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
    def conversation_delete(self, *, conversation_id: ConversationId) -> schemas.Deletion:
        """Delete a conversation with its whole history.

        Only restoring a checkpoint of its agent that includes it can undo this. To go back in time, use thread_rewind.
        """
        return schemas.Deletion(deleted=self._vault.delete_conversation(conversation_id))

    @_tool("List conversations", reads=True)
    def conversation_list(
        self,
        *,
        agent_id: Annotated[str | None, Field(description="Filter by agent.")] = None,
        tag: Annotated[str | None, Field(description="Filter by tag.")] = None,
        archived: Annotated[bool | None, Field(description="Only archived ones, or only others.")] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> schemas.ConversationPage:
        """List conversations for an agent, or all, without their messages; newest message first."""
        found = skip_newer(self._vault.conversations(agent_id, tag=tag, archived=archived), after)
        entries, more = fill_page(found, limit, schemas.ConversationEntry.of, self.room)
        last = f"{entries[-1].last_message_at.isoformat()} {entries[-1].conversation_id}" if more else None
        return schemas.ConversationPage(conversations=entries, next=last)

    @_tool("Search conversations", reads=True)
    def conversation_search(
        self,
        *,
        query: Annotated[
            str, Field(description='Words that one message must contain, in any order; "quoted words" match as a phrase.')
        ],
        match: Annotated[
            Literal["words", "substring"],
            Field(description="substring: find the query verbatim, inside words too, newest first."),
        ] = "words",
        agent_id: Annotated[str | None, Field(description="Filter by agent.")] = None,
        limit: Limit = 20,
        after: After = None,
    ) -> schemas.HitPage:
        """Search conversations and other threads by content, best match first, with the text around the matches."""
        first = parse_number(after)
        hits = self._vault.search(query, agent=agent_id, limit=first + limit + 1, match=match)
        entries, more = fill_page(hits[first:], limit, schemas.HitEntry.of, self.room)
        return schemas.HitPage(
            hits=entries, skipped=list(hits.skipped[:SKIPPED]), next=str(first + len(entries)) if more else None
        )

    # -- checkpoints of agents ---------------------------------------------------------------------

    @_tool("Create a checkpoint")
    def checkpoint_create(
        self,
        *,
        agent_id: AgentId,
        name: Annotated[str | None, Field(description="The checkpoint's label.")] = None,
        kind: Annotated[
            str, Field(max_length=MAX_KIND, description=f"Why it is created, any text. Predefined: {', '.join(Kind)}.")
        ] = Kind.MANUAL,
        description: str | None = None,
    ) -> schemas.CheckpointEntry:
        """Create a checkpoint for recovery: the agent and all its conversations at this moment."""
        return schemas.CheckpointEntry.of(self._vault.checkpoint_agent(agent_id, name, kind, description=description))

    @_tool("Restore a checkpoint")
    def checkpoint_restore(
        self,
        *,
        checkpoint_id: CheckpointId,
        skip_missing: Annotated[
            bool, Field(description="Restore the rest if some conversations were erased or pruned, instead of failing.")
        ] = False,
    ) -> schemas.RestoreResult:
        """Restore from a checkpoint: the agent and all its conversations go back together, or none does. Nothing is lost.

        Also restores conversations that were deleted later. What tools did since stays done in the world: the answer lists it.
        """
        before = self._vault.find(checkpoint_id)
        names = set() if before is None else self._conversations_of(before.agent_id)
        agent = self._vault.restore_agent(checkpoint_id, skip_missing=skip_missing)
        undo = next(self._vault.agent_checkpoints(agent.agent_id, limit=1))
        names |= self._conversations_of(agent.agent_id)
        left = [(name, effect) for name in sorted(names) for effect in self._vault.effects(name) if effect.left]
        staying = self._staying([found for found in left if found[1].undone_at is None])
        return schemas.RestoreResult(agent_id=agent.agent_id, version=agent.version, undo=undo.id, **staying)

    @_tool("List checkpoints", reads=True)
    def checkpoint_list(self, *, agent_id: AgentId, limit: Limit = 50, after: After = None) -> schemas.CheckpointPage:
        """List checkpoints for an agent, newest first: those of checkpoint_create, and the undo points of restores."""
        found = skip_past(self._vault.agent_checkpoints(agent_id), after, lambda checkpoint: checkpoint.id)
        entries, more = fill_page(found, limit, schemas.CheckpointEntry.of, self.room)
        return schemas.CheckpointPage(checkpoints=entries, next=entries[-1].id if more else None)

    @_tool("Delete a checkpoint", destroys=True, repeatable=True)
    def checkpoint_delete(self, *, checkpoint_id: CheckpointId) -> schemas.Deletion:
        """Delete a checkpoint of an agent or any thread. Earlier and later ones stay. Cannot be undone."""
        return schemas.Deletion(deleted=self._vault.delete_checkpoint(checkpoint_id))

    @_tool("Storage statistics", reads=True)
    def persistence_stats(self) -> schemas.Statistics:
        """Get storage statistics: counts of agents, conversations, messages, threads and checkpoints, and sizes in bytes."""
        stats = self._vault.stats()
        counts = ("agents", "conversations", "messages", "threads", "checkpoints", "damaged", "total_bytes")
        return schemas.Statistics(**{name: getattr(stats, name) for name in counts}, sizes=dict(stats.sizes))

    # -- time travel -------------------------------------------------------------------------------

    @_tool("History of a thread", reads=True)
    def thread_history(
        self,
        *,
        thread_id: ThreadId,
        branches: Annotated[bool, Field(description="Include branches left behind by rewind.")] = False,
        label: Annotated[str | None, Field(description="Filter by label.")] = None,
        tag: Annotated[str | None, Field(description="Filter by tag.")] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> schemas.History:
        """The checkpoints of a thread, newest first, without their states."""
        thread = self._existing(thread_id)
        found = as_listed(self._vault, thread_id, thread.history(branches=branches, label=label, tag=tag, before=after))
        head = next(thread.history(limit=1), None)
        entries, more = fill_page(found, limit, schemas.CheckpointEntry.of, self.room)
        return schemas.History(
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
            str | None, Field(description="The thread of new, if it is another one, such as a fork.")
        ] = None,
        bookkeeping: Annotated[
            bool, Field(description="Include the fields of a LangGraph thread that only LangGraph works with.")
        ] = False,
        limit: Limit = 50,
        after: After = None,
    ) -> schemas.DiffResult:
        """List the changes in the state from one checkpoint to another, by path; by default those of the last step."""
        first = parse_number(after)
        left = _at(old, self._vault.thread(thread_id).load)
        right = _at(new, self._vault.thread(new_thread_id or thread_id).load)
        found = changes_between(self._vault.codec, left.state, right.state)
        changes, folded = fold(found, left.state, right.state, everything=bookkeeping)
        entries, more = fill_page(changes[first:], limit, schemas.ChangeEntry.of, self.room)
        return schemas.DiffResult(
            old=left.id,
            new=right.id,
            changes=entries,
            total=len(changes),
            folded=folded,
            next=str(first + len(entries)) if more else None,
        )

    @_tool("Fork a thread")
    def thread_fork(
        self,
        *,
        thread_id: ThreadId,
        new_thread_id: Annotated[str, Field(description="The id of the new thread, which must not exist.")],
        at: Ref = "head",
    ) -> schemas.ForkResult:
        """Start a new thread with the state of a checkpoint, to try something else. The old thread does not change.

        What tools did after that checkpoint stays done in the world: the answer lists it.
        """
        source = self._vault.thread(thread_id)
        origin = _at(at, source.load)
        staying = self._staying([(thread_id, effect) for effect in staying_effects(self._vault, thread_id, origin)])
        new = source.fork(new_thread_id, at=origin)
        return schemas.ForkResult(thread_id=new.id, forked_from=thread_id, head=str(new.head), **staying)

    @_tool("Rewind a thread")
    def thread_rewind(self, *, thread_id: ThreadId, to: Ref) -> schemas.RewindResult:
        """Go back (or forward) to a checkpoint: the next save continues from there. Later checkpoints stay as a branch.

        What tools did after that checkpoint stays done in the world: the answer lists it.
        """
        thread = self._vault.thread(thread_id)
        before = next(thread.history(limit=1), None)
        target = _at(to, thread.load)
        staying = self._staying([(thread_id, effect) for effect in staying_effects(self._vault, thread_id, target)])
        head = schemas.CheckpointEntry.of(thread.rewind(target, expect=before))
        return schemas.RewindResult(head=head, undo=None if before is None else before.id, **staying)

    @_tool("Label a checkpoint", repeatable=True)
    def checkpoint_label(
        self,
        *,
        thread_id: ThreadId,
        checkpoint: Ref = "head",
        label: Annotated[str | None, Field(description="The new label; null removes the label.")],
    ) -> schemas.LabelResult:
        """Label a checkpoint. Every tool finds it by its label, and pruning keeps labelled checkpoints."""
        thread = self._vault.thread(thread_id)
        before = _at(checkpoint, thread.load)
        return schemas.LabelResult(checkpoint=schemas.CheckpointEntry.of(thread.label(before, label)), was=before.label)

    @_tool("List threads", reads=True)
    def thread_list(
        self,
        *,
        agent_id: Annotated[str | None, Field(description="Filter by agent.")] = None,
        status: Annotated[str | None, Field(description="Filter by status: in_progress, completed, failed or halted.")] = None,
        tag: Annotated[str | None, Field(description="Filter by tag of any checkpoint.")] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> schemas.ThreadPage:
        """List threads by id: conversations, agents' own threads, and all other threads of this vault.

        Threads of a graph's subgraphs are named with the graph's, unless there is a filter.
        """
        found = self._vault.threads(agent=agent_id, status=status, tag=tag, after=after)
        if agent_id is status is tag is None:
            found = (info for info in found if info.child_of is None or self._vault.info(info.child_of) is None)
        children = partial(children_of, self._vault)
        entries, more = fill_page(found, limit, lambda info: schemas.ThreadEntry.of(info, children(info)), self.room)
        return schemas.ThreadPage(threads=entries, next=entries[-1].thread_id if more else None)

    @_tool("Load a state", reads=True)
    def thread_load(
        self,
        *,
        thread_id: ThreadId,
        at: Ref = "head",
        path: Annotated[
            str, Field(description="JSON pointer into the state, such as /messages/3/content; empty for all of it.")
        ] = "",
        start: Start = 0,
    ) -> schemas.StateLoaded:
        """Load the state of any thread at any checkpoint, or a part of it, such as values that other answers shortened."""
        found = _at(at, self._vault.thread(thread_id).load)
        entry = schemas.CheckpointEntry.of(found)
        room = self._chars - len(entry.model_dump_json()) - schemas.BESIDE_CHARS
        part = excerpts.read_part(found.state, path, start, schemas.MAX_LIMIT, room)
        return schemas.StateLoaded(
            checkpoint=entry,
            path=excerpts.cut_text(path, excerpts.LONGEST_PATH),
            value=part.value,
            total=part.total,
            next_start=part.following,
            cut=part.cuts,
        )

    # -- agents at work -----------------------------------------------------------------------------

    @_tool("List effects", reads=True)
    def thread_effects(
        self,
        *,
        thread_id: ThreadId,
        since: Annotated[Ref | None, Field(description="Only effects begun after this checkpoint.")] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> schemas.EffectPage:
        """List what the tools of a thread's runs did in the world, oldest first.

        Going back does not undo it. Before you do something again, look here whether it was done already.
        """
        self._existing(thread_id)
        point = None if since is None else _at(since, self._vault.thread(thread_id).load)
        first = parse_number(after)
        found = islice(self._vault.effects(thread_id, after=point), first, None)
        entries, more = fill_page(found, limit, partial(schemas.EffectEntry.of, thread_id), self.room)
        return schemas.EffectPage(effects=entries, next=str(first + len(entries)) if more else None)

    @_tool("Send a message to a thread", repeatable=True)
    def message_send(
        self,
        *,
        thread_id: ThreadId,
        content: Annotated[str, Field(description="The text of the user's message.")],
        key: Annotated[
            str, Field(max_length=LONGEST_KEY, description="Your id for this message. A thread takes each key only once.")
        ],
    ) -> schemas.MessageSent:
        """Send a message to the agent that works on a thread, even while it runs; its run takes the message in next.

        Use conversation_save for a conversation that you keep yourself.
        """
        return schemas.MessageSent(thread_id=thread_id, new=self._vault.send(thread_id, content, key=f"{SENDER}{key}"))

    @_tool("Stop a run", repeatable=True)
    def thread_stop(
        self,
        *,
        thread_id: ThreadId,
        reason: Annotated[str, Field(max_length=LONGEST_REASON, description="Why; its agent and the user can read it.")],
    ) -> schemas.StopResult:
        """Stop the run of a thread before its next call. What it did stays; only a later message opens the thread again."""
        stopped = self._vault.stop(thread_id, reason)
        info = self._vault.info(thread_id)
        return schemas.StopResult(thread_id=thread_id, stopped=stopped, status="" if info is None else str.__str__(info.status))

    def _conversations_of(self, agent_id: str | None) -> set[str]:
        return {info.id for info in self._vault.conversations(agent_id)} if agent_id is not None else set()

    def _existing(self, thread_id: str) -> Thread:
        thread = self._vault.thread(thread_id)
        if not exists(thread):
            raise ThreadNotFound(f"thread {thread_id!r} does not exist: it has no checkpoints")
        return thread

    def _staying(self, effects: Sequence[tuple[str, CallEntry]]) -> dict[str, Any]:
        """The fields of an answer for effects that stay in the world, by thread: as many as fit, and their number."""
        entries, _ = fill_page(effects, schemas.MAX_LIMIT, lambda found: schemas.EffectEntry.of(*found), self.room)
        return {"effects": entries, "total_effects": len(effects)}

    def _conversation(self, conversation_id: str) -> Conversation | None:
        """The conversation with this id, None if missing. Raises NotAConversation for other threads."""
        self._vault.thread(conversation_id)  # raises the specific error for an invalid id
        try:
            return self._vault.load_conversation(conversation_id)
        except InvalidInputError as error:
            raise NotAConversation(f"thread {conversation_id!r} is not a conversation: {error}") from error

    def _refuse_marks(
        self, found: Conversation | None, messages: Iterable[dict[str, Any]], append: Iterable[dict[str, Any]]
    ) -> None:
        """Refuse to change the marks of runs, which rely on them to know which calls were made and approved."""
        marked = {message.id: message for message in (found.messages if found else ()) if MARKS & message.extra.keys()}
        for name, given in (("messages", messages), ("append", append)):
            for place, message in enumerate(given):
                marks, known = sorted(MARKS & message.keys()), marked.get(str(message.get("id")))
                if (marks or known) and not (known and name == "messages" and self._is_same(message, known)):
                    what = f"{name}[{place}].{marks[0] if marks else 'id'}"
                    raise InvalidInputError(
                        f"{what} was written by a run, and only runs may change it; pass the message unchanged, "
                        f"or without {', '.join(['id', *sorted(MARKS)])}"
                    )

    def _is_same(self, given: dict[str, Any], known: DomainMessage) -> bool:
        encode = self._vault.codec.encode
        return digest_of("", DomainMessage.from_dict(given).to_dict(), encode) == digest_of("", known.to_dict(), encode)


def _at(ref: str | int, verb: Callable[[Reference], T]) -> T:
    """The result of `verb` for a reference; models may write steps as text."""
    return by_text(ref, verb) if isinstance(ref, str) else verb(ref)


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _apply_patches(old: Mapping[str, Any], patches: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """Maps with the keys of their patches set, or removed where the patch has None."""
    merged = {name: (patch or {}, {**old.get(name, {}), **(patch or {})}) for name, patch in patches.items()}
    return {
        name: {key: value for key, value in values.items() if key not in patch or value is not None}
        for name, (patch, values) in merged.items()
    }
