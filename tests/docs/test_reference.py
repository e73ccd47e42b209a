"""docs/reference is written from the code by docs/generate.py; these fail when it lags behind."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", REFERENCE.parent / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["errors.md", "api.md", "cli.md"])
def test_it_is_as_the_code_says(name: str) -> None:
    written = (REFERENCE / name).read_text(encoding="utf-8")
    assert written == generator().pages()[name], f"{name} lags behind: run python docs/generate.py"


def test_hidden_options_are_left_out() -> None:
    root = (REFERENCE / "cli.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert "`--version`" in root
    assert "`--store" not in root, "it is only there to say where it goes"


def test_every_command_that_help_lists_is_there() -> None:
    command = [sys.executable, "-m", "savegame", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    commands = re.findall(r"^│ (\w+) ", shown, re.MULTILINE)
    assert commands, "no commands found: has the help changed its looks?"
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    for name in commands:
        assert f"## savegame {name}\n" in page, name
