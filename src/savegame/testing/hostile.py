"""Ids of threads and checkpoints that a store must keep apart and take for nothing else. Touches nothing."""

from typing import Final

HOSTILE_IDS: Final = (
    "../../x", "/etc/x", "a/b", "a_b", "a\\b", ".", "..", "latest", "head", "head~1", "x.json", "CON", "-rf", "%2e%2e", " ",
    "two words", "trailing ", "line\nbreak", "🎲", "Twin", "twin", "\u00e9", "e\u0301", "'; DROP TABLE frame;--", '"quoted"',
    "0" * 32, "x" * 512, "🎲" * 512,
)  # fmt: skip
