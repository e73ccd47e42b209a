"""From a URL to a vault: finds the store for its scheme and opens it.

Other packages add stores through the entry point `savegame.stores`, a function
`open_url(url, *, durability, read_only) -> Store`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Final, ParamSpec, TypeVar

from savegame.aio import Opening
from savegame.errors import InvalidInputError, StoreNotFound, UnsupportedError, needs_descriptors
from savegame.store import Store
from savegame.timeline.policy import Retention
from savegame.vault import DEFAULT_CACHE, Vault, check_options
from savegame.waiting.undoing import on_failure

P = ParamSpec("P")
T = TypeVar("T")

BUILT_IN = {
    "file": "savegame.stores.file",
    "memory": "savegame.stores.memory",
    "postgres": "savegame.stores.postgres",
    "postgresql": "savegame.stores.postgres",
    "sqlite": "savegame.stores.sqlite",
}
"""Works without installed metadata, as in a source tree."""

_PATHS: Final = ("file", "memory", "sqlite")
"""Schemes whose addresses are paths and hold no secrets."""

_HOSTS: Final = re.compile(
    r"[\w.%-]*(?:\[[0-9A-Fa-f:.%]*\])?(?::\d+)?(?:,[\w.%-]*(?:\[[0-9A-Fa-f:.%]*\])?(?::\d+)?)*(?:/[^:@]*)?"
)
"""Hosts with ports, and a database."""


def open_vault(
    url: str | os.PathLike[str],
    *,
    durability: str = "power",
    retention: Retention | None = None,
    key: bytes | None = None,
    namespace: str = "default",
    compress: bool = True,
    read_only: bool = False,
    cache_bytes: int = DEFAULT_CACHE,
) -> Vault:
    """Open a vault, and create it if it does not exist: a path or `sqlite:PATH` for an SQLite file, `file:DIRECTORY` for
    readable journals, `memory:` for memory only, `postgresql://...` for a PostgreSQL database.

    `durability="power"` survives a power cut, `"process"` a killed process. `retention` limits how much of each thread is
    kept. `namespace` separates tenants. `cache_bytes` limits the memory for states.
    """
    if durability not in ("power", "process"):
        raise InvalidInputError(f"durability {durability!r} is unknown; one of: power, process")
    if key is not None:
        raise UnsupportedError("encryption (key=...) is not implemented yet; omit key, or encrypt the disk")
    check_options(namespace, retention, cache_bytes)
    store = open_store(url, durability=durability, read_only=read_only)
    with on_failure(store.close):  # also Ctrl-C: the caller never gets the store to close it
        return Vault(store, namespace=namespace, retention=retention, compress=compress, cache_bytes=cache_bytes)


def _with_parameters_of(target: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the signature of the one that it passes its arguments to."""

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        signature = inspect.signature(target).replace(return_annotation=function.__annotations__["return"])
        setattr(function, "__signature__", signature)  # noqa: B010 - mypy does not know the attribute
        return function

    return decorate


@_with_parameters_of(open_vault)
def open_async(*args: Any, **options: Any) -> Opening:
    """`open` for asyncio: `vault = await open_async(...)` or `async with open_async(...) as vault:` with an AsyncVault."""
    return Opening(partial(open_vault, *args, **options))


def shown_address(url: str | os.PathLike[str]) -> str:
    """A vault's address without secrets: of a URL only scheme, user, hosts and database."""
    text = os.fspath(url)
    scheme, mark, rest = text.partition("://")
    if not mark or scheme in _PATHS:
        return text
    found = re.match(r"(?:([^:@/]*)(?::[^@/]*)?@)?([^?]*)(.*)", rest, re.DOTALL)
    assert found is not None  # every part may be empty
    user, where, query = found.groups()
    if not _HOSTS.fullmatch(where) or (user is None and "@" in query):  # a password that is not escaped
        return f"{scheme}://…"
    return f"{scheme}://{f'{user}@' if user else ''}{where}"


def open_store(url: str | os.PathLike[str], **options: Any) -> Store:
    """The store that a URL names. Raises UnavailableError if too many files are open to import, find or open it."""
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise InvalidInputError(f"a vault's address must be a path or a URL, not {url!r}")
    scheme = re.match(r"([a-z][a-z0-9+.-]+):|([A-Za-z][A-Za-z0-9+.-]+)://", text)
    name = scheme[0].partition(":")[0] if scheme else "sqlite"
    if name in ("file", "sqlite") and find_spec("fcntl") is None:  # as on Windows
        raise UnsupportedError(
            f"{text}: savegame's files need Linux or macOS, because file locks and flushes on Windows are not supported; "
            f"use WSL, or a vault at postgresql:// or memory:"
        )
    with needs_descriptors(f"cannot open {shown_address(text)}"):
        store: Store = _built_in(name).open_url(text, **options) if name in BUILT_IN else _load_installed(name, text, options)
        return store


def _load_installed(name: str, text: str, options: dict[str, Any]) -> Store:
    """The store of another package."""
    os.close(os.open(os.devnull, os.O_RDONLY))  # without a free descriptor none is found, and Python caches that
    for entry in entry_points(group="savegame.stores", name=name):
        store: Any = entry.load()(text, **options)
        if not isinstance(store, Store):
            raise UnsupportedError(f"{entry.value} does not return a savegame store; report this to its authors")
        return store
    if "://" in text:  # the rest may hold a password
        meant = "postgresql://" if name.lower().startswith("postgres") else "postgresql://, a path, file: or memory:"
        raise StoreNotFound(f"there is no store for {name!r}; use {meant}")
    raise StoreNotFound(
        f"there is no store for {name!r}; use a path for an SQLite file (./{text} if that is its name), file:, memory: or "
        f"postgresql://"
    )


def _built_in(name: str) -> Any:
    """The module of a store that comes with savegame."""
    try:
        return import_module(BUILT_IN[name])
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise UnsupportedError(f"{name}: needs psycopg; pip install 'savegame[postgres]'") from error
