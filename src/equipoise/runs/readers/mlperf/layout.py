"""Where a file stands: round, organisation, system, benchmark, from the path alone, by no list of folders.

A round is `<round>/<org>/results/<system>/<benchmark>/result_*.txt`, with `<org>/systems/<system>.json`.
v0.5 has folders of submissions between organisation and results; some systems have no benchmark folder.
A path may begin anywhere above or below the round.
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from equipoise.units import MIB

FileKind: TypeAlias = Literal["log", "system", "entry", "summary", "scaling", "node_power", "switch_power"]
Parts: TypeAlias = tuple[str, ...]

# Descriptions are some kB, lists of an organisation's results some 100 kB.
MAX_JSON_BYTES = 4 * MIB

_ROUND_FOLDER = re.compile(
    r"(?:.*[^a-z])?(?:training|mlperf)(?:[_. -]?results?)?[_. -]?"
    r"v?(\d{1,2})[._](\d{1,2})(?:[._]\d+)?(?:\D.*)?"
)
_ROUND_ALONE = re.compile(r"(?:v(\d{1,2})\.(\d{1,2})|(\d)\.(\d))(?:\.\d+)?")
_JSON_KINDS: dict[str, FileKind] = {
    "scaling.json": "scaling",
    "entry.json": "entry",
    "summary.json": "summary",
}
_LOG_NAME = re.compile(r"results?[_-].*\.(?:txt|log)|result\.(?:txt|log)")
_LOG_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_MAX_NUMBER_DIGITS = 6  # longer is a time stamp

# Below `results`: system and benchmark.
_ENTRY_DEPTH = 2
# v0.5 alone has folders of submissions between organisation and results.
_FIRST_WITHOUT_SUBMISSIONS = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round of MLPerf Training: its label as the tables write it, and the number rules are looked up by."""

    label: str
    number: float


def file_kind(path: str) -> FileKind | None:
    """What a file may hold that is worth reading, from its path; None for everything else.

    >>> file_kind("Dell/results/XE/bert/result_0.txt"), file_kind("Dell/systems/XE.json")
    ('log', 'system')
    """
    folders = path.lower().split("/")
    name = folders.pop()
    if name.startswith("."):
        return None
    if name.endswith(".json"):
        return _JSON_KINDS.get(name) or ("system" if folders and folders[-1] == "systems" else None)
    if "power" in folders and name.endswith(".txt"):
        if name.startswith("node_"):
            return "node_power"
        return "switch_power" if name.startswith("sw_") else None
    if _LOG_NAME.fullmatch(name) and "raw_logs" not in folders:
        return "log"
    return None


def looks_like_log(path: str) -> bool:
    """Whether a file of no known kind stands where logs do, so that leaving it out must be said."""
    folders = path.lower().split("/")
    name = folders.pop()
    return "results" in folders and "power" not in folders and name.endswith((".txt", ".log", ".out"))


def round_of(folder: str) -> Round | None:
    """The round that one folder or archive name states.

    >>> round_of("training_results_v4.1").label, round_of("v0.5.0").label, round_of("cloud_v3.8")
    ('v4.1', 'v0.5', None)
    """
    match = _ROUND_FOLDER.fullmatch(folder.lower()) or _ROUND_ALONE.fullmatch(folder.lower())
    if match is None:
        return None
    major, minor = (group for group in match.groups() if group is not None)
    return Round(label=f"v{int(major)}.{int(minor)}", number=float(f"{int(major)}.{int(minor)}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a file of an entry stands.

    round: None where no folder above states one. organisation: None where no folder above can be one.
    system, benchmark: folder names; None where the layout has none.
    home: the folder whose `systems` describes the system. folder: that of the entry, inside the round.
    nested: the file lies deeper than any entry does.
    """

    round: Round | None
    organisation: str | None
    system: str | None
    benchmark: str | None
    home: Parts
    folder: Parts
    nested: bool


def _round_above(above: Parts) -> tuple[Round | None, int]:
    """The innermost round that the folders above state, and the index after its folder."""
    for index in range(len(above) - 1, -1, -1):
        found = round_of(above[index])
        if found is not None:
            return found, index + 1
    return None, 0


def _inside_round(folders: Parts, after_round: int) -> Parts:
    """The folders inside the repository of a round, which may itself begin with a folder `v0.5.0`."""
    start = after_round
    while start > 1 and _ROUND_ALONE.fullmatch(folders[start - 1].lower()) and round_of(folders[start - 2]):
        start -= 1
    return folders[start:]


def place(folders: Parts, num_above: int = 0) -> Place:
    """The place of a file from the folders it lies in, of which the first `num_above` lie above its source.

    Without a `results` folder, the innermost folder is the entry and nothing more is claimed.
    """
    names = tuple(folder.lower() for folder in folders)
    if "results" not in names:
        found, after_round = _round_above(folders)
        unknown = folders[min(num_above, max(len(folders) - 1, 0)) :]
        return Place(
            round=found,
            organisation=None,
            system=None,
            benchmark=folders[-1] if len(folders) > after_round else None,
            home=(),
            folder=unknown if found is None else _inside_round(folders, after_round),
            nested=False,
        )
    at = len(names) - 1 - names[::-1].index("results")
    above, below = folders[:at], folders[at + 1 :]
    found, after_round = _round_above(above)
    inside = above[after_round:]
    early = found is not None and found.number < _FIRST_WITHOUT_SUBMISSIONS
    organisation = (inside[0] if early else inside[-1]) if inside else None
    submissions = inside[1:] if early else ()
    return Place(
        round=found,
        organisation=organisation,
        system="/".join((*submissions, below[0])) if below else None,
        benchmark=below[1] if len(below) > 1 else None,
        home=above,
        folder=folders[max(at - 1, 0) :] if found is None else _inside_round(folders, after_round),
        nested=len(below) > _ENTRY_DEPTH,
    )


def log_number(name: str) -> int | None:
    """The number at the end of a log's name, by which submitters count their logs.

    >>> log_number("result_240930043022868987627_01.txt"), log_number("result.txt")
    (1, None)
    """
    match = _LOG_NUMBER.search(name)
    return None if match is None or len(match[1]) > _MAX_NUMBER_DIGITS else int(match[1])
