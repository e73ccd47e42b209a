"""Writes one store of each kind with the code that is installed, for `test_compat.py` to read for ever:

    python tests/compat/write.py tests/compat/format-1

Run it once for each new format, with the code that introduces it, and commit what it makes. Needs the extra `dev`.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import savegame
from savegame.testing.postgres import Cluster, binaries
from tests.compat import story

DERIVED = ("search.db*", "listing.json", "lock")


def main(target: Path) -> None:
    target.mkdir()
    platform.node = lambda: "a-machine"  # leases name their owner's
    expected = {}
    with tempfile.TemporaryDirectory() as scratch, Cluster() as cluster:
        addresses = {"sqlite": f"{scratch}/vault.db", "file": f"file:{scratch}/files", "postgres": cluster.url()}
        for store, address in addresses.items():
            story.write(partial(savegame.open, address))
            expected[store] = story.facts(partial(savegame.open, address))
        with savegame.open(addresses["sqlite"]) as vault:
            vault.export(target / "export.jsonl")
            vault.backup(target / "vault.db")
        shutil.copytree(f"{scratch}/files", target / "files", ignore=shutil.ignore_patterns(*DERIVED))
        dump = [binaries() / "pg_dump", "--no-owner", "--inserts", "--rows-per-insert=50", "--schema=savegame", cluster.url()]
        text = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    (target / "postgres.sql").write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("\\")))
    (target / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
