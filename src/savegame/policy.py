"""What to keep and when to save, as pure decisions. Touches model and errors."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from savegame.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of each thread to keep: the newest `max_checkpoints`, nothing older than `ttl`; the head always stays.

    The default keeps everything. Labelled checkpoints are kept besides, unless `keep_labelled=False`.
    """

    max_checkpoints: int | None = None
    ttl: dt.timedelta | None = None
    keep_labelled: bool = True

    def __post_init__(self) -> None:
        if self.max_checkpoints is not None and self.max_checkpoints < 1:
            raise InvalidInputError(f"max_checkpoints must be at least 1, not {self.max_checkpoints}: the head always stays")
        if self.ttl is not None and self.ttl <= dt.timedelta(0):
            raise InvalidInputError(f"ttl must be longer than zero, not {self.ttl}")

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever hidden."""
        return self.max_checkpoints is None and self.ttl is None

    def hides(self, *, below_floor: bool, labelled: bool, created_us: int, now_us: int) -> bool:
        """Whether a checkpoint that is not the head is hidden. `below_floor`: newer ones fill `max_checkpoints`."""
        if labelled and self.keep_labelled:
            return False
        expired = self.ttl is not None and created_us < now_us - self.ttl // dt.timedelta(microseconds=1)
        return expired or (self.max_checkpoints is not None and below_floor)


def spared_by_prune(
    rank: int, created_us: int, *, labelled: bool, keep: int | None, cutoff_us: int | None, include_labelled: bool
) -> bool:
    """Whether an explicit prune leaves a checkpoint: every rule that was given must want it gone. `rank` 0 is the newest."""
    if labelled and not include_labelled:
        return True
    return (keep is not None and rank < keep) or (cutoff_us is not None and created_us >= cutoff_us)
