"""`savegame ui` and `savegame mcp` are started by the command; what they then do is tested in their own rooms."""

from __future__ import annotations

import signal
import subprocess

from commands import ENTRY, PLAIN, run


def test_the_page_is_served_until_it_is_interrupted(on_disk: str) -> None:
    command = [ENTRY, "ui", "--no-open", "-s", on_disk]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=PLAIN) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)


def test_an_address_that_others_can_reach_is_refused(on_disk: str) -> None:
    done = run("ui", "--no-open", "--host", "0.0.0.0", "-s", on_disk)
    assert (done.code, done.out) == (2, "")
    assert "ssh -L" in done.err


def test_an_mcp_client_that_goes_away_ends_the_server(on_disk: str) -> None:
    done = run("mcp", "-s", on_disk)
    assert (done.code, done.out) == (0, "")
