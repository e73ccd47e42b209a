"""The page of examples/chat_service.py in a real browser."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from browsing import chromium
from playwright.sync_api import Error, expect

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "chat_service.py"


def test_the_page_of_a_chat_shows_a_reply_in_a_browser(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(EXAMPLE), "serve", "--port", str(port)]
    with chromium() as browser, subprocess.Popen(command, cwd=tmp_path) as worker:
        try:
            page = browser.new_page()
            for _ in range(200):
                try:
                    page.goto(f"http://127.0.0.1:{port}/#visit")
                    break
                except Error:
                    time.sleep(0.1)
            page.fill("#text", "Hello <b>you</b>")
            page.click("text=Send")
            expect(page.locator("p.assistant")).to_have_text("You said: Hello <b>you</b> ")
            expect(page.locator("#status")).to_have_text("completed")
            page.close()
        finally:
            worker.kill()
