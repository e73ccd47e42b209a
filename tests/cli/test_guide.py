"""docs/guides/command-line.md is true: its commands run in order as one script, and print what it says (`...`: anything).

So are the commands of README.md, except the one that serves the page.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from commands import ENTRY, PLAIN

from savegame.errors import SavegameError

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "command-line.md"
README = GUIDE.parents[2] / "README.md"
MARK = "=== block ==="


def run_script(script: str, directory: Path) -> str:
    path = f"{ENTRY.parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-e", "-c", script]
    done = subprocess.run(command, cwd=directory, env=PLAIN | {"PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guide_runs(tmp_path: Path) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.MULTILINE | re.DOTALL)
    script = "".join(f"{commands}echo '{MARK}'\n" for commands, _ in blocks)
    printed = run_script(script, tmp_path).split(f"{MARK}\n")
    for (commands, expected), shown in zip(blocks, printed, strict=False):
        wanted = [re.escape(line).replace(r"\.\.\.", ".*").replace(r"\ ", " +") for line in expected.splitlines()]
        found = shown.splitlines()
        assert len(found) == len(wanted), (commands, shown)
        for line, pattern in zip(found, wanted, strict=True):
            assert re.fullmatch(f"{pattern} *", line), (commands, line)


def test_the_readme_runs_and_shows_the_tree_of_its_demo(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(savegame .*?)^```", text, re.MULTILINE | re.DOTALL)
    printed = run_script(re.sub(r"(?m)^savegame ui .*\n", "", "".join(blocks)), tmp_path)
    (drawn,) = re.findall(r"^```\n([^`]*●[^`]*)```", text, re.MULTILINE)
    lines = [line.rstrip() for line in printed.splitlines()]
    shown = [re.sub(r"[0-9a-f]{8}", "id", line.rstrip()) for line in drawn.splitlines()]
    assert [re.sub(r"[0-9a-f]{8}", "id", line) for line in lines[-len(shown) :]] == shown


def test_the_guide_lists_every_exit_code() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)}
    used, waiting = set(), [SavegameError]
    while waiting:
        error = waiting.pop()
        used.add(error.exit_code)
        waiting += error.__subclasses__()
    assert used | {0, 130} == listed
