"""How far `compact()` compresses several kinds of content, compared with other compression methods.

`python -m bench.squeeze` prints, in sizes relative to the content (the msgpack of all messages, each once): the file after
1,000 updates, after `compact()`, and what its bodies would come to with a zstd dictionary per thread (trained on the thread
itself, and counted), with the step before as the dictionary, and with several steps in one body.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any

import zstandard
from rich.console import Console
from rich.table import Table

import savegame
from bench import corpus

STEPS = 1000
LEVEL = 12
DICTIONARY = 16 * 1024

Step = list[dict[str, Any]]


@cache
def prose() -> str:
    """What Python brings along of English: the topics of its help, and the docstrings of its library."""
    found = [topics[name] for name in sorted(topics)]
    for path in library():
        nodes = ast.walk(ast.parse(path.read_bytes()))
        documented = (node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
        found += [doc for node in documented if (doc := ast.get_docstring(node)) is not None]
    return " ".join(found)


def library() -> list[Path]:
    """The files of Python's library."""
    return sorted(Path(os.__file__).parent.glob("*.py"))


def chat(least: int = 200, most: int = 1500) -> Iterator[Step]:
    """English prose in messages of `least` to `most` characters."""
    random = Random(corpus.SEED)
    text = prose()
    at = 0
    while at < len(text):
        said = []
        for role in ("user", "assistant"):
            length = least + int(random.random() * (most - least))
            said.append({"role": role, "content": text[at : at + length]})
            at += length
        yield said


def short_chat() -> Iterator[Step]:
    """The same in the length of messages that people type."""
    return chat(20, 250)


def tools() -> Iterator[Step]:
    """Calls and their results: rows of JSON with ids, amounts, times and states, as an API gives them."""
    random = Random(corpus.SEED)
    while True:
        call = f"call_{random.getrandbits(96):024x}"
        rows = [
            {
                "id": f"ord_{random.getrandbits(64):016x}",
                "customer": {"name": corpus.text(random, 14), "email": f"{random.getrandbits(40):x}@example.com"},
                "amount_cents": int(random.random() * 100_000),
                "currency": "EUR",
                "status": ["open", "paid", "shipped", "returned"][int(random.random() * 4)],
                "created_at": f"2026-{1 + int(random.random() * 12):02}-{1 + int(random.random() * 28):02}T10:00:00Z",
                "notes": None,
            }
            for _ in range(1 + int(random.random() * 12))
        ]
        asked = {"id": call, "name": "search_orders", "arguments": {"query": corpus.text(random, 30), "limit": 12}}
        yield [
            {"role": "assistant", "content": "", "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": call, "content": json.dumps(rows)},
        ]


def code() -> Iterator[Step]:
    """Files of Python's library as a coding agent reads them, 60 lines at a time."""
    for path in library():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        for first in range(0, len(lines), 60):
            yield [
                {"role": "assistant", "content": f"Reading {path.name} from line {first + 1}."},
                {"role": "tool", "content": "".join(lines[first : first + 60])},
            ]


CORPORA: dict[str, Callable[[], Iterator[Step]]] = {
    "chat": chat,
    "short chat": short_chat,
    "tool-heavy JSON": tools,
    "code": code,
}


def measured(steps: list[Step], directory: Path) -> dict[str, float]:
    """Sizes relative to the content."""
    bodies = [corpus.packed(step) for step in steps]
    path = directory / "agents.db"
    with savegame.open(path) as vault:
        thread = vault.thread("t")
        for step in steps:
            thread.update(append={"messages": step})
    before = path.stat().st_size
    with savegame.open(path) as vault:
        vault.compact()
        assert vault.thread("t").state() == {"messages": [message for step in steps for message in step]}
    after = path.stat().st_size
    dictionary = zstandard.train_dictionary(DICTIONARY, bodies)
    alone = _total(bodies)
    content = sum(map(len, bodies))
    return {
        "as written": before / content,
        "compact()": after / content,
        "bodies alone": alone / content,
        "dictionary per thread": (_total(bodies, dictionary) + len(dictionary.as_bytes())) / content,
        "step before as dictionary": sum(_total([now], _raw(last)) for last, now in pairwise([b"", *bodies])) / content,
        "8 steps a body": _total(_joined(bodies, 8)) / content,
        "32 steps a body": _total(_joined(bodies, 32)) / content,
        "everything at once": _total([b"".join(bodies)]) / content,
    }


def _total(bodies: list[bytes], dictionary: zstandard.ZstdCompressionDict | None = None) -> int:
    compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=dictionary, write_checksum=False)
    return sum(min(len(body), len(compressor.compress(body))) for body in bodies)


def _raw(body: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(body, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _joined(bodies: list[bytes], count: int) -> list[bytes]:
    return [b"".join(bodies[at : at + count]) for at in range(0, len(bodies), count)]


def main() -> None:
    """Print one table."""
    found = {}
    for name, steps in {"the benchmark's": lambda: iter(corpus.steps(1, STEPS)), **CORPORA}.items():
        with tempfile.TemporaryDirectory() as directory:
            found[name] = measured(list(islice(steps(), STEPS)), Path(directory))
    table = Table("size : content", *found)
    for way in next(iter(found.values())):
        table.add_row(way, *(f"{sizes[way]:.2f}" for sizes in found.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
