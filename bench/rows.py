"""From measurements to rows of the table: figures, ratio, limit, kept or missed. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.rounds import Results

QUICK_FLUSH_US = 150
MEMORY_SLACK = 1.5


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what, savegame's figure, the other's, their ratio with its spread over the rounds, and the limit."""

    key: str
    what: str
    ours: str
    other: str = ""
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    limit: str = ""
    ok: bool | None = None


def rows(results: Results) -> list[Row]:
    """All rows whose contestants took part."""
    makers: tuple[Callable[[Results], list[Row]], ...] = (
        _update, _flat, _save, _load, _older, _history, _runs, _disk, _edits, _threads, _memory, _many, _work, _savers,
        _postgres, _pages,
    )  # fmt: skip
    return [row for maker in makers for row in maker(results)]


def paired(ours: Sequence[float], others: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median over the rounds of the one divided by the other, and the smallest and largest."""
    ratios = [mine / other for mine, other in zip(ours, others, strict=False)]
    return statistics.median(ratios), (min(ratios), max(ratios))


def time_text(us: float) -> str:
    """Microseconds for people."""
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.2f} ms" if us < 100_000 else f"{us / 1000:.0f} ms"


def size_text(count: float) -> str:
    """Bytes for people."""
    return f"{count:.0f} B" if count < 10_000 else f"{count / 1000:.1f} kB" if count < 1e6 else f"{count / 1e6:.2f} MB"


def _update(results: Results) -> list[Row]:
    ours, floor = results.get("savegame", "update"), results.get("floor", "update")
    if not ours or not floor:
        return []
    found = []
    flush = _median(floor, "flush", "median_us")
    for key, what in (("median_us", "median"), ("p99_us", "p99")):
        mine, bare = _median(ours, "update", key), _median(floor, "update", key)
        ratio, spread = _ratio(ours, floor, "update", "update", key)
        limit, ok = "≤ 3 x floor", ratio <= 3
        if key == "median_us":
            limit, ok = "≤ 1.7 x floor", ratio <= 1.7
            if flush < QUICK_FLUSH_US:
                more = statistics.median(a["update"][key] - b["update"][key] for a, b in zip(ours, floor, strict=False))
                limit, ok = f"≤ 1.7 x floor or floor + 100 µs: + {more:.0f} (flush {flush:.0f} µs)", ok or more <= 100
        name = f"update() at step 1,000, {what}"
        found.append(Row(f"update_{key[:-3]}", name, time_text(mine), f"floor {time_text(bare)}", ratio, spread, limit, ok))
    worst, bare = _median(ours, "update_from_1", "max_us"), _median(floor, "update_from_1", "max_us")
    ratio, spread = _ratio(ours, floor, "update_from_1", "update_from_1", "max_us")
    kept, in_all = size_text(ours[0]["keyframe_bytes"]), size_text(ours[0]["keyframe_bytes_from_1"])
    what = f"… the worst since step 1 (keyframes {in_all}, of these {kept} in the window above)"
    found.append(Row("update_worst", what, time_text(worst), f"floor {time_text(bare)}", ratio, spread))
    return found


def _flat(results: Results) -> list[Row]:
    ours = results.get("savegame", "flat")
    if not ours:
        return []
    ratio, spread = _ratio(ours, ours, "far", "near", "median_us")
    far, near = (time_text(_median(ours, name, "median_us")) for name in ("far", "near"))
    return [
        Row("flat", "update() at step 10,000 : step 100", far, f"step 100 {near}", ratio, spread, "≤ 1.25 x", ratio <= 1.25)
    ]


def _save(results: Results) -> list[Row]:
    return _against(results, "save", "save", "save(whole state), 2,000 messages", faster=6)


def _load(results: Results) -> list[Row]:
    rows_ = _against(results, "load", "load", "load latest, 2,000 messages, cold", at_most=1.5)
    return rows_ + _against(results, "load", "open_load", "… with opening counted in")


def _older(results: Results) -> list[Row]:
    ours = results.get("savegame", "older")
    if not ours:
        return []
    latest = [entry["latest"]["median_us"] for entry in ours]
    other = f"latest {time_text(statistics.median(latest))}"
    found = []
    for key, what in (("worst_us", "the worst"), ("median_us", "the median")):
        ratio, spread = paired([entry[key] for entry in ours], latest)
        text = time_text(statistics.median(entry[key] for entry in ours))
        if key == "worst_us":
            text += f" (step {ours[0]['worst_step']})"
        limit, ok = ("≤ 2 x", ratio <= 2) if key == "worst_us" else ("", None)
        found.append(Row(f"older_{key[:-3]}", f"load of any of 1,000 older, {what}", text, other, ratio, spread, limit, ok))
    return found


def _history(results: Results) -> list[Row]:
    return _against(results, "history", "history", "history(limit=50)", faster=100)


def _runs(results: Results) -> list[Row]:
    """A step of a run beside the floor and beside DBOS; resuming a run beside loading its state."""
    found = [
        *_step(results, "floor", "floor", at_most=2.5),
        *_step(results, "dbos", "DBOS", faster=4),
        *_step(results, "dbos_wal", "DBOS in WAL mode"),
    ]
    ours = results.get("savegame", "resume")
    names = {
        "resume": "resuming a run of 2,000 messages to its first model call",
        "resume_open": "… with a tool call left open",
    }
    for key, what in names.items() if ours else ():
        ratio, spread = _ratio(ours, ours, key, "load", "median_us")
        mine, other = (time_text(_median(ours, name, "median_us")) for name in (key, "load"))
        found.append(Row(key, what, mine, f"latest {other}", ratio, spread, "≤ 3 x", ratio <= 3))
    return found


def _step(
    results: Results, contestant: str, name: str, *, faster: float | None = None, at_most: float | None = None
) -> list[Row]:
    """The median, which the limit is about, and p99: in times of the other's, or times faster than DBOS."""
    ours, theirs = results.get("savegame", "step"), results.get(contestant, "step")
    found = []
    for key, part in (("median_us", "median"), ("p99_us", "p99")) if ours and theirs else ():
        mine, other = (time_text(_median(entries, "step", key)) for entries in (ours, theirs))
        ratio, spread = _ratio(*((ours, theirs) if contestant == "floor" else (theirs, ours)), "step", "step", key)
        limit, ok = "", None
        if key == "median_us" and at_most:
            limit, ok = f"≤ {at_most:g} x {name}", ratio <= at_most
        elif key == "median_us" and faster:
            limit, ok = f"≥ {faster:g} x faster", ratio >= faster
        what = f"run.step() of 2 KB, {part}"
        found.append(Row(f"step_{contestant}_{key[:-3]}", what, mine, f"{name} {other}", ratio, spread, limit, ok))
    return found


def _disk(results: Results) -> list[Row]:
    grown, disks, theirs = (results.get(*key) for key in (("savegame", "grow"), ("savegame", "disk"), ("sqlitesaver", "grow")))
    found = []
    if grown:
        content = grown[0]["content_bytes"]
        entries = [("disk", "disk for 1,000 steps", statistics.median(entry["disk_bytes"] for entry in grown), 1.5)]
        if disks:
            compacted = statistics.median(entry["after_bytes"] for entry in disks)
            entries.append(("disk_compacted", "… after compact()", compacted, 0.8))
        for key, what, size, most in entries:
            text = f"content {size_text(content)}"
            found.append(Row(key, what, size_text(size), text, size / content, None, f"≤ {most} x", size / content <= most))
    if theirs:
        size, content = theirs[0]["disk_bytes"], theirs[0]["content_bytes"]
        other = f"SqliteSaver {size_text(size)}"
        found.append(Row("disk_sqlitesaver", "… SqliteSaver, to compare", "", other, size / content))
    return found


def _edits(results: Results) -> list[Row]:
    ours = results.get("savegame", "edits")
    names = {
        "file_replaced": "row bytes: one of 200 files of 5 KB replaced",
        "file_touched": "… 60 characters inside one of them edited",
        "folded": "… first half of 400 messages → summary",
        "counter": "… one counter in a 5 MB state",
    }
    found = []
    for key, what in names.items() if ours else ():
        wrote, changed = ours[0][key]["row_bytes"], ours[0][key]["changed_bytes"]
        most = 1.5 * changed + 1024
        limit = f"≤ 1.5 x changed + 1 KB = {size_text(most)}"
        other = f"changed {size_text(changed)}"
        found.append(Row(f"edit_{key}", what, size_text(wrote), other, wrote / changed, None, limit, wrote <= most))
    return found


def _threads(results: Results) -> list[Row]:
    found = []
    tasks = (
        ("savegame", "threads", "64 threads saving at once", 2),
        ("savegame", "padded_threads", "… with the flush padded to 2 ms", 5),
        ("pg_savegame", "pg_at_once", "PostgreSQL: 64 tasks saving at once", 2),
    )
    for name, key, what, least in tasks:
        ours = results.get(name, key)
        if ours:
            ratios = [entry["ratio"] for entry in ours]
            ratio, spread = statistics.median(ratios), (min(ratios), max(ratios))
            together, alone = (statistics.median(entry[rate] for entry in ours) for rate in ("together_per_s", "alone_per_s"))
            other = f"one alone {alone:,.0f}/s"
            found.append(Row(key, what, f"{together:,.0f}/s", other, ratio, spread, f"≥ {least} x", ratio >= least))
    return found


def _memory(results: Results) -> list[Row]:
    found = []
    for key, what in (
        ("memory", "memory growth, 10,000 threads touched"),
        ("memory_uncached", "… without a cache, to compare"),
    ):
        for entry in results.get("savegame", key):
            growth, cache = entry["growth_bytes"], entry["cache_bytes"]
            used, half = size_text(entry["cache_used_bytes"]), size_text(entry["points"][4]["growth_bytes"])
            other = f"cache {size_text(cache)} (says {used}), half way {half}"
            most = MEMORY_SLACK * cache
            limit, ok = (f"≤ {MEMORY_SLACK} x the cache", growth <= most) if cache else ("", None)
            found.append(Row(key, what, size_text(growth), other, growth / cache if cache else None, None, limit, ok))
    return found


def _many(results: Results) -> list[Row]:
    """The same work with ten times as many conversations, on both stores."""
    found: list[Row] = []
    verbs = {
        "list": "conversations(agent), 100 each",
        "add_message": "add_message",
        "search": "search after a message was added",
        "checkpoint_agent": "checkpoint_agent",
    }
    for name, store in (("savegame", "SQLite"), ("savegame_file", "file")):
        for entry in results.get(name, "many"):
            for key, what in verbs.items():
                all_us, few_us = (entry[f"{size}_{key}"]["median_us"] for size in ("many", "few"))
                other = f"with a tenth of them {time_text(few_us)}"
                text = f"10,000 conversations, {store}: {what}"
                found.append(Row(f"many_{store.lower()}_{key}", text, time_text(all_us), other, all_us / few_us))
    return found


def _work(results: Results) -> list[Row]:
    """A supervisor's look for work with 100 idle threads, and with very many."""
    found: list[Row] = []
    for entry in results.get("savegame", "work"):
        for key, what in (("look", "look for work"), ("find", "look for mail and sleeps alone")):
            many_us, few_us = (entry[f"{size}_{key}"]["median_us"] for size in ("many", "few"))
            text = f"100,000 idle threads: {what}"
            found.append(Row(f"work_{key}", text, time_text(many_us), f"with 100 {time_text(few_us)}", many_us / few_us))
    return found


def _savers(results: Results) -> list[Row]:
    """SavegameSaver against the stock SqliteSaver, alone and in a chat, and there against its DeltaChannel too."""
    found: list[Row] = []
    for task, what, least in (("saver_dicts", "plain dicts", 5), ("saver_messages", "LangChain messages", 3)):
        found += _faster(results, task, "put", f"LangGraph: put at step 1,000, {what}", least)
    found += _faster(results, "saver_messages", "get_tuple", "LangGraph: get_tuple, 2,000 LangChain messages", 1)
    found += _faster(results, "chat", "history", "LangGraph: get_state_history(limit=50) at turn 1,000", 3)
    found += _short_chats(results)
    ours, stock, delta = (results.get(name, "chat") for name in ("saver_savegame", "saver_sqlite", "saver_delta"))
    if not ours or not stock or not delta:
        return found
    turns = {name: entries[0]["turn"]["median_us"] for name, entries in (("SqliteSaver", stock), ("DeltaChannel", delta))}
    mine, other = ours[0]["turn"]["median_us"], min(turns.values())
    text = ", ".join(f"{name} {time_text(us)}" for name, us in turns.items())
    what = "LangGraph: one turn at turn 1,000"
    found.append(Row("chat_turn", what, time_text(mine), text, mine / other, None, "no slower than either", mine <= other))
    size, theirs, smaller = (entries[0]["disk_bytes"] for entries in (ours, stock, delta))
    ratio, text = theirs / size, f"SqliteSaver {size_text(theirs)}, DeltaChannel {size_text(smaller)}"
    limit, ok = "≥ 300 x smaller than SqliteSaver, smaller than DeltaChannel", ratio >= 300 and size < smaller
    found.append(Row("chat_disk", "LangGraph: disk after 1,000 turns", size_text(size), text, ratio, None, limit, ok))
    return found


def _short_chats(results: Results) -> list[Row]:
    """What a turn costs above one with InMemorySaver, which stores nothing, beside what it costs with SqliteSaver."""
    ours, stock, memory = (results.get(name, "short_chats") for name in ("saver_savegame", "saver_sqlite", "saver_memory"))
    found: list[Row] = []
    for what, turns in (("short", 20), ("middle", 100)) if ours and stock and memory else ():
        mine_above, theirs_above = (_above(entries, memory, what) for entries in (ours, stock))
        ratio, spread = paired(mine_above, theirs_above)
        mine, theirs, none = (time_text(_median(entries, what, "median_us")) for entries in (ours, stock, memory))
        other = f"SqliteSaver {theirs}, InMemorySaver {none}"
        text, limit = f"LangGraph: a turn in chats of {turns}", "≤ 1 x SqliteSaver, above InMemorySaver"
        found.append(Row(f"chat_{turns}", text, mine, other, ratio, spread, limit, ratio <= 1))
    return found


def _above(entries: list[dict[str, Any]], least: list[dict[str, Any]], what: str) -> list[float]:
    pairs = zip(entries, least, strict=True)
    return [entry[what]["median_us"] - base[what]["median_us"] for entry, base in pairs]


def _postgres(results: Results) -> list[Row]:
    """On one local server: update() beside a bare fenced INSERT, save() and size beside PostgresSaver."""
    found: list[Row] = []
    ours, floor = results.get("pg_savegame", "pg_update"), results.get("pg_floor", "pg_update")
    if ours and floor:
        ratio, spread = _ratio(ours, floor, "update", "update", "median_us")
        mine, other = (time_text(_median(entries, "update", "median_us")) for entries in (ours, floor))
        what = "PostgreSQL: update() at step 1,000, median"
        found.append(Row("pg_update", what, mine, f"floor {other}", ratio, spread, "≤ 1.8 x floor", ratio <= 1.8))
    ours, theirs = results.get("pg_savegame", "pg_save"), results.get("pg_saver", "pg_save")
    if ours and theirs:
        ratio, spread = _ratio(theirs, ours, "save", "save", "median_us")
        mine, other = (time_text(_median(entries, "save", "median_us")) for entries in (ours, theirs))
        what = "PostgreSQL: save(whole state), 2,000 messages"
        found.append(Row("pg_save", what, mine, f"PostgresSaver {other}", ratio, spread, "≥ 15 x faster", ratio >= 15))
    for entry in results.get("pg_savegame", "pg_size"):
        size, content = entry["bytes"], entry["content_bytes"]
        theirs = results.get("pg_saver", "pg_size")
        other = f"content {size_text(content)}" + (f", PostgresSaver {size_text(theirs[0]['bytes'])}" if theirs else "")
        ok = size / content <= 1.5
        found.append(Row("pg_size", "PostgreSQL: 1,000 steps", size_text(size), other, size / content, None, "≤ 1.5 x", ok))
    return found


def _pages(results: Results) -> list[Row]:
    """Each page of the web page: its first paint right after the start, or where no browser is, its answer."""
    found: list[Row] = []
    for name, store in (("savegame", "SQLite"), ("pg_savegame", "PostgreSQL")):
        for entry in [taken for taken in results.get(name, "pages") if taken["pages"]]:
            rows_ = [_page(store, page, took) for page, took in entry["pages"].items()]
            whole, detailed = (time_text(entry[key]) for key in ("whole_us", "detailed_us"))
            text = f"tags and calls too: {detailed}"
            worst = max(rows_, key=lambda row: row.ratio or 0.0)
            rows_.append(replace(worst, key=f"pages_{store}_worst", what=f"… the worst of these: {worst.what}"))
            found += [*rows_, Row(f"pages_{store}_whole", f"page, {store}: list of 10,000 threads is whole", whole, text)]
    return found


def _page(store: str, page: str, took: dict[str, float]) -> Row:
    kind = "paint" if "cold_paint_us" in took else "answer"
    cold = took[f"cold_{kind}_us"]
    others = {
        "answer": "cold_answer_us",
        "warm": f"warm_{kind}_us",
        "its answer": "warm_answer_us",
        "unchanged": "known_answer_us",
    }
    text = ", ".join(f"{what} {time_text(took[key])}" for what, key in others.items())
    return Row(f"pages_{store}_{page}", f"page, {store}: {page}", time_text(cold), text, cold / 1e6, None, "< 1 s", cold < 1e6)


def _faster(results: Results, task: str, name: str, what: str, least: float) -> list[Row]:
    ours, theirs = results.get("saver_savegame", task), results.get("saver_sqlite", task)
    if not ours or not theirs:
        return []
    ratio, spread = _ratio(theirs, ours, name, name, "median_us")
    mine, other = (time_text(_median(entries, name, "median_us")) for entries in (ours, theirs))
    return [Row(f"{task}_{name}", what, mine, f"SqliteSaver {other}", ratio, spread, f"≥ {least} x faster", ratio >= least)]


def _against(
    results: Results, task: str, name: str, what: str, *, faster: float | None = None, at_most: float | None = None
) -> list[Row]:
    """A row against SqliteSaver: at least that many times faster, or at most that many times its time."""
    ours, theirs = results.get("savegame", task), results.get("sqlitesaver", task)
    if not ours:
        return []
    mine = time_text(_median(ours, name, "median_us"))
    if not theirs:
        return [Row(name, what, mine)]
    other = f"SqliteSaver {time_text(_median(theirs, name, 'median_us'))}"
    if faster:
        ratio, spread = _ratio(theirs, ours, name, name, "median_us")
        return [Row(name, what, mine, other, ratio, spread, f"≥ {faster:g} x faster", ratio >= faster)]
    ratio, spread = _ratio(ours, theirs, name, name, "median_us")
    limit, ok = (f"≤ {at_most} x", ratio <= at_most) if at_most else ("", None)
    return [Row(name, what, mine, other, ratio, spread, limit, ok)]


def _median(entries: list[dict[str, Any]], name: str, key: str) -> float:
    return float(statistics.median(entry[name][key] for entry in entries))


def _ratio(
    ours: list[dict[str, Any]], others: list[dict[str, Any]], mine: str, other: str, key: str
) -> tuple[float, tuple[float, float]]:
    return paired([entry[mine][key] for entry in ours], [entry[other][key] for entry in others])
