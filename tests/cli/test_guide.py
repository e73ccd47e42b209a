"""docs/guides/command-line.md is true: its commands run in order as one script, and print what it says (`...`: anything)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from commands import ENTRY, PLAIN

from savegame.errors import SavegameError

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "command-line.md"
MARK = "=== block ==="


def test_the_guide_runs(tmp_path: Path) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.MULTILINE | re.DOTALL)
    script = "".join(f"{commands}echo '{MARK}'\n" for commands, _ in blocks)
    path = f"{ENTRY.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=PLAIN | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{MARK}\n")
    for (commands, expected), shown in zip(blocks, printed, strict=False):
        wanted = [re.escape(line).replace(r"\.\.\.", ".*").replace(r"\ ", " +") for line in expected.splitlines()]
        found = shown.splitlines()
        assert len(found) == len(wanted), (commands, shown)
        for line, pattern in zip(found, wanted, strict=True):
            assert re.fullmatch(f"{pattern} *", line), (commands, line)


def test_the_guide_lists_every_exit_code() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)}
    used, waiting = set(), [SavegameError]
    while waiting:
        error = waiting.pop()
        used.add(error.exit_code)
        waiting += error.__subclasses__()
    assert used | {0, 130} == listed
