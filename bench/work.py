"""Looking for work as a supervisor does: which runs crashed, which threads have mail, whose sleep is over.

The same look at a vault with 100 idle threads and at one with all of them; ten have mail in each.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import savegame
from bench.measure import summarise
from bench.sizes import Sizes
from savegame.store import SOUGHT

FEW = 100
WITH_MAIL = 10
LOOKS = 15


def work(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """A whole look, and the part of it that finds threads with mail or a sleep."""
    found: dict[str, Any] = {}
    for name, count in (("few", FEW), ("many", sizes.idle)):
        with savegame.open(directory / f"{name}.db", durability="process") as vault:
            for number in range(count):
                vault.thread(f"thread-{number:06}").save({"messages": []}, status="completed")
            for number in range(WITH_MAIL):
                vault.send(f"thread-{number * count // WITH_MAIL:06}", "hello")
            found[f"{name}_look"] = summarise(partial(_looked, vault) for _ in range(LOOKS))
            found[f"{name}_find"] = summarise(partial(_found, vault) for _ in range(LOOKS))
    return found


def _looked(vault: savegame.Vault) -> None:
    assert [run.reason for run in vault.stale()] == ["mail"] * WITH_MAIL


def _found(vault: savegame.Vault) -> None:
    assert sum(len(vault.store.threads_with(vault.namespace, kind)) for kind in SOUGHT) == WITH_MAIL
