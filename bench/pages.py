"""The web page over a large store: response time of each page, right after the start of `savegame ui` and later.

The store has 10,000 threads, some with tags, labels and tool calls, and one more with 10,000 checkpoints, a message each, and
branches. `savegame ui` runs in its own process, a new one for each cold figure. Times are to the end of the response over
HTTP and, if Chromium and Playwright are installed, to first-contentful-paint. Needs the extra web.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlencode

import savegame
from bench import corpus
from bench.sizes import Sizes

LONG = "the long one"
CHARS = 300
"""Of a message in the long thread: as large as a state may grow whose messages are still shown in the timeline."""

AGENTS, WRITERS, WARM = 20, 8, 5
BRANCH_EVERY, BRANCH = 400, 5
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAINTED = """() => new Promise(told => new PerformanceObserver(list => {
    const first = list.getEntriesByName("first-contentful-paint")[0]
    const answer = performance.getEntriesByType("navigation")[0].responseEnd
    if (first) told({answer_us: answer * 1000, paint_us: first.startTime * 1000})
}).observe({type: "paint", buffered: true}))"""

Took = dict[str, float]
Look = Callable[["Site", str], Took]
TOOLS = savegame.Toolbox()


@TOOLS.tool(read_only=True)
def look_up(query: str) -> str:
    """A call that is made at once."""
    return corpus.text(Random(query), CHARS)


@TOOLS.tool(ask=True)
def pay(query: str) -> str:
    """A call that waits for a person."""
    return "paid"


def sqlite(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Every page of a store on SQLite."""
    return pages(str(directory / "pages.db"), sizes)


def pages(address: str, sizes: Sizes) -> dict[str, Any]:
    """What each page takes, cold and warm, in microseconds, and how long it takes until lists are whole."""
    if find_spec("uvicorn") is None:
        return {"pages": {}}
    with savegame.open(address) as vault:
        _fill(vault, sizes.listed)
        asked = dict(islice(_pages(vault).items(), sizes.looked_at))
    found: dict[str, Took] = {}
    with _browser() as look:
        for name, path in asked.items():
            with _served(address) as site:
                found[name] = _named("cold", look(site, path))
        with _served(address) as site:
            whole, detailed = _read(site)
            for name, path in asked.items():
                known = [_known(site, path) for _ in range(WARM)]
                found[name] |= _named("warm", *(look(site, path) for _ in range(WARM))) | _named("known", *known)
    return {"pages": found, "whole_us": whole, "detailed_us": detailed}


def _named(prefix: str, *looks: Took) -> Took:
    return {f"{prefix}_{name}": statistics.median(took[name] for took in looks) for name in looks[0]}


# -- the store -----------------------------------------------------------------------------------------


def _fill(vault: savegame.Vault, count: int) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        long = pool.submit(_long, vault.thread(LONG, agent="agent-00"), count)
        for _ in pool.map(partial(_short, vault), range(count)):
            pass
        long.result()


def _short(vault: savegame.Vault, number: int) -> None:
    """One of many: every fifth was made by a run with a tool call, every hundredth waits for a person."""
    name, agent = f"thread-{number:05}", f"agent-{number % AGENTS:02}"
    if number % 5 == 0:
        _converse(vault, name, agent, "pay" if number % 100 == 0 else "look_up")
        return
    thread = vault.thread(name, agent=agent)
    for pair in corpus.steps(1, 1 + number % 3, name):
        thread.update(append={"messages": pair}, tokens_used=900, cost=0.002)
    if number % 10 == 1:
        thread.tag("head", f"tag-{number % 7}")
    if number % 20 == 2:
        thread.label("head", "before the change")


def _converse(vault: savegame.Vault, name: str, agent: str, tool: str) -> None:
    reply = {"role": "assistant", "content": "", "tool_calls": [{"id": "call", "name": tool, "arguments": {"query": name}}]}
    with suppress(savegame.OutcomeError), vault.run(name, agent=agent, tools=TOOLS) as run:
        run.user("Look that up, please.")
        while not run.done:
            run.tools()
            run.model(lambda messages: reply if messages[-1]["role"] == "user" else "That is all.")


def _long(thread: savegame.Thread, count: int) -> None:
    words = Random(f"{corpus.SEED}:{LONG}")
    for number in range(1, count + 1):
        said = {"role": ("user", "assistant")[number % 2], "content": corpus.text(words, CHARS)}
        thread.update(append={"messages": [said]}, tokens_used=900, cost=0.002)
        if number % BRANCH_EVERY == 0:
            thread.label("head", f"milestone {number}")
            thread.rewind(f"head~{BRANCH}")


def _pages(vault: savegame.Vault) -> dict[str, str]:
    """Every page, and every view of the long thread, by what people would call them."""
    points = [point.id for point in vault.thread(LONG).history(branches=True)]
    middle, oldest = points[len(points) // 2], points[-1]
    asked: dict[str, tuple[str, dict[str, str]]] = {
        "threads": ("threads", {}),
        "threads, searched": ("threads", {"q": "99"}),
        "threads, by tag": ("threads", {"tag": "tag-1"}),
        "threads, by size": ("threads", {"sort": "size"}),
        "runs": ("runs", {}),
        "store": ("store", {}),
        "short thread": ("thread", {"id": "thread-00001"}),
        "its tool calls": ("thread", {"id": "thread-00005", "view": "calls"}),
    }
    for view in ("conversation", "state", "changes", "metadata", "calls"):
        asked[f"long thread, {view}"] = ("thread", {"id": LONG, "view": view})
    asked |= {
        "… its middle": ("thread", {"id": LONG, "at": middle}),
        "… changes there": ("thread", {"id": LONG, "at": middle, "view": "changes"}),
        "… its beginning": ("thread", {"id": LONG, "at": oldest}),
        "… newest : oldest": ("thread", {"id": LONG, "view": "changes", "at": points[0], "with": oldest}),
        "… older timeline": ("thread", {"id": LONG, "before": middle}),
        "… before a rewind": ("thread", {"id": LONG, "at": middle, "do": "rewind"}),
    }
    return {name: path + (f"?{urlencode(query)}" if query else "") for name, (path, query) in asked.items()}


# -- the server ----------------------------------------------------------------------------------------


class Site(NamedTuple):
    """A server that was just started, and a session on it."""

    authority: str
    room: str
    cookie: str


@contextmanager
def _served(address: str) -> Iterator[Site]:
    """`savegame ui` in a process of its own, until the end of the `with`."""
    command, told = [sys.executable, "-m", "savegame", "ui", "--no-open"], {"SAVEGAME_STORE": address, "COLUMNS": "500"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **told}) as process:
        try:
            assert process.stdout is not None
            links = (re.search(r"http://(\S+)/#(\S+)", line) for line in process.stdout)
            authority, secret = next(link for link in links if link).groups()
            yield _opened(authority, secret)
        finally:
            process.terminate()


def _opened(authority: str, secret: str) -> Site:
    headers = {"Origin": f"http://{authority}", "Content-Type": "application/x-www-form-urlencoded"}
    status, told, body = _asked(authority, "/open", headers, urlencode({"secret": secret}))
    assert status == 200, body
    return Site(authority, body.decode().rpartition("/")[0], told["set-cookie"].partition(";")[0])


def _asked(authority: str, path: str, headers: dict[str, str], form: str | None = None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(authority, timeout=60)
    connection.request("GET" if form is None else "POST", path, form, headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def _get(site: Site, path: str, known: str = "") -> tuple[int, dict[str, str], bytes]:
    headers = {"Cookie": site.cookie} | ({"If-None-Match": known} if known else {})
    status, told, body = _asked(site.authority, f"{site.room}/{path}", headers)
    assert status in (200, 304), body
    return status, told, body


def _answer(site: Site, path: str, known: str = "") -> Took:
    began = time.perf_counter()
    _get(site, path, known)
    return {"answer_us": (time.perf_counter() - began) * 1e6}


def _known(site: Site, path: str) -> Took:
    """What asking again for a page takes that the browser has already, as live pages do every other second."""
    return _answer(site, path, _get(site, path)[1].get("etag", ""))


def _read(site: Site) -> tuple[float, float]:
    """How long after the first look the list of threads is whole, and how long until tags and calls are known, too."""
    began, whole = time.perf_counter(), 0.0
    while True:
        page = _get(site, "threads")[2]
        whole = whole or (0.0 if b" so far" in page else time.perf_counter() - began)
        if whole and b"still being read" not in page:
            return whole * 1e6, (time.perf_counter() - began) * 1e6
        time.sleep(0.05)


@contextmanager
def _browser() -> Iterator[Look]:
    """What looks at a page: in Chromium, or where that is not installed, over HTTP."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        found = None
    if found is None:
        yield _answer
        return
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found, args=options)
        yield partial(_paint, browser)
        browser.close()


def _paint(browser: Any, site: Site, path: str) -> Took:
    name, _, value = site.cookie.partition("=")
    context = browser.new_context()
    context.add_cookies([{"name": name, "value": value, "url": f"http://{site.authority}{site.room}/"}])
    page = context.new_page()
    page.goto(f"http://{site.authority}{site.room}/{path}")
    took: Took = page.evaluate(PAINTED)
    context.close()
    return took
