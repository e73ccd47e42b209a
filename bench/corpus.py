"""The fixed data that every contestant saves: per step two messages of about 1 KB, one of them with a tool call.

Seeded and self-contained: words are made from syllables and drawn with Zipf-like frequencies, each step from a
generator of its own, so that step n is the same bytes on every machine and Python. Nothing repeats but the words.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

import ormsgpack
import zstandard

Message = dict[str, Any]
Pair = list[Message]

SEED = "savegame-bench-1"
WORDS = 6000
TEXT_CHARS = 850
_ONSETS = [*"bcdfghjklmnprstvwyz", "", "ch", "st", "th", "tr"]
_NUCLEI = [*"aeiouaeio", "ai", "ea", "ou"]
_CODAS = [*"dlnrst", "", "", "", "", "", "", "nd", "ng", "st"]
_TOOLS = ["search_orders", "read_file", "run_query", "send_message", "fetch_page", "list_events", "edit_file"]


@cache
def vocabulary() -> tuple[list[str], list[float]]:
    """The words, most frequent (and shortest) first, and their cumulative weights."""
    random = Random(f"{SEED}:words")
    words: dict[str, None] = {}
    while len(words) < WORDS:
        syllables = 1 + (len(words) > 600) + (len(words) > 900 and random.random() < 0.6) + (random.random() < 0.15)
        words["".join(_pick(random, part) for _ in range(syllables) for part in (_ONSETS, _NUCLEI, _CODAS))] = None
    return list(words), list(accumulate(1 / (rank + 3) for rank in range(WORDS)))


def text(random: Random, chars: int = TEXT_CHARS) -> str:
    """About `chars` characters of sentences."""
    words, weights = vocabulary()
    sentences, length = [], 0
    while length < chars:
        count = 5 + int(random.random() * 14)
        sentence = " ".join(random.choices(words, cum_weights=weights, k=count)).capitalize() + "."
        sentences.append(sentence)
        length += len(sentence) + 1
    return " ".join(sentences)[:chars]


def step(number: int, thread: str = "main") -> Pair:
    """What one step of an agent adds: the model's message with a tool call, and the tool's answer."""
    random = Random(f"{SEED}:{thread}:{number}")
    call = f"call_{random.getrandbits(96):024x}"
    arguments = {"query": text(random, 60), "limit": int(random.random() * 500), "exact": random.random() < 0.5}
    asked = {
        "role": "assistant",
        "content": text(random),
        "tool_calls": [{"id": call, "name": _pick(random, _TOOLS), "arguments": arguments}],
    }
    return [asked, {"role": "tool", "tool_call_id": call, "content": text(random, TEXT_CHARS + 110)}]


def steps(first: int, last: int, thread: str = "main") -> list[Pair]:
    """The steps from `first` to `last`, both included."""
    return [step(number, thread) for number in range(first, last + 1)]


def messages(count: int, thread: str = "main") -> list[Message]:
    """The first `count` messages of a thread, as one list."""
    return [message for pair in steps(1, (count + 1) // 2, thread) for message in pair][:count]


def packed(value: object) -> bytes:
    """The bytes that count as content: plain msgpack."""
    return ormsgpack.packb(value)


def describe(count: int = 1000) -> dict[str, float]:
    """Size of a step and zstd (level 3) ratios: of everything at once, and of each step alone."""
    bodies = [packed(pair) for pair in steps(1, count)]
    whole = b"".join(bodies)
    compress = zstandard.ZstdCompressor(level=3).compress
    return {
        "steps": count,
        "bytes_per_step": len(whole) / count,
        "zstd_ratio_whole": len(whole) / len(compress(whole)),
        "zstd_ratio_per_step": len(whole) / sum(len(compress(body)) for body in bodies),
    }


def _pick(random: Random, choices: list[str]) -> str:
    return choices[int(random.random() * len(choices))]
