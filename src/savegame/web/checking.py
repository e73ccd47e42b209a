"""The integrity check of the store page: in the background, one at a time."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from savegame.errors import SavegameError
from savegame.model import Report
from savegame.vault import Vault

logger = logging.getLogger("savegame")


@dataclass(frozen=True, slots=True)
class Check:
    """The progress of a check: `done` of `total` threads, then its report, or the error that ended it."""

    running: bool = False
    done: int = 0
    total: int = 0
    report: Report | None = None
    error: str | None = None


class Checking:
    """Runs `vault.verify()` in a thread; `now` is its progress."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._lock = threading.Lock()
        self.now = Check()

    def start(self) -> None:
        """Start a check, unless one is running."""
        with self._lock:
            if self.now.running:
                return
            self.now = Check(running=True)
        threading.Thread(target=self._work, name="savegame ui checks", daemon=True).start()

    def _work(self) -> None:
        try:
            report = self._vault.verify(progress=self._set_progress)
        except SavegameError as error:
            self.now = replace(self.now, running=False, error=str(error))
        except Exception as error:  # otherwise it would appear to run forever
            logger.exception("the integrity check failed")
            self.now = replace(self.now, running=False, error=f"the check failed ({error!r}); see the log of savegame ui")
        else:
            self.now = replace(self.now, running=False, report=report)

    def _set_progress(self, done: int, total: int) -> None:
        self.now = replace(self.now, done=done, total=total)
