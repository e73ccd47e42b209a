"""Which vault, thread and checkpoint a command is about, from what people type; completion of it. Touches opening, vault.

A thread is named by its id; where nothing is changed, also by a unique beginning of it. A script that changes something
never hits another thread because the one it meant is gone.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

import savegame
from savegame.checkpoint import Checkpoint
from savegame.errors import (
    CheckpointNotFound,
    InvalidInputError,
    NotFoundError,
    SavegameError,
    StoreNotFound,
    ThreadNotFound,
)
from savegame.opening import shown_address
from savegame.present.completion import checkpoints_named, threads_named
from savegame.thread import Thread
from savegame.timeline.lineage import Ref, by_text
from savegame.vault import Vault

T = TypeVar("T")

ENVIRONMENT: Final = "SAVEGAME_STORE"
PATIENCE_S: Final = 5.0
"""How long somebody waits for a server that does not answer, in seconds, unless its address says how long."""

HURRY_S: Final = 0.5
"""The same for somebody who pressed the tabulator."""

MANY: Final = 5
"""How many names an error tells of, where several would fit."""

OFFERED: Final = 200
"""How many a shell is offered."""

_given: ContextVar[tuple[str, ...]] = ContextVar("_given", default=())
"""The options that name the vault this command is about, as another command needs them."""


def default_address() -> str:
    """Where the vault is that nobody named: `agents.db` in the platform's directory for data."""
    home = Path.home()
    if sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return str(base / "savegame" / "agents.db")


def address(store: str | None) -> str:
    """The vault that a command is about."""
    return store or default_address()


def shown(store: str | None) -> str:
    """The same for people to see: without what may be a secret."""
    return shown_address(address(store))


def command(*words: str) -> str:
    """A command about the same vault, as it is typed: quoted, and with what named the vault unless that may be a secret."""
    return f"savegame {shlex.join([*words, *_given.get()])}"


def _options(store: str | None, namespace: str) -> tuple[str, ...]:
    url = "URL" if store is not None and shown(store) != store else store
    named = () if url is None or store == os.environ.get(ENVIRONMENT) else ("--store", url)
    return named if namespace == "default" else (*named, "--namespace", namespace)


def new_file(path: Path) -> Path:
    """A path where something can be made. Raises NotFoundError if its directory is not there."""
    if not path.parent.is_dir():
        raise NotFoundError(f"there is no directory {path.parent}; make it first")
    return path


@contextmanager
def opened(
    store: str | None, namespace: str, *, change: bool = False, make: bool = False, hurried: bool = False
) -> Iterator[Vault]:
    """The vault that a command is about: only read, unless it is to `change`; made if it is not there only with `make`.

    `hurried`: a server that does not answer is not waited for. Once it did, all its patience is there.
    """
    _given.set(_options(store, namespace))
    where = hurry(address(store), HURRY_S) if hurried else address(store)
    reached = patient(where)
    try:
        if not make and (change or reached != where):
            savegame.open(reached, read_only=True).close()
        vault = savegame.open(where, namespace=namespace, read_only=not (change or make))
    except StoreNotFound as error:
        if "read_only" not in str(error):
            raise
        advice = f"name one with --store or in {ENVIRONMENT}" if store is None else "check the name"
        raise StoreNotFound(f"there is no vault at {shown(store)}; {advice}") from error
    with vault:
        yield vault


def hurry(where: str, seconds: float) -> str:
    """An address with little patience, where its store takes such a wish: the last one counts."""
    if not re.match("postgres(ql)?://", where):
        return where
    return f"{where}{'&' if '?' in where else '?'}deadline={seconds:g}"


def patient(where: str) -> str:
    """An address with the patience of a person, unless it says how much it has."""
    return where if "deadline=" in where else hurry(where, PATIENCE_S)


# -- threads and checkpoints -----------------------------------------------------------------------


def thread_named(vault: Vault, name: str, *, whole: bool = False) -> Thread:
    """The thread with an id, or unless `whole` the only one whose id begins so. Raises ThreadNotFound, InvalidInputError."""
    thread = vault.thread(name)
    found = threads_named(vault, name)
    near = list(islice(found, 1))
    if near == [name]:
        return thread
    near += islice(found, MANY - 1)
    if len(near) == 1 and not whole:
        return vault.thread(near[0])
    if not near:
        raise ThreadNotFound(f"thread not found: {name!r}; {command('ls')} lists them")
    several = f"{', '.join(map(repr, near))}{', …' if len(near) == MANY else ''}"
    if whole:
        raise ThreadNotFound(f"thread not found: {name!r}; what changes a thread needs its whole id: {several}")
    raise InvalidInputError(f"{name!r} is ambiguous: {several}; give more of the id")


def by_reference(thread: Thread, text: str, verb: Callable[[Ref], T]) -> T:
    """What a verb gives for the checkpoint that a text means. Raises CheckpointNotFound, with the command that lists them."""
    try:
        return by_text(text, verb)
    except CheckpointNotFound as error:
        told = f"checkpoint not found: {text!r} in thread {thread.id!r}; {command('log', thread.id)} lists them"
        raise CheckpointNotFound(told) from error


def checkpoint_named(vault: Vault, thread: str, ref: str | None) -> Checkpoint:
    """A checkpoint with its state: by thread and reference (else the head), or without a reference by its whole id alone."""
    try:
        found = thread_named(vault, thread)
    except ThreadNotFound:
        by_id = vault.find(thread) if ref is None else None
        if by_id is None:
            raise
        return by_id
    return by_reference(found, ref or "head", found.load)


# -- completion ------------------------------------------------------------------------------------


def complete_thread(context: typer.Context, incomplete: str) -> list[str]:
    """Threads whose id begins so."""
    return _offered(context, lambda vault: islice(threads_named(vault, incomplete), OFFERED))


def complete_ref(context: typer.Context, incomplete: str) -> list[str]:
    """Labels of the thread that was named before, and the newest ids."""
    thread = context.params.get("thread")
    return _offered(context, lambda vault: checkpoints_named(vault.thread(thread), incomplete, 8)) if thread else []


class _InBash(str):
    """A name that is compared as it is, and written as bash reads it back: typer does the first, but not the second."""

    __slots__ = ()

    def __format__(self, _: str) -> str:
        return re.sub(r"[^\w@%+=:,./-]", r"\\\g<0>", self)


def _offered(context: typer.Context, names: Callable[[Vault], Iterable[str]]) -> list[str]:
    """Names for a shell, without those that no line can hold. Zsh and fish quote by themselves, and bash inside quotes.

    Nothing where the vault cannot be opened: a shell that completes has nowhere to show an error.
    """
    given: dict[str, Any] = context.params
    try:
        with opened(given.get("store"), given.get("namespace") or "default", hurried=True) as vault:
            plain = [name for name in names(vault) if name.isprintable()]
    except SavegameError:
        return []
    words, place = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
    if not words or not place.isdecimal() or re.search(r"(?:^|\s)[\"'][^\"']*$", words):
        return plain
    return [_InBash(name) for name in plain]


# -- options ---------------------------------------------------------------------------------------

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        metavar="URL",
        envvar=ENVIRONMENT,
        show_default="agents.db in the platform's data directory",
        help="Vault: path (SQLite), file:DIRECTORY or postgresql://…",
    ),
]
Namespace = Annotated[str, typer.Option(help="Namespace.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, change nothing.")]
ThreadName = Annotated[str, typer.Argument(metavar="THREAD", help="Thread id.", autocompletion=complete_thread)]
AnyThread = Annotated[
    str, typer.Argument(metavar="THREAD", help="Thread id, or a unique prefix of it.", autocompletion=complete_thread)
]
REFERENCE: Final = "Checkpoint id (6 or more characters), label, step, head~2 or latest."
RefName = Annotated[str, typer.Argument(metavar="REF", help=REFERENCE, autocompletion=complete_ref)]
