"""MLPerf Training: its rounds in order, scored entries, and spellings of results as slugs (names.toml).

Entries are the rows that every estimate reads; which rows count is said once, in `runs.store`.
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
    """A round as the data name it: `4.1`, `V4.1` and `v4.1` are one.

    >>> round_name("4.1")
    'v4.1'
    """
    return re.sub(r"^v?(?=\d)", "v", name.strip(), flags=re.IGNORECASE)


def is_round(name: str) -> bool:
    """Whether data call a round so; other campaigns have names of their own."""
    return _ROUND.fullmatch(name) is not None


def round_key(campaign: str) -> tuple[int, int]:
    """What orders rounds in time: `v4.1` is (4, 1).

    Raises DataError for a name that is not a round: its place in time is not known.

    >>> round_key("v4.1") < round_key("v10.0")
    True
    """
    found = _ROUND.fullmatch(campaign)
    if found is None:
        raise DataError(f"campaign {campaign!r} is not a round; expected a name such as 'v4.1'")
    return int(found[1]), int(found[2])


def round_order(name: str | None) -> tuple[bool, tuple[int, ...], str]:
    """A key: rounds in the order of their numbers, v10.0 after v9.0; then other campaigns by name.

    >>> sorted(["v10.0", "mine", "v9.0"], key=round_order)
    ['v9.0', 'v10.0', 'mine']
    """
    name = name or ""
    return not is_round(name), round_key(name) if is_round(name) else (), name


class ScoredEntry(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One row of the table `scores`, closed, with an official score: what of it an estimate reads.

    Names are "" where the table states none. campaign: the round, or the name of the user's own. The rest as
    in docs/reference/tables.md.
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
        """What makes a curve: one accelerator, form factor and memory on one workload in one round."""
        return self.campaign, self.workload, self.accelerator


Entries: TypeAlias = Sequence[ScoredEntry]


NAMES_FILE = Path(__file__).with_name("names.toml")
EDIT = "src/equipoise/spec/names.toml"

# The longest list of frameworks in the results so far has 113 characters; what is far longer is no such list.
MAX_CHARS = 2_000

_ADDRESS = re.compile(r"\w+://[^\s,;]+")
# "branch: develop", "commit hash = faf9db5", "commitID: 108aeb2": which source, not which framework.
_REVISION = re.compile(r"\b(?:branch|commit\s*(?:id|hash)?)\b\s*[:=]?\s*[\w./-]+", re.IGNORECASE)
_LISTED = re.compile(r"[,;]|\s\+\s")
_SEPARATORS = re.compile(r"[\s:/+&()|_\-]+")
_VERSION = re.compile(r"[vr]?\d[\w.]*|git[0-9a-f]+|[0-9a-f]{7,40}", re.IGNORECASE)
_VERSION_BEHIND = re.compile(r"(?<=[a-z])v?\d+(?:\.\w+)*$", re.IGNORECASE)


class FrameworkName(Struct, frozen=True, kw_only=True):
    """The frameworks of a raw text: slugs with + between them, or None; and the words that no table has."""

    slug: str | None
    unknown: tuple[str, ...] = ()


class _Name(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name with its spellings. runtime: it is given only where nothing else is."""

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
    """`available_onprem`, `available_cloud`, `preview` or `research`; None when the table does not have it.

    >>> availability_slug("Available on-premise"), availability_slug("soon")
    ('available_onprem', None)
    """
    return _spellings("availability").get(canonical(raw))


def division_slug(raw: str) -> str | None:
    """`closed` or `open`; None when the table does not have it.

    >>> division_slug("close")
    'closed'
    """
    return _spellings("division").get(canonical(raw))


def framework_slug(raw: str) -> str | None:
    """The frameworks a text names, in order, with + between them; None when it names none or a word is
    unknown.

    >>> framework_slug("NGC Pytorch 24.09, NGC HugeCTR 24.09, NVIDIA Nemo 24.09")
    'pytorch+hugectr+nemo'
    """
    return framework_name(raw).slug


def framework_name(raw: str) -> FrameworkName:
    """The frameworks a text names, and the words in it that the table does not have.

    A name with unknown words has no slug: it is kept raw and reported.

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
    """The words of each name of a list, without addresses, revisions and versions, in lower case."""
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
    """The longest alias that starts at a word: how many words it takes, what it means; (1, None) for none."""
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
    """Every canonical spelling of a kind of name, and the slug it means."""
    names: Mapping[str, _Name] = getattr(_table(), kind)
    return {canonical(each): slug for slug, name in names.items() for each in (slug, *name.aliases)}


@cache
def _most_words() -> int:
    """Words of the longest spelling of a framework."""
    return max(len(each.split()) for each in _spellings("framework"))


@cache
def _noise() -> frozenset[str]:
    """Words that say nothing about the framework."""
    return frozenset(map(canonical, _table().noise["framework"]["words"]))


class Scores(Struct, frozen=True, eq=False):
    """The comparable entries of one set of evidence, in the order of entry_id.

    Equal to itself alone, as the key of a cache: comparing rows takes longer than most questions.
    """

    entries: tuple[ScoredEntry, ...]

    def of(self, workload: str) -> tuple[ScoredEntry, ...]:
        """The entries of a workload."""
        return tuple(each for each in self.entries if each.workload == workload)


def read_scores(content: bytes) -> Scores:
    """The entries that `written_scores` wrote. Raises ValueError for anything else."""
    return Scores(decoded(content, tuple[ScoredEntry, ...]))


def written_scores(scores: Scores) -> bytes:
    """The entries as JSON, an array a line: 2,000 are read in the time of one filter of a frame."""
    return b"[" + b",\n".join(map(msgspec.json.encode, scores.entries)) + b"]\n"


def accelerators_of(entries: Iterable[ScoredEntry]) -> list[str]:
    """The accelerators that entries name, in order."""
    return sorted({each.accelerator for each in entries} - {""})


def newest_first(entries: Iterable[ScoredEntry]) -> list[ScoredEntry]:
    """The entries of MLPerf rounds: newest round first, in it the fastest first.

    Those of other campaigns are left out: their place in time is not known.
    """
    fastest = sorted(
        (each for each in entries if is_round(each.campaign)), key=lambda each: (each.score_s, each.entry_id)
    )
    return sorted(fastest, key=lambda each: round_key(each.campaign), reverse=True)


def best_per_size(entries: Iterable[ScoredEntry]) -> tuple[ScoredEntry, ...]:
    """The best entry of every round, workload and accelerator at every size, in that order.

    Those without a known accelerator are left out. Applied to what it returned, it returns the same.
    """
    best: dict[tuple[object, ...], ScoredEntry] = {}
    for each in sorted(entries, key=lambda each: (each.score_s, each.entry_id)):
        if each.accelerator:
            best.setdefault((*each.group, each.num_accelerators), each)
    return tuple(best[key] for key in sorted(best))


def before(entries: Entries, round_: str) -> tuple[ScoredEntry, ...]:
    """The entries of strictly earlier rounds."""
    return tuple(each for each in entries if round_key(each.campaign) < round_key(round_))
