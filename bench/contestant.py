"""One task of one contestant in its own process: `python -m bench.contestant NAME TASK DIRECTORY SIZES`.

Prints one line of JSON. Later tasks may use what it leaves in the directory.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

from bench.sizes import Sizes

SAVERS = ("saver_savegame", "saver_sqlite", "saver_delta", "saver_memory")
DBOS = ("dbos", "dbos_wal")
POSTGRES = ("pg_floor", "pg_savegame", "pg_saver")
MODULES = {
    "floor": "bench.floor",
    "savegame": "bench.ours",
    "savegame_file": "bench.many",
    "sqlitesaver": "bench.sqlitesaver",
    **dict.fromkeys(SAVERS, "bench.savers"),
    **dict.fromkeys(DBOS, "bench.dbos"),
    **dict.fromkeys(POSTGRES, "bench.postgres"),
}


def main(name: str, task: str, directory: str, sizes: str) -> None:
    """Do the task and print what was measured."""
    module = importlib.import_module(MODULES[name])
    Path(directory).mkdir(parents=True, exist_ok=True)
    start = time.perf_counter(), time.process_time()
    tasks = module.tasks(name) if name in SAVERS + DBOS + POSTGRES else module.TASKS
    result = tasks[task](Path(directory), Sizes.from_text(sizes))
    result["seconds"], result["cpu_seconds"] = time.perf_counter() - start[0], time.process_time() - start[1]
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
