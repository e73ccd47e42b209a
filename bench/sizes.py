"""How much of everything: those that the limits are for, and small ones for a smoke test."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """One run's sizes; the defaults are the ones that the limits are about."""

    warmup: int = 1500  # steps on another thread before timing, so that the WAL has its full size
    at: int = 1000  # the step at which update() is timed ...
    around: int = 400  # ... over this many steps before and after it
    near: int = 100  # the two steps that flatness compares ...
    far: int = 10_000
    window: int = 100  # ... over this many steps before and after each
    grow: int = 1000  # steps of the grown thread that is measured on disk, loaded and listed
    saves: int = 60  # timed saves of the whole grown state
    loads: int = 31  # cold loads, the first thrown away
    steps: int = 500  # timed steps of a run, and of DBOS's workflow
    passes: int = 3  # times that each older checkpoint is loaded
    history: int = 50  # entries listed
    histories: int = 40  # times that they are listed by savegame; SqliteSaver is so slow that a tenth will do
    files: int = 200
    file_bytes: int = 5000
    folded: int = 400  # messages of which the first half becomes a summary
    big_bytes: int = 5_000_000
    edits: int = 50
    threads: int = 64
    per_thread: int = 40
    alone: int = 1500  # saves of the one thread that the 64 are compared with
    bursts: int = 3
    touched: int = 10_000
    cache_bytes: int = 16 * 1024 * 1024
    turns: int = 1000  # of the chat through a LangGraph graph
    short: int = 20  # turns of short chats ...
    shorts: int = 25  # ... and how many of them
    middle: int = 100  # turns of longer ones
    middles: int = 5
    conversations: int = 10_000
    per_agent: int = 100
    said: int = 50  # messages of each conversation
    idle: int = 100_000  # threads that a supervisor finds nothing to do in
    listed: int = 10_000  # threads that the web page lists, and checkpoints of its longest thread
    looked_at: int | None = None  # pages of it that are opened; all

    def to_text(self) -> str:
        """As an argument for a contestant's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Sizes:
        """The other way round."""
        return cls(**json.loads(text))


QUICK = Sizes(
    warmup=200,
    at=200,
    around=100,
    far=1000,
    window=50,
    grow=150,
    saves=15,
    loads=8,
    steps=50,
    passes=1,
    histories=10,
    files=50,
    folded=100,
    big_bytes=500_000,
    edits=10,
    threads=16,
    per_thread=15,
    alone=200,
    bursts=1,
    touched=500,
    cache_bytes=512 * 1024,
    turns=60,
    shorts=4,
    middle=30,
    middles=2,
    conversations=200,
    per_agent=10,
    said=10,
    idle=200,
    listed=200,
    looked_at=1,
)
"""For a smoke test: the figures mean little, and no limit applies."""
