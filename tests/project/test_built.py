"""What is built is whole: a wheel made of the sdist, in an environment of its own, has everything that the package needs.

It needs the package index. Beside mypy, pyright reads a program that uses the public names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTEST_ADDOPTS"}}

SAVE = """
import savegame
with savegame.open("vault.db") as vault:
    vault.thread("t").save({"n": 1})
    assert vault.verify().ok
    print(vault.thread("t").state())
"""


def done(directory: Path, *command: str | Path) -> str:
    ended = subprocess.run(command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout[-5_000:] + ended.stderr[-5_000:]
    return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, the wheel that was built of it, and an environment that has that wheel and `web`."""
    home = tmp_path_factory.mktemp("built")
    done(home, sys.executable, "-m", "build", "--outdir", home, ROOT)
    (wheel,) = home.glob("*.whl")
    done(home, sys.executable, "-m", "venv", "--without-pip", "venv")
    pip = [sys.executable, "-m", "pip", "--python", "venv/bin/python", "--quiet", "--disable-pip-version-check"]
    done(home, *pip, "install", "--no-compile", f"{wheel}[web,postgres,mcp]")
    return home


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_and_sdist_have_every_file(built: Path) -> None:
    package = ROOT / "src"
    wanted = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert "savegame/py.typed" in wanted
    with ZipFile(next(built.glob("*.whl"))) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == wanted
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in wanted} | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not any(name.startswith((".venv", ".git/")) for name in names)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_installed_package_saves_and_plays_the_demo(built: Path) -> None:
    assert done(built, "venv/bin/python", "-W", "error", "-c", SAVE) == "{'n': 1}\n"
    assert done(built, "venv/bin/savegame", "demo")


@pytest.mark.slow
def test_pyright_finds_nothing_in_a_program_that_uses_the_public_names() -> None:
    command = [Path(sys.executable).with_name("basedpyright"), "--pythonpath", sys.executable, "--outputjson"]
    use = Path(__file__).with_name("typed_use.py")
    ended = subprocess.run([*command, use], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    report = json.loads(ended.stdout)
    assert [(found["range"]["start"]["line"] + 1, found["message"]) for found in report["generalDiagnostics"]] == []
    assert report["summary"]["filesAnalyzed"] == 1
