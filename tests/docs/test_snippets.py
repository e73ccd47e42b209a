"""The documentation is true: its snippets run, its links lead somewhere, its names are the public ones.

A page's ```python blocks run in order as one script in an empty directory. If a ```text block follows directly, it is
what the block prints; `...` in it stands for anything.
"""

from __future__ import annotations

import inspect
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import savegame
from savegame import errors

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TOP = [path for path in sorted(ROOT.glob("*.md")) if path.name != "LICENSE.md"]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MARK = "\0block"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Block(NamedTuple):
    info: str
    line: int
    """Of its opening fence, from 1."""
    code: list[str]
    end: int


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    opened: tuple[str, str, int] | None = None
    code: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"(`{3,})(.*)$", line)
        if opened is None and fence:
            opened, code = (fence[1], fence[2].strip(), number), []
        elif opened is not None and line.strip() == opened[0]:
            yield Block(opened[1], opened[2], code, number)
            opened = None
        elif opened is not None:
            code.append(line)
    assert opened is None, f"{name_of(path)}: the block of line {opened[2]} is not closed"


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for block in blocks(path):
        lines[block.line - 1 : block.end] = [""] * (block.end - block.line + 1)
    return "\n".join(lines)


# -- snippets --------------------------------------------------------------------------------------


@pytest.mark.requirement("Z21", "Z64")
@pytest.mark.parametrize("path", [*TOP, *PAGES], ids=name_of)
def test_snippets_run(path: Path, tmp_path: Path) -> None:
    found = list(blocks(path))
    odd = [block.info for block in found if block.info.startswith("python") and block.info != "python"]
    assert not odd, f"{name_of(path)}: a snippet that does not run is not allowed: {odd}"
    if not any(block.info == "python" for block in found):
        return
    done = run_script(script_of(path, found), tmp_path, name_of(path))
    printed = {int(part.split("\n", 1)[0]): part.split("\n", 1)[1] for part in done.split(MARK)[1:]}
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.info == "python" and after is not None and after.info == "text" and follows(path, block, after):
            check_output(f"{name_of(path)}:{block.line}", printed[block.line], after.code)


@pytest.mark.parametrize("path", [ROOT / "README.md", DOCS / "quickstart.md"], ids=name_of)
def test_first_steps_can_be_taken_twice(path: Path, tmp_path: Path) -> None:
    """As a newcomer does, in the same directory."""
    script = script_of(path, list(blocks(path)))
    run_script(script, tmp_path, name_of(path))
    run_script(script, tmp_path, name_of(path))


def script_of(path: Path, found: list[Block]) -> str:
    """The page as a script whose line numbers are those of the page."""
    lines = [""] * len(path.read_text(encoding="utf-8").splitlines())
    for block in found:
        if block.info == "python":
            lines[block.line - 1] = f"print({f'{MARK}{block.line}'!r})"
            lines[block.line : block.end - 1] = block.code
    return "\n".join(lines)


def run_script(script: str, directory: Path, name: str) -> str:
    place = directory / "page.py"
    place.write_text(script, encoding="utf-8")
    work = directory / "work"
    work.mkdir(exist_ok=True)
    command = [sys.executable, "-W", "error", "-X", "utf8", "-u", str(place)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{name}: a snippet failed (line numbers are those of the page)\n{done.stderr}"
    return done.stdout


def follows(path: Path, block: Block, after: Block) -> bool:
    between = path.read_text(encoding="utf-8").splitlines()[block.end : after.line - 1]
    return not "".join(between).strip()


def check_output(place: str, printed: str, expected: list[str]) -> None:
    wanted = "\n".join(line.rstrip() for line in expected).strip()
    found = "\n".join(line.rstrip() for line in printed.splitlines()).strip()
    pattern = ".*?".join(map(re.escape, wanted.split("...")))
    assert re.fullmatch(pattern, found, re.DOTALL), f"{place} prints\n{found}\nbut the page says\n{wanted}"


# -- examples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example shows what it does"


@pytest.mark.requirement("C25")
def test_the_own_loop_carries_on_after_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(ROOT / "examples" / "own_loop.py"), "--pause", "30"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        first = agent.stdout.readline()
        agent.send_signal(signal.SIGKILL)
        assert agent.wait(30) == -signal.SIGKILL
    again = subprocess.run(
        [*command[:-1], "0"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    assert first.startswith("step 1")
    assert again[0].startswith("carrying on after step 1")
    assert again[1].startswith("step 2")


# -- links and names -------------------------------------------------------------------------------


def links(path: Path) -> Iterator[tuple[str, str]]:
    """The relative links of a page, as (file, anchor)."""
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            yield target.partition("#")[::2]


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*TOP, *PAGES], ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for file, anchor in links(path):
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{name_of(path)}: the link to {file} leads nowhere"
        assert target.is_relative_to(ROOT), f"{name_of(path)}: {file} is outside the repository"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name_of(path)}: {file} has no heading {anchor}"


def test_every_page_is_reachable_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen:
            seen.add(page)
            targets = [(page.parent / file).resolve() for file, _ in links(page) if file.endswith(".md")]
            waiting += [target for target in targets if target.is_relative_to(DOCS)]
    assert not set(PAGES) - seen, "pages without a link to them"


def test_every_public_name_is_in_the_docs() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    wanted = {*savegame.__all__}
    wanted |= {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    missing = {name for name in wanted if not re.search(rf"\b{name}\b", text)}
    assert not missing


def test_every_verb_is_explained_by_hand() -> None:
    """Not only in the generated reference."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES if path.parent.name != "reference")
    for cls in (savegame.Vault, savegame.Thread):
        for verb, value in vars(cls).items():
            if inspect.isfunction(value) and not verb.startswith("_"):
                assert re.search(rf"\.{verb}\(", text), f"{cls.__name__}.{verb} is in no guide"


def test_pages_name_no_place_of_one_machine() -> None:
    for path in PAGES:
        assert not re.search(r"/(home|root|work|Users)/\w", path.read_text(encoding="utf-8")), name_of(path)
