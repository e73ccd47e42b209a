"""savegame as the contestant: a vault on SQLite as `savegame.open(path)` returns it, durable to power loss by default."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import savegame
from bench import corpus, padded, pages
from bench.many import many
from bench.measure import Call, disk_bytes, marks, rss_bytes, settle, summarise, summary, timed
from bench.runs import resume, step
from bench.sizes import Sizes
from bench.work import work

PADDED_FLUSH_S = 0.002


def update(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """update() around step 1,000 with the WAL grown; how much of it was keyframes; and all steps up to there."""
    with savegame.open(directory / "update.db") as vault:
        _run(updates(vault.thread("warm-up"), corpus.steps(1, sizes.warmup, "warm-up")))
        calls = updates(vault.thread("main"), corpus.steps(1, sizes.at + sizes.around))
        settle()
        start = vault.stats().sizes["keyframes"]
        before = timed(next(calls) for _ in range(sizes.at - sizes.around))
        middle = vault.stats().sizes["keyframes"]
        window = timed(calls)
        end = vault.stats().sizes["keyframes"]
    return {
        "update": summary(window),
        "update_from_1": summary(before + window),
        "keyframe_bytes": end - middle,
        "keyframe_bytes_from_1": end - start,
    }


def flat(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """update() around step 10,000 of one thread and around step 100 of another, in turn: nothing else can differ."""
    near, far, window = sizes.near, sizes.far, sizes.window
    with savegame.open(directory / "flat.db") as vault:
        long, short = (
            updates(vault.thread(name), corpus.steps(1, last + window, name)) for name, last in (("long", far), ("short", near))
        )
        _run(next(long) for _ in range(far - window))
        _run(next(short) for _ in range(near - window))
        settle()
        samples: tuple[list[Any], list[Any]] = ([], [])
        for _ in range(2 * window):
            for calls, into in zip((long, short), samples, strict=True):
                into += timed([next(calls)])
        return {"far": summary(samples[0]), "near": summary(samples[1])}


def grow(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Time and disk against steps, by update(); leaves the thread that the tasks after it load."""

    def calls(thread: Any, first: int, last: int) -> Iterable[Call]:
        return updates(thread, corpus.steps(first, last))

    content = sum(len(corpus.packed(pair)) for pair in corpus.steps(1, sizes.grow))
    return {**_grow(directory / "grow.db", sizes, calls), "content_bytes": content}


def grow_save(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Time and disk against steps, by save() of the whole state."""
    messages: list[corpus.Message] = []
    return _grow(directory / "grow_save.db", sizes, lambda thread, first, last: saves(thread, messages, first, last))


def load(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """latest() of the grown thread by a vault that was just opened; and with the opening counted in."""
    path = directory / "grow.db"

    def once() -> int:
        with savegame.open(path) as vault:
            return len(vault.thread("main").state()["messages"])

    def fresh() -> Iterator[Call]:
        for _ in range(sizes.loads):
            with savegame.open(path) as vault:
                yield vault.thread("main").latest

    assert once() == 2 * sizes.grow
    return {"load": summarise(fresh()), "open_load": summarise(once for _ in range(sizes.loads - 1))}


def older(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """load() of every checkpoint without a cache, latest() in between; the worst by its median over some passes."""
    with savegame.open(directory / "grow.db", cache_bytes=0) as vault:
        thread = vault.thread("main")
        ids = [found.id for found in thread.history(newest_first=False)]
        _verify(thread, ids)
        settle()
        walls: list[list[float]] = [[] for _ in ids]
        latest: list[tuple[float, float]] = []
        for _ in range(sizes.passes):
            for number, id_ in enumerate(ids):
                walls[number] += [wall for wall, _ in timed([partial(thread.load, id_)])]
                if number % 10 == 0:
                    latest += timed([thread.latest])
        medians = [statistics.median(found) for found in walls]
        by_step = summarise(partial(thread.load, 1 + number) for number in range(0, len(ids), 20))
    worst = max(range(len(ids)), key=medians.__getitem__)
    return {
        "latest": summary(latest),
        "worst_us": medians[worst],
        "worst_step": worst + 1,
        "median_us": statistics.median(medians),
        "load_by_step": by_step,
    }


def history(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """history(limit=50) of the grown thread."""
    with savegame.open(directory / "grow.db") as vault:
        thread = vault.thread("main")

        def listed() -> list[Any]:
            return list(thread.history(limit=sizes.history))

        assert len(listed()) == sizes.history
        return {"history": summarise(listed for _ in range(sizes.histories))}


def save(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """save() of the whole grown state with one pair of messages more each time."""
    messages = corpus.messages(2 * sizes.grow)
    with savegame.open(directory / "save.db") as vault:
        thread = vault.thread("main")
        _run(saves(thread, messages, sizes.grow + 1, sizes.grow + 5))
        return {"save": summarise(saves(thread, messages, sizes.grow + 6, sizes.grow + 5 + sizes.saves))}


def disk(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """The grown thread on disk before and after compact(), with every checkpoint loaded and compared after it."""
    path = directory / "grow.db"
    before = disk_bytes(path)
    with savegame.open(path) as vault:
        compacting = summary(timed([vault.compact]))
    after = disk_bytes(path)
    with savegame.open(path) as vault:
        thread = vault.thread("main")
        _verify(thread, [found.id for found in thread.history(newest_first=False)])
    return {
        "before_bytes": before,
        "after_bytes": after,
        "compact": compacting,
        "compacted_load": load(directory, sizes)["load"],
    }


def edits(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """What a save() of a whole state writes, keyframes apart, beside what was changed in the state."""
    cases: dict[str, tuple[Any, Callable[[Any, int], int]]] = {
        "file_replaced": (_files(sizes), _replace_file),
        "file_touched": (_files(sizes), _touch_file),
        "counter": ({"counter": 0, "data": _files(sizes, sizes.big_bytes)}, _count),
    }
    result = {}
    with savegame.open(directory / "edits.db") as vault:
        for name, (state, edit) in cases.items():
            result[name] = _edited(vault, vault.thread(name), state, edit, sizes.edits)
        folds = [
            _edited(vault, vault.thread(f"fold-{number}"), {"messages": corpus.messages(sizes.folded)}, _fold, 1)
            for number in range(5)
        ]
        result["folded"] = {key: statistics.fmean(fold[key] for fold in folds) for key in folds[0]}
    return result


def threads(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Saves per second of 64 threads at once, and of one alone, in turn."""
    return _rates(directory / "threads.db", sizes, sizes.alone)


def padded_threads(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """The same on a disk whose every flush takes 2 ms."""
    slow_disk = padded.PaddedVFS(PADDED_FLUSH_S)
    result = _rates(directory / "padded.db", sizes, sizes.alone // 5)
    assert slow_disk.flushes > 0, "the vault went round the padded VFS"
    return result


def memory(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Resident memory as 10,000 threads are saved to and loaded, with a cache of 16 MiB."""
    return _touched(directory / "memory.db", sizes, sizes.cache_bytes)


def memory_uncached(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """The same without a cache."""
    return _touched(directory / "uncached.db", sizes, 0)


TASKS = {
    task.__name__: task
    for task in (update, flat, grow, grow_save, load, older, history, save, step, resume, disk, edits, threads, padded_threads)
} | {"memory": memory, "memory_uncached": memory_uncached, "many": partial(many, "sqlite"), "pages": pages.sqlite, "work": work}


def _run(calls: Iterable[Call]) -> None:
    for call in calls:
        call()


def updates(thread: Any, pairs: Iterable[corpus.Pair]) -> Iterator[Call]:
    """Calls that append one step after the other."""
    for pair in pairs:
        yield partial(thread.update, append={"messages": pair})


def saves(thread: Any, messages: list[corpus.Message], first: int, last: int) -> Iterator[Call]:
    """Calls that save the whole state with one step more each."""
    for number in range(first, last + 1):
        messages += corpus.step(number)
        yield partial(thread.save, {"messages": messages})


def _grow(path: Path, sizes: Sizes, calls: Callable[[Any, int, int], Iterable[Call]]) -> dict[str, Any]:
    points, done = [], 0
    for mark in marks(sizes.grow):
        with savegame.open(path) as vault:
            samples = timed(calls(vault.thread("main"), done + 1, mark))
        points.append({"step": mark, "disk_bytes": disk_bytes(path), **summary(samples[-20:])})
        done = mark
    return {"points": points, "disk_bytes": disk_bytes(path)}


def _verify(thread: Any, ids: Sequence[str]) -> None:
    messages = corpus.messages(2 * len(ids))
    for number, id_ in enumerate(ids, 1):
        assert thread.load(id_).state == {"messages": messages[: 2 * number]}, f"checkpoint {number} differs"


def _row_bytes(vault: Any) -> int:
    sizes = vault.stats().sizes
    return int(sizes["frames"] + sizes["blobs"])


def _edited(vault: Any, thread: Any, state: Any, edit: Callable[[Any, int], int], times: int) -> dict[str, float]:
    thread.save(state)
    before, changed = _row_bytes(vault), 0
    for number in range(times):
        changed += edit(state, number)
        thread.save(state)
    return {"row_bytes": (_row_bytes(vault) - before) / times, "changed_bytes": changed / times}


def _files(sizes: Sizes, total: int | None = None) -> dict[str, Any]:
    count = sizes.files if total is None else total // sizes.file_bytes
    return {f"src/module_{number}.py": _file(number, sizes.file_bytes) for number in range(count)}


def _file(number: int, size: int) -> str:
    return corpus.text(Random(f"{corpus.SEED}:file:{number}"), size)


def _replace_file(state: dict[str, str], number: int) -> int:
    name = f"src/module_{number * 7 % len(state)}.py"
    state[name] = _file(100_000 + number, len(state[name]))
    return len(state[name])


def _touch_file(state: dict[str, str], number: int) -> int:
    name, at = f"src/module_{number * 7 % len(state)}.py", 500 + number
    new = corpus.text(Random(f"{corpus.SEED}:edit:{number}"), 60)
    state[name] = state[name][:at] + new + state[name][at + len(new) :]
    return len(new)


def _count(state: dict[str, Any], number: int) -> int:
    state["counter"] = 1000 + number
    return len(corpus.packed(state["counter"]))


def _fold(state: dict[str, list[corpus.Message]], number: int) -> int:
    summary_ = {"role": "system", "content": _file(200_000 + number, 1000)}
    state["messages"][: len(state["messages"]) // 2] = [summary_]
    return len(corpus.packed(summary_))


def _rates(path: Path, sizes: Sizes, alone: int) -> dict[str, Any]:
    with savegame.open(path) as vault:
        _run(updates(vault.thread("warm-up"), corpus.steps(1, alone, "warm-up")))
        lone = vault.thread("alone")
        many = [vault.thread(f"thread-{number}") for number in range(sizes.threads)]
        for thread in (lone, *many):  # to begin a thread is more than a save
            _run(updates(thread, corpus.steps(1, 1)))
        rates: list[tuple[float, float]] = []
        for burst in range(sizes.bursts):
            one = _rate([(lone, corpus.steps(1, alone, f"alone-{burst}"))])
            pairs = [corpus.steps(1, sizes.per_thread, f"{burst}-{number}") for number in range(sizes.threads)]
            rates.append((one, _rate(list(zip(many, pairs, strict=True)))))
    return {
        "alone_per_s": statistics.median(one for one, _ in rates),
        "together_per_s": statistics.median(all_ for _, all_ in rates),
        "ratio": statistics.median(all_ / one for one, all_ in rates),
    }


def _rate(work: list[tuple[Any, list[corpus.Pair]]]) -> float:
    ready = threading.Barrier(len(work) + 1)
    errors: list[BaseException] = []

    def worker(thread: Any, pairs: list[corpus.Pair]) -> None:
        ready.wait()
        try:
            _run(updates(thread, pairs))
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)

    workers = [threading.Thread(target=worker, args=item) for item in work]
    for thread in workers:
        thread.start()
    settle()
    ready.wait()
    start = time.perf_counter()
    for thread in workers:
        thread.join()
    seconds = time.perf_counter() - start
    if errors:
        raise errors[0]
    return sum(len(pairs) for _, pairs in work) / seconds


def _touched(path: Path, sizes: Sizes, cache_bytes: int) -> dict[str, Any]:
    with savegame.open(path, cache_bytes=cache_bytes) as vault:

        def touch(name: str) -> None:
            _run(updates(vault.thread(name), corpus.steps(1, 2, name)))
            assert len(vault.thread(name).state()["messages"]) == 4

        for number in range(50):
            touch(f"warm-up-{number}")
        settle()
        start, points = rss_bytes(), []
        for number in range(1, sizes.touched + 1):
            touch(f"thread-{number}")
            if number % (sizes.touched // 10) == 0:
                points.append({"threads": number, "growth_bytes": rss_bytes() - start})
        for number in range(1, sizes.touched + 1):
            vault.thread(f"thread-{number}").latest()
        points.append({"threads": sizes.touched, "growth_bytes": rss_bytes() - start})
        used = vault.stats().cache_bytes
    return {
        "cache_bytes": cache_bytes,
        "cache_used_bytes": used,
        "points": points,
        "growth_bytes": max(point["growth_bytes"] for point in points),
    }
