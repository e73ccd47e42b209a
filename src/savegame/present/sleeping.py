"""Threads whose runs sleep, for surfaces that show when they will go on. Touches vault, inbox, companions."""

from __future__ import annotations

import datetime as dt
import logging
from typing import NamedTuple

from savegame.errors import CorruptionError
from savegame.runs.inbox import time_of
from savegame.timeline.companions import DUE
from savegame.vault import Vault

logger = logging.getLogger("savegame")


class Sleeping(NamedTuple):
    """A thread that sleeps, and until when."""

    thread_id: str
    until: dt.datetime


def list_sleeping(vault: Vault) -> list[Sleeping]:
    """The threads that sleep, the next one due first; those whose sleep is over are in `Vault.stale`."""
    found: list[Sleeping] = []
    for thread_id in vault.store.threads_with(vault.namespace, DUE):
        try:
            sleeps = vault.thread(thread_id).records(DUE).values()
        except CorruptionError as error:  # verify reports it
            logger.warning("thread %r: whether it sleeps cannot be read: %s", thread_id, error)
            continue
        found += [Sleeping(thread_id, time_of(sleep["until"])) for sleep in sleeps]
    return sorted(found, key=lambda sleeping: (sleeping.until, sleeping.thread_id))
