"""The lower bounds of pyproject.toml are true: with exactly those releases everything installs, and works.

An environment of its own gets this package as users get it, with every requirement at its bound; what those require in
turn comes as new as it is. It needs the package index.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REQUIRED = [Requirement(line) for line in (*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines))]
OTHERS = [requirement for requirement in REQUIRED if requirement.name != PROJECT["name"]]

SHORT = (
    "tests/project/test_public_names.py",
    "tests/encoding/test_frames.py",
    "tests/cli/test_rendering.py",
    "tests/cli/test_terminal.py::test_a_bar_for_people_only",
    "tests/cli/test_which_vault.py",
    "tests/mcp/test_mcp_docs.py",
    "tests/web/test_web_live.py",
    "tests/adapters/test_two_writers.py::test_two_processes_run_a_graph_on_one_thread",
)
"""Something of every room that a requirement is for, without PostgreSQL, which takes long to start."""

TOOLS = ("hypothesis", "pytest", "pytest-timeout")


def bound(requirement: Requirement) -> str:
    (lowest,) = (one.version for one in requirement.specifier if one.operator == ">=")
    return lowest


def test_every_requirement_has_one_lower_bound() -> None:
    bounds = {(requirement.name, bound(requirement)) for requirement in OTHERS}
    assert len(bounds) == len({name for name, _ in bounds}), "a package has two bounds"


def lowest(directory: Path, *wanted: str) -> dict[str, str]:
    """Install these at their bounds into an environment of their own: what to start its programs with."""
    pins, python = directory / "pins.txt", directory / "venv/bin/python"
    pins.write_text("".join(f"{requirement.name}=={bound(requirement)}\n" for requirement in OTHERS), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
    install = [*pip, "install", "--no-compile", "-c", pins]
    done = subprocess.run([*install, *wanted], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return environment


def passes(directory: Path, environment: dict[str, str], *arguments: str) -> None:
    command = [directory / "venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_lowest_releases_work(tmp_path: Path) -> None:
    extras = ",".join(EXTRAS.keys() - {"bench", "dev"})
    passes(tmp_path, lowest(tmp_path, f"{ROOT}[{extras}]", *TOOLS), *SHORT)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_the_lowest_releases_pass_everything(tmp_path: Path) -> None:
    environment = lowest(tmp_path, "--editable", f"{ROOT}[{','.join(EXTRAS)}]")  # the benchmark runs in a checkout only
    passes(tmp_path, environment, "--numprocesses=2", "--dist=worksteal", f"--ignore={__file__}")
