"""`commit` of the PostgreSQL store: the quick way of a plain append, and the way that everything else goes.

Most commits append one frame to a thread whose row is remembered: one statement, which does nothing if the row is another
by now. Whether it landed when its reply was lost is found out by giving the row another version, after which it never
can, and looking for the frame. Touches store, rules, errors and the modules below this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg

from savegame.errors import SavegameError
from savegame.store import Append, DeleteThread, PutKeyframe, Rewrite, StoreChange
from savegame.stores.postgres.changes import Work, begins_thread
from savegame.stores.postgres.errors import TookTooLong, is_lost, translate
from savegame.stores.postgres.link import Patience
from savegame.stores.postgres.work import Task, Workings
from savegame.stores.refusals import unknown_outcome
from savegame.stores.rules import make

SLOW_FROM: Final = 64
"""With more changes than these a commit may take as long as removing something does."""


class Saving:
    """Commits changes, by whichever way is the shortest."""

    def __init__(self, work: Workings) -> None:
        self._work = work
        self._pool = work.pool
        self._committed = work.committed

    def commit(self, changes: Sequence[StoreChange]) -> list[int]:
        """`Store.commit`."""
        patience = Patience(self._work.deadline)
        if len(changes) == 1 and type(changes[0]) is Append and self._work.borrowed() is None:
            seq = self._append(changes[0], patience)
            if seq:
                return [seq]
        if not changes:
            return []
        task = Task(
            {change.key for change in changes},
            lambda work: [make(work, change) for change in changes],
            {change.key for change in changes if begins_thread(change)},
            [(change.key.namespace, change.id) for change in changes if isinstance(change, Append) and not change.fresh],
            marked=not all(isinstance(change, PutKeyframe) for change in changes),
            hurried=len(changes) <= SLOW_FROM and not any(isinstance(change, (DeleteThread, Rewrite)) for change in changes),
            changes=changes,
        )
        return self._work.write(task, patience)

    def _append(self, change: Append, patience: Patience) -> int:
        """Append with one statement, if the remembered row is still right. Gives 0 if nothing was written."""
        plain = self._committed.plain_append(change)
        if plain is None:
            return 0
        row, values = plain
        try:
            link = self._pool.take(patience)
        except psycopg.Error:
            return 0  # the way that everything else goes has the patience to try again
        link.notices.warned = False
        try:
            now = link.call("append", *values)
            doubtful = link.notices.warned
        except TookTooLong as error:
            raise translate(error, self._pool.where) from error
        except psycopg.Error as error:
            if not is_lost(error):
                self._committed.forget([change.key])
                return 0  # nothing was written; another attempt raises the reason
            doubtful = True
        finally:
            self._pool.give_back(link)
        if doubtful:
            return self._find_out(change, row.last, patience)
        if now is None:
            self._committed.forget([change.key])
            return 0
        self._work.clock.learn(now)
        if change.renew_us is not None and row.owner is not None:
            row = row._replace(expires=now + change.renew_us)
        self._committed.remember({change.key: row})
        return row.last

    def _find_out(self, change: Append, seq: int, patience: Patience) -> int:
        """Whether an append landed as frame `seq`; 0 if not, and then it never will: the version that it needs is gone."""
        key = change.key
        self._work.lose()

        def look(work: Work) -> bool:
            row = work.rows[key]
            if row is None:
                return False
            work.write(key, row)
            found = work.pins(key, (seq,)).get(seq)
            return found is not None and found.id == change.id

        try:
            landed = self._work.write(Task([key], look, marked=False), patience)
        except (SavegameError, psycopg.Error) as error:  # whatever it is that keeps us from finding out
            raise unknown_outcome(error, [change]) from error
        return seq if landed else 0
