"""`savegame ui` and `savegame mcp` are started by the command; what they then do is tested in their own rooms."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from commands import ENTRY, PLAIN, run


def test_the_page_is_served_until_it_is_interrupted(on_disk: str) -> None:
    command = [ENTRY, "ui", "--no-open", "-s", on_disk]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=PLAIN) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        assert process.stderr.readline() == "Open this link, which works once. Ctrl-C stops.\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)


def test_a_browser_is_handed_a_link_of_its_own(on_disk: str, tmp_path: Path) -> None:
    browser, handed = tmp_path / "browser", tmp_path / "handed"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {handed}.new && mv {handed}.new {handed}\n')
    browser.chmod(0o700)
    command, environment = [ENTRY, "ui", "-s", on_disk], PLAIN | {"BROWSER": str(browser)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        printed = process.stdout.readline().strip()
        deadline = time.monotonic() + 60
        while not handed.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
    given = handed.read_text()
    assert given.partition("#")[0] == printed.partition("#")[0]
    assert given != printed, "the one that is printed still works for another browser"


def test_an_address_that_others_can_reach_is_refused(on_disk: str) -> None:
    done = run("ui", "--no-open", "--host", "0.0.0.0", "-s", on_disk)
    assert (done.code, done.out) == (2, "")
    assert "ssh -L" in done.err


def test_an_mcp_client_that_goes_away_ends_the_server(on_disk: str) -> None:
    done = run("mcp", "-s", on_disk)
    assert (done.code, done.out) == (0, "")
