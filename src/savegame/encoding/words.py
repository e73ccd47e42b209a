"""Words of any script for full-text search: parsing queries, splitting text into words, snippets. Pure.

Scripts without spaces between words are searched character by character: `spaced` puts spaces around each character in
indexed texts and in queries, so that a run of them is found anywhere.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

_NO_SPACES: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\uaa60-\uaa7f\ua9e0-\ua9ff"  # Burmese, Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\u3041-\u30ff\u31f0-\u31ff"  # kana
    "\u1100-\u11ff\uac00-\ud7ff"  # hangul: has spaces, but joins words with particles
)
_ALONE: Final = re.compile(f"[{_NO_SPACES}]")
_WORD: Final = re.compile(rf"[{_NO_SPACES}]|(?:[^\W_{_NO_SPACES}])+")
_TERM: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')
_NOTHING: Final = re.compile(r"(?!)")
_SPACE: Final = re.compile(r"\s")

SNIPPET_WIDTH: Final = 80
"""Characters of a snippet: about a dozen words."""

MOST_MATCHES: Final = 200
"""Maximum number of matches in a text that are compared for the best snippet."""


class Term(NamedTuple):
    """Words that a message must contain in this order. If `open`, the last may be a prefix: `refun` finds refund."""

    text: str
    open: bool


def terms_of(query: str) -> list[Term]:
    """The terms of a query: words and quoted phrases, without those that have no letter or digit."""
    found = [Term(spaced(quoted or word), not quoted) for quoted, word in _TERM.findall(query)]
    return [term for term in dict.fromkeys(found) if any(map(str.isalnum, term.text))]


def spaced(text: str) -> str:
    """Text with spaces between all words, for an index that splits at spaces."""
    if text.isascii():
        return text
    return _ALONE.sub(r" \g<0> ", unicodedata.normalize("NFKC", text))


def words_of(text: str) -> list[str]:
    """The words of a text in order, in lower case and without accents on Latin letters, similar to FTS5."""
    return spaced(text).casefold().translate(_LETTERS).split()


class _Letters(dict[int, str | None]):
    """Maps a character of a word to itself or its letter without accent, and any other character to a space."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        kind = unicodedata.category(character)
        letter = unicodedata.normalize("NFD", character)[0]
        self[code] = (letter if letter.isascii() else character) if kind[0] in "LN" or kind in ("Co", "Mn", "Mc") else " "
        return self[code]


_LETTERS: Final = _Letters(dict.fromkeys(range(0x0300, 0x0370)))
"""Combining accents are dropped."""


def pattern_of(terms: Sequence[Term]) -> re.Pattern[str]:
    """A pattern for the words of terms in folded text; the number of the group is that of the term."""
    return re.compile("|".join(f"({_term_pattern(term)})" for term in terms)) if terms else _NOTHING


def literal_pattern(text: str) -> re.Pattern[str]:
    """A case-insensitive pattern for a text in a text that is folded with `exact`."""
    return re.compile(f"({re.escape(_SPACE.sub(' ', text).casefold())})") if text else _NOTHING


def _term_pattern(term: Term) -> str:
    words = _WORD.findall(_fold(term.text)[0])
    begin = "" if not words or _ALONE.match(words[0]) else r"(?<![^\W_])"
    end = "" if not words or _ALONE.match(words[-1]) else r"[^\W_]*" if term.open else r"(?![^\W_])"
    return begin + r"[\W_]*".join(map(re.escape, words)) + end


def snippet(text: str, pattern: re.Pattern[str], markers: tuple[str, str], *, exact: bool = False) -> str:
    """The part of a text with the most different matches, which are marked.

    With `exact`, accents matter, as in a `literal_pattern`.
    """
    text = _SPACE.sub(" ", text)
    folded, places = _fold(text, exact=exact)
    matches = islice((match for match in pattern.finditer(folded) if match.group()), MOST_MATCHES)
    spans = [(places[match.start()], places[match.end()], match.lastindex) for match in matches]
    low, high = _stretch(text, max(spans, key=lambda span: _terms_near(spans, span[0]), default=(0, 0, 0))[:2])
    parts, at = ["… " if low else ""], low
    for start, end, _ in spans:
        if at <= start < high:
            parts += [text[at:start], markers[0], text[start : min(end, high)], markers[1]]
            at = min(end, high)
    parts += [text[at:high], " …" if high < len(text) else ""]
    return " ".join("".join(parts).split())


def _terms_near(spans: Sequence[tuple[int, int, int | None]], begin: int) -> int:
    return len({term for start, _, term in spans if begin <= start < begin + SNIPPET_WIDTH // 2})


def _stretch(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Start and end of a snippet around a match, at spaces if there are any."""
    start, end = span
    low = max(0, min(start - SNIPPET_WIDTH // 3, len(text) - SNIPPET_WIDTH))
    if low:
        low = text.find(" ", low, start) + 1 or low
    high = low + SNIPPET_WIDTH
    if high < len(text):
        space = text.rfind(" ", end, high)  # -1 inside a word that is longer than a snippet
        high = space if space > end else high
    return low, min(high, len(text))


def _fold(text: str, *, exact: bool = False) -> tuple[str, Sequence[int]]:
    """Text in lower case without accents, and for each of its characters (and its end) the index in the original.

    With `exact`, accents stay.
    """
    if text.isascii():
        return text.lower(), range(len(text) + 1)
    fold = str.casefold if exact else _plain
    plain = [fold(character) for character in text]
    places = [place for place, part in enumerate(plain) for _ in part]
    return "".join(plain), [*places, len(text)]


@lru_cache(maxsize=4096)
def _plain(character: str) -> str:
    apart = unicodedata.normalize("NFKD", character)
    bare = "".join(part for part in apart if unicodedata.category(part) != "Mn")
    return (unicodedata.normalize("NFKC", character) if bare == apart else bare).casefold()
