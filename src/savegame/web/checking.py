"""The integrity check of a store, in the background, one at a time. Touches vault, errors."""

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
    """How far a check is: `done` of `total` threads, then its report, or why it could not be made."""

    running: bool = False
    done: int = 0
    total: int = 0
    report: Report | None = None
    error: str | None = None


class Checking:
    """Runs `vault.verify()` when asked; `now` tells how far it is."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._lock = threading.Lock()
        self.now = Check()

    def start(self) -> None:
        """Begin a check, unless one is running."""
        with self._lock:
            if self.now.running:
                return
            self.now = Check(running=True)
        threading.Thread(target=self._work, name="savegame ui checks", daemon=True).start()

    def _work(self) -> None:
        try:
            report = self._vault.verify(progress=self._tell)
        except SavegameError as error:
            self.now = replace(self.now, running=False, error=str(error))
        except Exception as error:  # else it would be running for ever
            logger.exception("the integrity check ended early")
            self.now = replace(self.now, running=False, error=f"the check ended early ({error!r}); the log says more")
        else:
            self.now = replace(self.now, running=False, report=report)

    def _tell(self, done: int, total: int) -> None:
        self.now = replace(self.now, done=done, total=total)
