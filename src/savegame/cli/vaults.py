"""Finds the vault, thread and checkpoint that the arguments of a command name, and completes them in shells.

A thread is named by its id. Commands that change nothing also take a unique prefix; the others do not, so that a script
never changes a different thread because the one it names is gone.
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
from savegame.present.completion import matching_checkpoints, matching_threads
from savegame.thread import Thread
from savegame.timeline.lineage import Ref, by_text
from savegame.vault import Vault

T = TypeVar("T")

ENVIRONMENT: Final = "SAVEGAME_STORE"
SERVER_WAIT_S: Final = 5.0
"""How long a command waits for a server, unless the address sets a deadline."""

HURRY_S: Final = 0.5
"""How long a shell completion waits for a server."""

MAX_NAMES: Final = 5
"""Maximum number of names in an error about an ambiguous one."""

MAX_COMPLETIONS: Final = 200

_vault_options: ContextVar[tuple[str, ...]] = ContextVar("_vault_options", default=())
"""The options that name the vault of this command, for suggesting further commands."""


def default_address() -> str:
    """The vault without --store: `agents.db` in the platform's data directory."""
    home = Path.home()
    if sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return str(base / "savegame" / "agents.db")


def address(store: str | None) -> str:
    """The address of the vault of a command."""
    return store or default_address()


def store_name(store: str | None) -> str:
    """The address without anything that may be a secret."""
    return shown_address(address(store))


def command(*words: str) -> str:
    """A command line for the same vault: quoted, and with --store and --namespace unless they may hold a secret."""
    return f"savegame {shlex.join([*words, *_vault_options.get()])}"


def _option_words(store: str | None, namespace: str) -> tuple[str, ...]:
    url = "URL" if store is not None and store_name(store) != store else store
    named = () if url is None or store == os.environ.get(ENVIRONMENT) else ("--store", url)
    return named if namespace == "default" else (*named, "--namespace", namespace)


def new_file(path: Path) -> Path:
    """The path of a file to create. Raises NotFoundError if its directory does not exist."""
    if not path.parent.is_dir():
        raise NotFoundError(f"directory {path.parent} does not exist; create it first")
    return path


@contextmanager
def use_vault(
    store: str | None, namespace: str, *, change: bool = False, make: bool = False, hurried: bool = False
) -> Iterator[Vault]:
    """Open the vault of a command: read-only unless the command will `change` it; `make` creates it if missing.

    With `hurried`, a server that does not answer at once raises UnavailableError.
    """
    _vault_options.set(_option_words(store, namespace))
    where = hurry(address(store), HURRY_S) if hurried else address(store)
    reached = patient(where)
    try:
        if not make and (change or reached != where):
            savegame.open(reached, read_only=True).close()
        vault = savegame.open(where, namespace=namespace, read_only=not (change or make))
    except StoreNotFound as error:
        if "read_only" not in str(error):
            raise
        advice = f"name one with --store or {ENVIRONMENT}" if store is None else "check the address"
        raise StoreNotFound(f"no vault at {store_name(store)}; {advice}") from error
    with vault:
        yield vault


def hurry(where: str, seconds: float) -> str:
    """An address with a deadline, if its store is a server. The last deadline of an address counts."""
    if not re.match("postgres(ql)?://", where):
        return where
    return f"{where}{'&' if '?' in where else '?'}deadline={seconds:g}"


def patient(where: str) -> str:
    """An address with the deadline of a command, unless it has its own."""
    return where if "deadline=" in where else hurry(where, SERVER_WAIT_S)


# -- threads and checkpoints -----------------------------------------------------------------------


def get_thread(vault: Vault, name: str, *, whole: bool = False) -> Thread:
    """The thread with this id, or unless `whole` the only one with this prefix. Raises ThreadNotFound, InvalidInputError."""
    thread = vault.thread(name)
    found = matching_threads(vault, name)
    near = list(islice(found, 1))
    if near == [name]:
        return thread
    near += islice(found, MAX_NAMES - 1)
    if len(near) == 1 and not whole:
        return vault.thread(near[0])
    if not near:
        raise ThreadNotFound(f"thread {name!r} does not exist; list threads with {command('ls')}")
    several = f"{', '.join(map(repr, near))}{', …' if len(near) == MAX_NAMES else ''}"
    if whole:
        raise ThreadNotFound(f"thread {name!r} does not exist; to change a thread, pass its full id: {several}")
    raise InvalidInputError(f"thread id {name!r} is ambiguous: {several}; pass a longer prefix")


def resolve_reference(thread: Thread, text: str, verb: Callable[[Ref], T]) -> T:
    """The result of `verb` for the checkpoint that a text names. Raises CheckpointNotFound with the next command to run."""
    try:
        return by_text(text, verb)
    except CheckpointNotFound as error:
        raise CheckpointNotFound(
            f"checkpoint {text!r} does not exist in thread {thread.id!r}; list its checkpoints with {command('log', thread.id)}"
        ) from error


def get_checkpoint(vault: Vault, thread: str, ref: str | None) -> Checkpoint:
    """A checkpoint with its state: by thread and reference (default: the head), or by its full id alone."""
    try:
        found = get_thread(vault, thread)
    except ThreadNotFound:
        by_id = vault.find(thread) if ref is None else None
        if by_id is None:
            raise
        return by_id
    return resolve_reference(found, ref or "head", found.load)


# -- completion ------------------------------------------------------------------------------------


def complete_thread(context: typer.Context, incomplete: str) -> list[str]:
    """Threads with this prefix."""
    return _complete(context, lambda vault: islice(matching_threads(vault, incomplete), MAX_COMPLETIONS))


def complete_ref(context: typer.Context, incomplete: str) -> list[str]:
    """Labels and newest ids of the thread named earlier on the line."""
    thread = context.params.get("thread")
    return _complete(context, lambda vault: matching_checkpoints(vault.thread(thread), incomplete, 8)) if thread else []


class _InBash(str):
    """A name that compares unquoted and prints quoted for bash: typer does not quote."""

    __slots__ = ()

    def __format__(self, _: str) -> str:
        return re.sub(r"[^\w@%+=:,./-]", r"\\\g<0>", self)


def _complete(context: typer.Context, names: Callable[[Vault], Iterable[str]]) -> list[str]:
    """Names for a shell, without unprintable ones. Zsh and fish quote by themselves, and bash inside quotes.

    Empty if the vault cannot be opened: during completion there is nowhere to show an error.
    """
    given: dict[str, Any] = context.params
    try:
        with use_vault(given.get("store"), given.get("namespace") or "default", hurried=True) as vault:
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
