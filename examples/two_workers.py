"""Two processes work on one thread: python two_workers.py. No work is lost, and none is overwritten by accident."""

import multiprocessing
import tempfile
from pathlib import Path

import savegame


def worker(path, name, count):
    """Append relative changes: they apply to the current head, so they never conflict."""
    with savegame.open(path) as vault:
        thread = vault.thread("shared")
        for number in range(count):
            thread.update(append={"log": [f"{name}-{number}"]})


def main():
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "shared.db")
        processes = [multiprocessing.Process(target=worker, args=(path, name, 20)) for name in ("anna", "ben")]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        with savegame.open(path) as vault:
            log = vault.thread("shared").state()["log"]
            print(len(log), "entries,", len(set(log)), "different ones")
            conflict(vault)


def conflict(vault):
    """Absolute changes name the state they build on: the second of two is refused."""
    anna, ben = vault.thread("shared"), vault.thread("shared")
    seen_by_anna, seen_by_ben = anna.state(), ben.state()
    anna.save({**seen_by_anna, "winner": "anna"})
    try:
        ben.save({**seen_by_ben, "winner": "ben"})
    except savegame.ConflictError as error:
        print("ben was too late: the head is", "anna's" if error.found == anna.head else "another one's")
    ben.modify(lambda state: {**state, "second": "ben"})
    print({name: value for name, value in ben.state().items() if name != "log"})


if __name__ == "__main__":
    main()
