"""MLPerf Training: order of rounds, scored entries, and mapping of raw names to slugs (names.toml).

Entries are the rows that every estimate reads; `runs.store` defines which rows count.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from equipoise.errors import DataError
from equipoise.files import converted, decoded, shipped_table
from equipoise.spec import canonical

_ROUND = re.compile(r"v(\d+)\.(\d+)")


def round_name(name: str) -> str:
    """Return the canonical name of a round: `4.1`, `V4.1` and `v4.1` are equal.

    >>> round_name("4.1")
    'v4.1'
    """
    return re.sub(r"^v?(?=\d)", "v", name.strip(), flags=re.IGNORECASE)


def is_round(name: str) -> bool:
    """Return whether a campaign's name is that of a round."""
    return _ROUND.fullmatch(name) is not None


def round_key(campaign: str) -> tuple[int, int]:
    """Return a chronological sort key of rounds: (4, 1) for `v4.1`.

    Raises DataError for a name that is not a round, because its date is not known.

    >>> round_key("v4.1") < round_key("v10.0")
    True
    """
    found = _ROUND.fullmatch(campaign)
    if found is None:
        raise DataError(f"campaign {campaign!r} is not a round; expected a name such as 'v4.1'")
    return int(found[1]), int(found[2])


def round_order(name: str | None) -> tuple[bool, tuple[int, ...], str]:
    """Return a sort key: rounds by number, v10.0 after v9.0, then other campaigns by name.

    >>> sorted(["v10.0", "mine", "v9.0"], key=round_order)
    ['v9.0', 'v10.0', 'mine']
    """
    name = name or ""
    return not is_round(name), round_key(name) if is_round(name) else (), name


class ScoredEntry(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The columns that estimates read of one row of `scores` in the closed division with an official score.

    Names are "" if not stated. campaign: the round, or the name of the user's own campaign. Other fields are
    described in docs/reference/tables.md.
    """

    entry_id: str
    campaign: str
    workload: str
    accelerator: str
    num_accelerators: int
    score_s: float
    submitter: str = ""
    system: str = ""
    global_batch_samples: int | None = None
    samples_to_target: float | None = None
    energy_j: float | None = None
    source_uri: str | None = None
    source_line: int | None = None
    eval_s: float | None = None

    @property
    def group(self) -> tuple[str, str, str]:
        """The key of a curve: round, workload and accelerator with form factor and memory."""
        return self.campaign, self.workload, self.accelerator


Entries: TypeAlias = Sequence[ScoredEntry]


NAMES_FILE = Path(__file__).with_name("names.toml")
EDIT = "src/equipoise/spec/names.toml"

# The longest list of frameworks in the results so far has 113 characters; a far longer text is not a list.
MAX_CHARS = 2_000

_ADDRESS = re.compile(r"\w+://[^\s,;]+")
# "branch: develop", "commit hash = faf9db5", "commitID: 108aeb2": source revisions, which are ignored.
_REVISION = re.compile(r"\b(?:branch|commit\s*(?:id|hash)?)\b\s*[:=]?\s*[\w./-]+", re.IGNORECASE)
_LISTED = re.compile(r"[,;]|\s\+\s")
_SEPARATORS = re.compile(r"[\s:/+&()|_\-]+")
_VERSION = re.compile(r"[vr]?\d[\w.]*|git[0-9a-f]+|[0-9a-f]{7,40}", re.IGNORECASE)
_VERSION_BEHIND = re.compile(r"(?<=[a-z])v?\d+(?:\.\w+)*$", re.IGNORECASE)


class FrameworkName(Struct, frozen=True, kw_only=True):
    """The frameworks in a raw text: slugs joined by +, or None; and the unknown words."""

    slug: str | None
    unknown: tuple[str, ...] = ()


class _Name(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name with its spellings. runtime: whether it counts only if no other framework is named."""

    title: str
    aliases: tuple[str, ...]
    runtime: bool = False


class _NamesTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables of names.toml, by slug."""

    availability: Mapping[str, _Name]
    division: Mapping[str, _Name]
    framework: Mapping[str, _Name]
    noise: Mapping[str, Mapping[str, tuple[str, ...]]]


def availability_slug(raw: str) -> str | None:
    """Return `available_onprem`, `available_cloud`, `preview` or `research`; None if unknown.

    >>> availability_slug("Available on-premise"), availability_slug("soon")
    ('available_onprem', None)
    """
    return _spellings("availability").get(canonical(raw))


def division_slug(raw: str) -> str | None:
    """Return `closed` or `open`; None if unknown.

    >>> division_slug("close")
    'closed'
    """
    return _spellings("division").get(canonical(raw))


def framework_slug(raw: str) -> str | None:
    """Return the frameworks in a text, in order, joined by +; None if there is none or a word is unknown.

    >>> framework_slug("NGC Pytorch 24.09, NGC HugeCTR 24.09, NVIDIA Nemo 24.09")
    'pytorch+hugectr+nemo'
    """
    return framework_name(raw).slug


def framework_name(raw: str) -> FrameworkName:
    """Return the frameworks in a text, and its unknown words.

    A text with unknown words has no slug; it is kept raw and reported.

    >>> framework_name("PyTorch 2.6.0, Frobnicator 3").unknown
    ('frobnicator',)
    """
    if len(raw) > MAX_CHARS:
        return FrameworkName(slug=None, unknown=(f"{raw[:40]}... ({len(raw):,} characters)",))
    found: list[str] = []
    unknown: list[str] = []
    for words in _listed(raw):
        at = 0
        while at < len(words):
            length, slug = _longest(words, at)
            if slug is not None:
                found.append(slug)
            elif words[at] not in _noise():
                unknown.append(words[at])
            at += length
    named = list(dict.fromkeys(found))
    named = [slug for slug in named if not _table().framework[slug].runtime] or named
    slug = "+".join(named) if named and not unknown else None
    return FrameworkName(slug=slug, unknown=tuple(dict.fromkeys(unknown)))


def _listed(raw: str) -> list[list[str]]:
    """Return the canonical words of each name in a list, without addresses, revisions and versions."""
    text = _REVISION.sub(" ", _ADDRESS.sub(" ", raw))
    return [_words(part) for part in _LISTED.split(text)]


def _words(text: str) -> list[str]:
    words = []
    for piece in _SEPARATORS.split(text):
        if piece and not _VERSION.fullmatch(piece):
            word = canonical(_VERSION_BEHIND.sub("", piece))
            words.extend(word.split())
    return words


def _longest(words: list[str], at: int) -> tuple[int, str | None]:
    """Return the number of words and slug of the longest alias that starts at a word; (1, None) if none."""
    for length in range(min(_most_words(), len(words) - at), 0, -1):
        slug = _spellings("framework").get(" ".join(words[at : at + length]))
        if slug is not None:
            return length, slug
    return 1, None


@cache
def _table() -> _NamesTable:
    return converted(shipped_table(NAMES_FILE), _NamesTable)


@cache
def _spellings(kind: Literal["availability", "division", "framework"]) -> Mapping[str, str]:
    """Return the slugs of a kind of name, by canonical spelling."""
    names: Mapping[str, _Name] = getattr(_table(), kind)
    return {canonical(each): slug for slug, name in names.items() for each in (slug, *name.aliases)}


@cache
def _most_words() -> int:
    """Return the number of words in the longest spelling of a framework."""
    return max(len(each.split()) for each in _spellings("framework"))


@cache
def _noise() -> frozenset[str]:
    """Return words to ignore because they do not identify a framework."""
    return frozenset(map(canonical, _table().noise["framework"]["words"]))


class Scores(Struct, frozen=True, eq=False):
    """The comparable entries of one set of evidence, in the order of entry_id.

    Compared by identity as a cache key, because comparing rows takes longer than most questions.
    """

    entries: tuple[ScoredEntry, ...]

    def of(self, workload: str) -> tuple[ScoredEntry, ...]:
        """Return the entries of a workload."""
        return tuple(each for each in self.entries if each.workload == workload)


def read_scores(content: bytes) -> Scores:
    """Return the entries written by `written_scores`. Raises ValueError for anything else."""
    return Scores(decoded(content, tuple[ScoredEntry, ...]))


def written_scores(scores: Scores) -> bytes:
    """Return the entries as JSON with one array per line; 2,000 are read in the time of one frame filter."""
    return b"[" + b",\n".join(map(msgspec.json.encode, scores.entries)) + b"]\n"


def accelerators_of(entries: Iterable[ScoredEntry]) -> list[str]:
    """Return the accelerators named in entries, sorted."""
    return sorted({each.accelerator for each in entries} - {""})


def newest_first(entries: Iterable[ScoredEntry]) -> list[ScoredEntry]:
    """Return the entries of MLPerf rounds, ordered by newest round and then by fastest score.

    Entries of other campaigns are omitted, because their dates are not known.
    """
    fastest = sorted(
        (each for each in entries if is_round(each.campaign)), key=lambda each: (each.score_s, each.entry_id)
    )
    return sorted(fastest, key=lambda each: round_key(each.campaign), reverse=True)


def best_per_size(entries: Iterable[ScoredEntry]) -> tuple[ScoredEntry, ...]:
    """Return the best entry of every round, workload and accelerator at every size, in that order.

    Entries without a known accelerator are omitted. The function is idempotent.
    """
    best: dict[tuple[object, ...], ScoredEntry] = {}
    for each in sorted(entries, key=lambda each: (each.score_s, each.entry_id)):
        if each.accelerator:
            best.setdefault((*each.group, each.num_accelerators), each)
    return tuple(best[key] for key in sorted(best))


def before(entries: Entries, round_: str) -> tuple[ScoredEntry, ...]:
    """Return the entries of strictly earlier rounds."""
    return tuple(each for each in entries if round_key(each.campaign) < round_key(round_))
