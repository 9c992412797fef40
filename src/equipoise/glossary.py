"""Lookup of terms in glossary.toml, which defines each in two sentences."""

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from msgspec import Struct

from equipoise.errors import SpecError, hint
from equipoise.files import shipped_table

GLOSSARY_FILE = Path(__file__).with_name("glossary.toml")
_SHOWN_CHARS = 80
_SIMILARITY = 0.7  # less similar words are not suggested
_SPACES = re.compile(r"[\s_]+")


class Term(Struct, frozen=True, kw_only=True):
    """A term: its meaning, formula and source."""

    name: str
    group: str
    meaning: str
    source: str
    formula: str | None = None
    aliases: tuple[str, ...] = ()
    see: tuple[str, ...] = ()


@cache
def terms() -> tuple[Term, ...]:
    """All terms, in file order."""
    document = shipped_table(GLOSSARY_FILE)
    return tuple(
        Term(**(block | {key: tuple(block.get(key, ())) for key in ("aliases", "see")}))
        for block in document["term"]
    )


def explain(term: str) -> Term:
    """The term with this name or alias; letter case, spaces and underscores do not matter.

    Raises SpecError with similar terms.

    >>> explain("relative_efficiency").name
    "E'"
    """
    by_word = _by_word()
    word = _folded(term)
    if word in by_word:
        return by_word[word]
    inside = [found.name for known, found in by_word.items() if word and word in known.split()]
    close = [by_word[each].name for each in get_close_matches(word[:80], by_word, n=5, cutoff=_SIMILARITY)]
    near = list(dict.fromkeys((*inside, *close)))[:5]
    shown = term if len(term) <= _SHOWN_CHARS else f"{term[:_SHOWN_CHARS]}..."
    meant = hint(near, "`equipoise explain` alone lists every word")
    raise SpecError(f"{shown!r} is not in the glossary; {meant}")


@cache
def _by_word() -> dict[str, Term]:
    """Terms by normalised name and alias; a name takes precedence over another term's alias."""
    words = {_folded(term.name): term for term in terms()}
    for term in terms():
        for alias in term.aliases:
            words.setdefault(_folded(alias), term)
    return words


def _folded(word: str) -> str:
    """A word normalised: case-folded, with single spaces and plain primes."""
    return _SPACES.sub(" ", word.replace("\u2032", "'").replace("\u2019", "'")).strip().casefold()
