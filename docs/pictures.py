"""Takes the pictures of the web page in docs/images/: `python docs/pictures.py`. Needs the extra dev, Chromium and Pillow.

The vault is made up, in memory, by a clock that starts three weeks ago.
"""

from __future__ import annotations

import random
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import savegame
from savegame.stores.memory import MemoryStore
from savegame.web import Server

IMAGES = Path(__file__).resolve().parent / "images"
DAY_US = 24 * 3600 * 10**6
WORK = {
    "battery-prices": ("research", "Prices of cells fell by 4 % since March.", "I found three sources that agree."),
    "parser-rewrite": ("coder", "The second test still fails on Windows.", "All tests pass now. Next is the index."),
    "nightly-report": ("research", "Collect the figures of yesterday.", "The report is written; two figures were missing."),
    "onboarding-ada": ("helper", "Which laptop does Ada get?", "It is ordered and comes on Monday."),
    "minutes-march": ("helper", "Summarise the minutes.", "Five decisions, two open questions."),
    "supplier-check": ("payer", "Compare the two offers.", "The second one is cheaper from 400 pieces on."),
    "trip-to-graz": ("helper", "Find a train on Thursday.", "There is one at 8:14 without a change."),
    "manual-german": ("writer", "Translate chapter 3.", "Done, with a list of the terms that I was not sure of."),
}


class Clock:
    """Microseconds that pass as quickly as the story needs."""

    def __init__(self) -> None:
        self.now = time.time_ns() // 1000 - 20 * DAY_US

    def __call__(self) -> int:
        """Now; a little later each time."""
        self.now += 1000
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass, but not into the future."""
        self.now = min(self.now + int(seconds * 1e6), time.time_ns() // 1000)


def story(clock: Clock) -> savegame.Vault:
    """A vault with conversations, a refund that was tried in three ways, and calls that need a person."""
    vault, chance = savegame.Vault(MemoryStore(clock)), random.Random(4)  # noqa: S311 - the same story each time
    for day in range(19):
        for name in chance.sample(sorted(WORK), chance.randint(2, 6)):
            _work(vault, name, chance, clock)
        clock.wait(82_000 + day)
    tools = _tools(clock)
    clock.now = time.time_ns() // 1000 - 3 * 3600 * 10**6
    _refund(vault, tools, clock)
    clock.now = time.time_ns() // 1000 - 40 * 60 * 10**6
    _run(vault, "invoice-7", tools, "Pay invoice 7.", "wire", {"iban": "DE02 1203 0000 0000 2020 51", "cents": 120_000})
    for text in ("Tell Ada that the parts are here.", ""):
        _run(vault, "letter-to-ada", tools, text, "mail", {"to": "ada@example.org", "text": "The parts are here."})
    return vault


def _work(vault: savegame.Vault, name: str, chance: random.Random, clock: Clock) -> None:
    agent, asked, answered = WORK[name]
    thread = vault.thread(name, agent=agent)
    for role, text in (("user", asked), ("assistant", answered)) * chance.randint(1, 3):
        said = {"messages": [{"role": role, "content": text}]}
        spent = {"tokens_used": chance.randint(300, 2400), "cost": chance.random() / 100} if role == "assistant" else {}
        last = role == "assistant" and chance.random() < 0.5
        clock.wait(chance.randint(5, 900))
        thread.update(
            append=said,
            set={"plan": {"goal": asked, "open": chance.randint(0, 4)}},
            kind="llm_response" if role == "assistant" else "manual",
            status="completed" if last else "in_progress",
            **spent,
        )
    if chance.random() < 0.2:
        thread.tag("head", chance.choice(["release", "reviewed"]))


def _tools(clock: Clock) -> savegame.Toolbox:
    tools = savegame.Toolbox()

    @tools.tool(read_only=True)
    def find_order(order: int) -> dict[str, Any]:
        clock.wait(1.4)
        return {"order": order, "cents": 4900, "state": "lost in transit", "carrier": "DHL"}

    @tools.tool(read_only=True)
    def ask_carrier(order: int) -> dict[str, Any]:
        clock.wait(3.1)
        return {"order": order, "last seen": "Graz", "days ago": 6}

    @tools.tool(idempotent=True)
    def refund(cents: int) -> dict[str, Any]:
        clock.wait(0.8)
        return {"refunded": cents}

    @tools.tool(ask=True)
    def wire(iban: str, cents: int) -> str:
        return "wired"

    @tools.tool
    def mail(to: str, text: str) -> str:
        raise KeyboardInterrupt

    return tools


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"{name}-1", "name": name, "arguments": arguments}


def _refund(vault: savegame.Vault, tools: savegame.Toolbox, clock: Clock) -> None:
    replies = [
        {"content": "Let me look that up.", "tool_calls": [_call("find_order", order=1017), _call("ask_carrier", order=1017)]},
        {"content": "It is lost. I am sending the money back.", "tool_calls": [_call("refund", cents=4900)]},
        {"content": "I have sent 49.00 back to your card. Sorry for the trouble!"},
    ]

    def llm(messages: list[dict[str, Any]]) -> dict[str, Any]:
        clock.wait(2.2)
        return {"role": "assistant", "tokens": 212, **replies[sum(message["role"] == "assistant" for message in messages)]}

    with vault.run("support-42", agent="helper", tools=tools) as run:
        run.user("My parcel 1017 never came. I want my money back.")
        while not run.done:
            run.tools()
            run.model(llm)
    thread = vault.thread("support-42")
    before = [point for point in thread.history() if point.kind == "tool_call"][1]
    thread.label(before, "before refund")
    thread.tag(before, "money")
    thread.rewind("before refund")
    clock.wait(1800)
    for role, text, label in (
        ("assistant", "A new parcel is on its way. It should be with you on Thursday.", "resend instead"),
        ("user", "Thursday is too late, the birthday is on Tuesday.", None),
        ("assistant", "I understand. Here is a voucher for express delivery, or the refund after all.", None),
    ):
        clock.wait(240)
        said: dict[str, Any] = {"role": role, "content": text}
        if "voucher" in text:
            file = {"attachment_type": "image", "name": "voucher.png", "mime_type": "image/png", "content": _picture()}
            said["attachments"] = [file]
        spent = {"tokens_used": 512, "cost": 0.0042, "kind": "llm_response"} if role == "assistant" else {}
        thread.update(append={"messages": [said]}, label=label, **spent)
    other = thread.fork("support-42-voucher", at="resend instead")
    other.update(append={"messages": [{"role": "assistant", "content": "May I offer you a voucher?"}]}, status="completed")


def _run(vault: savegame.Vault, name: str, tools: savegame.Toolbox, text: str, tool: str, arguments: dict[str, Any]) -> None:
    try:
        with vault.run(name, agent="payer" if tool == "wire" else "writer", tools=tools) as run:
            if text:
                run.user(text)
                run.model(lambda _: {"role": "assistant", "content": "", "tool_calls": [_call(tool, **arguments)]})
            run.tools()
    except (savegame.OutcomeError, KeyboardInterrupt):
        return


def _picture(width: int = 150, height: int = 84) -> bytes:
    """A small PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    bands = b"".join(bytes((90 + 15 * (8 * x // width), 110, 220)) for x in range(width))  # few colours, as in the rest
    rows = (b"\0" + bands) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def places(vault: savegame.Vault) -> dict[str, str]:
    """The pages, by the names of their pictures."""
    thread = vault.thread("support-42")
    before, resend = thread.load("before refund").id, thread.load("resend instead").id
    branch = next(point.id for point in thread.history(branches=True) if point.status == "completed")
    return {
        "threads": "threads",
        "search": "threads?q=parcel",
        "thread": "thread?id=support-42",
        "compare": f"thread?id=support-42&at={resend}&view=changes&with={branch}",
        "rewind": f"thread?id=support-42&at={before}&do=rewind",
        "state": f"thread?id=support-42&at={before}&view=state",
        "calls": "thread?id=support-42&view=calls",
        "runs": "runs",
        "store": "store",
    }


@contextmanager
def pages(server: Server) -> Iterator[dict[str, Page]]:
    """The page in three browsers: light, dark, and on a phone."""
    sizes = {"light": (1280, 800), "dark": (1280, 800), "phone": (390, 780)}
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        made = {}
        for name, (width, height) in sizes.items():
            scheme: Any = "dark" if name == "dark" else "light"
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
            page.goto(server.link())
            page.wait_for_url("**/threads")
            made[name] = page
        yield made
        browser.close()


def main() -> None:
    """Take every picture."""
    IMAGES.mkdir(exist_ok=True)
    with story(Clock()) as vault, Server(vault, name="agents.db") as server, pages(server) as made:
        for look, page in made.items():
            for name, place in places(vault).items():
                if look == "phone" and name not in ("threads", "thread", "runs"):
                    continue
                page.goto(f"http://{server.authority}/{server.keys.room}/{place}")
                page.wait_for_timeout(1500)
                path = IMAGES / f"{name}-{look}.png"
                with Image.open(BytesIO(page.screenshot())) as shot:  # few colours: a third of the size
                    shot.quantize(224, dither=Image.Dither.NONE).save(path, optimize=True)
                sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
