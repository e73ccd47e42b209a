"""Writes one store of each kind with the code that is installed, for `test_compat.py` to read for ever:

    python tests/compat/write.py tests/compat/format-1
    python tests/compat/write.py tests/compat/format-2 file

Run it once for each new format, with the code that introduces it, for the stores whose format is new, and commit what it
makes. Needs the extra `dev`.
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


def main(target: Path, *stores: str) -> None:
    target.mkdir()
    platform.node = lambda: "a-machine"  # leases name their owner's
    expected = {}
    with tempfile.TemporaryDirectory() as scratch, Cluster() as cluster:
        addresses = {"sqlite": f"{scratch}/vault.db", "file": f"file:{scratch}/files", "postgres": cluster.url()}
        for store in stores or addresses:
            story.write(partial(savegame.open, addresses[store]))
            expected[store] = story.facts(partial(savegame.open, addresses[store]))
        if "sqlite" in expected:
            with savegame.open(addresses["sqlite"]) as vault:
                vault.export(target / "export.jsonl")
                vault.backup(target / "vault.db")
        if "file" in expected:
            shutil.copytree(f"{scratch}/files", target / "files", ignore=shutil.ignore_patterns(*DERIVED))
        if "postgres" in expected:
            (target / "postgres.sql").write_text(dumped(cluster.url()))
    (target / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


def dumped(url: str) -> str:
    """The tables as SQL, without what only psql understands."""
    dump = [binaries() / "pg_dump", "--no-owner", "--inserts", "--rows-per-insert=50", "--schema=savegame", url]
    text = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("\\"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
