"""What is written about the server is true: the guide's table, and the agent of the examples."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import savegame
from savegame.mcp.tools import HINTS

ROOT = Path(__file__).resolve().parents[2]


def test_the_guide_lists_every_tool_and_what_it_may_do() -> None:
    guide = (ROOT / "docs" / "guides" / "mcp.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\w+) \|$", guide, re.MULTILINE)
    known = {(True, False): "reads", (False, False): "adds", (False, True): "destroys"}
    assert rows == [(name, known[hints.reads, hints.destroys]) for name, hints in HINTS.items()]


def test_the_agent_of_the_examples_saves_and_rewinds_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "mcp_agent.py"), "kept.db"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "In the end the agent has spent 74" in done.stdout
    with savegame.open(tmp_path / "kept.db") as vault:
        talk = vault.load_conversation("trip")
        assert talk is not None
        assert [message.content for message in talk.messages][1:] == ["Booked the direct flight at noon."]
        assert "two changes" in vault.thread("trip").state("rejected")["messages"][1]["content"]
        agent = vault.load_agent("planner")
        assert agent is not None
        assert agent.custom_state == {"spent": 74}
