"""A mode in which a vault takes one write and no more: its writer has to close, open again and resume.

For whole programs it is a store of the scheme `resuming:`, beside those that are installed (`installed`). A program that has
written leaves all of its `with` blocks and starts over: python always_resume.py PROGRAM OPTIONS.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broken_stores import store_at, told

from savegame.model import Lease, ThreadKey
from savegame.runs.ledger import RUN
from savegame.store import Store, StoreChange

AGAIN = 75
BEGUN = "begun"
ENOUGH = 100
NOT_ALONE = {"started", RUN}
"""What is followed by more in the same opening: left after `started`, a call is unknown; RUN is what each takeover writes."""


class Again(SystemExit):
    """This opening of the vault has had its write."""

    def __init__(self) -> None:
        super().__init__(AGAIN)


class OneWrite(Store):
    """Raises Again right after a write, and for everything that would follow it."""

    wrote: tuple[ThreadKey, ...] = ()

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        self._refuse_more()
        made = super().commit(changes)
        if not {told(change) for change in changes} <= NOT_ALONE:
            self.wrote += (changes[0].key,)
            if not self.borrowed():  # else the transaction has to end first
                raise Again
        return made

    def lease(self, key: ThreadKey, owner: str, ttl_us: int, *, instead_of: int | None = None) -> Lease:
        self._refuse_more()
        return super().lease(key, owner, ttl_us, instead_of=instead_of)

    def renew(self, key: ThreadKey, epoch: int, ttl_us: int) -> Lease:
        """A run that is left for its write runs out, and has to be taken over. Others that are left with it are given back."""
        return super().renew(key, epoch, int(key in self.wrote) if self.wrote else ttl_us)

    @contextmanager
    def connection(self) -> Iterator[Any]:
        self._refuse_more()
        with super().connection() as db:
            yield db
        self._refuse_more()

    def _refuse_more(self) -> None:
        if self.wrote:
            raise Again


def open_url(url: str, **options: Any) -> Store:
    """A store from `resuming:` and the address of another, as an installed package would offer it."""
    return store_at(url.removeprefix("resuming:"), OneWrite)


def installed(directory: Path) -> dict[str, str]:
    """The environment of a process in which the scheme is known: the entry point of a package that is nothing else."""
    package = directory / "always_resume-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: always-resume\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[savegame.stores]\nresuming = always_resume:open_url\n")
    places = (str(directory), str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def main() -> None:
    """Run a program from its beginning until it goes through without a write; on stderr, a line for each time."""
    sys.argv = sys.argv[1:]
    for _ in range(ENOUGH):
        print(BEGUN, file=sys.stderr, flush=True)
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as ended:
            if ended.code != AGAIN:
                raise
        else:
            return
    sys.exit(f"{sys.argv[0]} does not get on: it has written something {ENOUGH} times")


if __name__ == "__main__":
    main()
