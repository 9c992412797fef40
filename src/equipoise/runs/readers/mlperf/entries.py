"""Groups the files of a round into entries, with their logs and the description of their system."""

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from equipoise.runs import RowRejection, SourceFacts, Tally
from equipoise.runs.readers.mlperf.log import LogFacts
from equipoise.runs.readers.mlperf.system import SystemFacts
from equipoise.units import MIB

FileKind: TypeAlias = Literal["log", "system", "entry", "summary", "scaling", "node_power", "switch_power"]
Parts: TypeAlias = tuple[str, ...]

# Descriptions have some kB, lists of an organisation's results some 100 kB.
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
_MAX_NUMBER_DIGITS = 6  # a longer number is a timestamp

# Folders below `results`: system and benchmark.
_ENTRY_DEPTH = 2
# Only v0.5 has folders of submissions between organisation and results.
_FIRST_WITHOUT_SUBMISSIONS = 0.6


class RoundLabel(Struct, frozen=True, kw_only=True):
    """A round of MLPerf Training: its label in the tables, and the number by which rules are looked up."""

    label: str
    number: float


def file_kind(path: str) -> FileKind | None:
    """Return the kind of a relevant file from its path; None for all other files.

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
    """Return whether a file of no known kind is located among logs, so that its omission must be reported."""
    folders = path.lower().split("/")
    name = folders.pop()
    return "results" in folders and "power" not in folders and name.endswith((".txt", ".log", ".out"))


def round_of(folder: str) -> RoundLabel | None:
    """Return the round stated in the name of a folder or archive, or None.

    >>> round_of("training_results_v4.1").label, round_of("v0.5.0").label, round_of("cloud_v3.8")
    ('v4.1', 'v0.5', None)
    """
    match = _ROUND_FOLDER.fullmatch(folder.lower()) or _ROUND_ALONE.fullmatch(folder.lower())
    if match is None:
        return None
    major, minor = (group for group in match.groups() if group is not None)
    return RoundLabel(label=f"v{int(major)}.{int(minor)}", number=float(f"{int(major)}.{int(minor)}"))


class LogPlace(Struct, frozen=True, kw_only=True):
    """The location of a file of an entry.

    round: None if no folder above states one. organisation: None if no folder above can be one.
    system, benchmark: folder names; None if the layout has none.
    home: the folder whose subfolder `systems` describes the system. folder: of the entry, inside the round.
    nested: whether the file is deeper than the folder of an entry.
    """

    round: RoundLabel | None
    organisation: str | None
    system: str | None
    benchmark: str | None
    home: Parts
    folder: Parts
    nested: bool


def _round_above(above: Parts) -> tuple[RoundLabel | None, int]:
    """Return the innermost round stated in the folders above, and the index after its folder."""
    for index in range(len(above) - 1, -1, -1):
        found = round_of(above[index])
        if found is not None:
            return found, index + 1
    return None, 0


def _inside_round(folders: Parts, after_round: int) -> Parts:
    """Return the folders inside the repository of a round; a folder `v0.5.0` at its top counts as inside."""
    start = after_round
    while start > 1 and _ROUND_ALONE.fullmatch(folders[start - 1].lower()) and round_of(folders[start - 2]):
        start -= 1
    return folders[start:]


@lru_cache(maxsize=64)  # the logs of a folder are consecutive
def place(folders: Parts, num_above: int = 0) -> LogPlace:
    """Return the location of a file from its folders, of which the first `num_above` are above its source.

    Without a `results` folder, the innermost folder is the entry, and system and organisation are unknown.
    """
    names = tuple(folder.lower() for folder in folders)
    if "results" not in names:
        found, after_round = _round_above(folders)
        unknown = folders[min(num_above, max(len(folders) - 1, 0)) :]
        return LogPlace(
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
    return LogPlace(
        round=found,
        organisation=organisation,
        system="/".join((*submissions, below[0])) if below else None,
        benchmark=below[1] if len(below) > 1 else None,
        home=above,
        folder=folders[max(at - 1, 0) :] if found is None else _inside_round(folders, after_round),
        nested=len(below) > _ENTRY_DEPTH,
    )


def log_number(name: str) -> int | None:
    """Return the number at the end of a log's name, by which submitters number their logs.

    >>> log_number("result_240930043022868987627_01.txt"), log_number("result.txt")
    (1, None)
    """
    match = _LOG_NUMBER.search(name)
    return None if match is None or len(match[1]) > _MAX_NUMBER_DIGITS else int(match[1])


# Dialects that only one round used; they identify the round of logs whose folders do not state it.
_ROUND_OF_DIALECT: dict[str | None, RoundLabel] = {
    "MLPv0.5": RoundLabel(label="v0.5", number=0.5),
    "MLL": RoundLabel(label="v0.6", number=0.6),
}


class Log(Struct, frozen=True, kw_only=True):
    """One log of an entry: its file name, facts, and the power of each meter; None for an unusable meter."""

    name: str
    facts: LogFacts
    nodes_w: tuple[float | None, ...] = ()
    switches_w: tuple[float | None, ...] = ()


class ResultEntry(Struct, frozen=True, kw_only=True):
    """One submitted entry with raw names.

    round: its number is infinite for an unknown round, to which the latest rules apply.
    uri: its folder inside the round. logs: in the order of their numbers.
    scaling: None if there is a `scaling.json` that cannot be read.
    """

    round: RoundLabel
    organisation: str | None
    system_folder: str | None
    benchmark: str | None
    uri: str
    system: SystemFacts | None
    scaling: float | None
    logs: tuple[Log, ...]

    @property
    def has_gaps(self) -> bool:
        """Return whether the numbers of the logs suggest lost ones, i.e. are not consecutive from 0 or 1."""
        numbers = sorted(number for log in self.logs if (number := log_number(log.name)) is not None)
        if len(numbers) < len(self.logs):
            return True
        return any(number - index != numbers[0] for index, number in enumerate(numbers)) or (
            bool(numbers) and numbers[0] > 1
        )


class _Folder(Struct):
    """The files found below the folder of one entry."""

    place: LogPlace
    label: RoundLabel
    logs: dict[str, LogFacts] = field(default_factory=dict)
    scaling: float | None = 1.0
    nodes_w: dict[str, list[float | None]] = field(default_factory=dict)
    switches_w: dict[str, list[float | None]] = field(default_factory=dict)


class _Round(Struct):
    """All facts found, by folder, before they are grouped into entries."""

    rejected: Tally
    folders: dict[Parts, _Folder] = field(default_factory=dict)
    systems: dict[Parts, SystemFacts] = field(default_factory=dict)  # by path without suffix, lower case
    entry_systems: dict[Parts, SystemFacts] = field(default_factory=dict)  # by folder of the system
    summaries: dict[Parts, dict[str, SystemFacts]] = field(
        default_factory=dict
    )  # by folder of the organisation
    used_systems: set[Parts] = field(default_factory=set)
    num_runs_rejected: int = 0

    def folder(self, parts: Parts, context: Parts) -> _Folder:
        """Return the record of an entry's folder, created if necessary."""
        found = self.folders.get(parts)
        if found is None:
            where = place(parts, len(context))
            label = where.round or RoundLabel(label=_unknown_round(where, context), number=math.inf)
            found = self.folders[parts] = _Folder(place=where, label=label)
        return found

    def add(self, context: Parts, path: str, fact: Any) -> None:  # noqa: ANN401 - the result of `parse`
        """Add one file's facts."""
        parts = (*context, *path.split("/"))
        above, name = parts[:-1], parts[-1]
        kind = file_kind("/".join(parts))
        if isinstance(fact, RowRejection):
            self.rejected.add(fact)
        elif kind == "scaling":
            if not place(above).nested:
                self.folder(above, context).scaling = fact
        elif kind == "node_power":
            self.folder(parts[:-3], context).nodes_w.setdefault(parts[-2], []).append(fact)
        elif kind == "switch_power":
            self.folder(parts[:-3], context).switches_w.setdefault(parts[-2], []).append(fact)
        elif kind == "entry":
            self.entry_systems[above] = fact
        elif kind == "system":
            self.systems[_system_key(parts[:-2], name.rpartition(".")[0])] = fact
        elif kind == "summary":
            self.summaries[above] = fact
        else:
            self.add_log(context, parts, fact)

    def add_log(self, context: Parts, parts: Parts, log: LogFacts) -> None:
        """Add a log to its entry; reject it if there can be no entry at its location."""
        where = place(parts[:-1], len(context))
        uri = "/".join((*where.folder, parts[-1]))
        if where.nested:
            self.refuse_log(
                "nested_log", uri, "a log deeper than <system>/<benchmark>; the rules have no such folder"
            )
        elif log.num_events == 0 and where.system is None:
            self.refuse_log(
                "no_mlperf_lines", uri, "no line is marked as MLPerf's (`:::MLLOG`, `:::MLL`, ...)"
            )
        else:
            self.folder(parts[:-1], context).logs[parts[-1]] = log

    def refuse_log(self, kind: str, where: str, detail: str) -> None:
        """Count a log that belongs to no entry."""
        self.num_runs_rejected += 1
        self.rejected.refuse(kind, where, detail)

    def system_of(self, folder: Parts, where: LogPlace) -> SystemFacts | None:
        """Return an entry's system from its description, or a nearby `entry.json`, or a list of results."""
        if where.system is None:
            return self.entry_systems.get(folder)
        leaf = where.system.rpartition("/")[2]
        key = _system_key(where.home, leaf)
        self.used_systems.add(key)
        found = self.systems.get(key)
        for above in (folder, folder[:-1]):
            found = found or self.entry_systems.get(above)
        for above in (where.home, where.home[:-1]):
            summary = self.summaries.get(above)
            found = found or (summary.get(leaf) if summary else None)
        return found


def _unknown_round(where: LogPlace, context: Parts) -> str:
    """Return a label if no folder states a round: the folder around the organisations, else the source's."""
    around = where.home[:-1] or context
    return around[-1] if around else "unknown"


def _system_key(home: Parts, name: str) -> Parts:
    return (*home, name.casefold())


def _by_number(name: str) -> tuple[float, str]:
    number = log_number(name)
    return (math.inf if number is None else number, name)


def _benchmarks(folder: _Folder) -> dict[str | None, dict[str, LogFacts]]:
    """Return logs by benchmark: that of the folder, or if the layout has none, the one stated in each log."""
    if folder.place.benchmark is not None and (folder.place.system is not None or not folder.logs):
        return {folder.place.benchmark: folder.logs}
    groups: dict[str | None, dict[str, LogFacts]] = {}
    for name, log in folder.logs.items():
        groups.setdefault(log.submission.get("benchmark"), {})[name] = log
    return groups


def _round_of(folder: _Folder, logs: Iterable[LogFacts]) -> RoundLabel:
    """Return the round from the folders, else from a dialect of a single round, else the source's name."""
    if folder.place.round is None:
        dialects = {log.dialect for log in logs}
        if len(dialects) == 1:
            return _ROUND_OF_DIALECT.get(dialects.pop(), folder.label)
    return folder.label


def collect(sources: Sequence[SourceFacts], rejected: Tally) -> tuple[list[ResultEntry], int]:
    """Return the entries of all sources, in order, and the number of logs in none of them.

    An entry in two sources is taken from the first; rejections are counted in `rejected`.
    """
    found = _Round(rejected=rejected)
    neighbours: set[Parts] = set()
    for source in sources:
        known = set(found.systems)
        for path, fact in source.facts.items():
            found.add(source.context, path, fact)
        if not source.named:
            neighbours |= found.systems.keys() - known
    entries: dict[tuple[str, str, str | None], ResultEntry] = {}
    for parts, folder in sorted(found.folders.items(), key=lambda item: item[0]):
        if not folder.logs and (folder.place.system is None or folder.place.benchmark is None):
            continue  # a stray scaling.json or power log is not an entry
        for benchmark, logs in sorted(_benchmarks(folder).items(), key=lambda item: item[0] or ""):
            entry = _entry(found, parts, folder, benchmark, logs)
            key = (entry.round.label, entry.uri, benchmark)
            if key in entries:
                for name in logs:
                    found.refuse_log(
                        "duplicate_entry", f"{entry.uri}/{name}", "an entry read from another source"
                    )
            else:
                entries[key] = entry
    for unused in sorted(found.systems.keys() - found.used_systems - neighbours):
        detail = "described, but without an entry in these results"
        rejected.refuse("system_without_results", "/".join(unused[-2:]), detail)
    return list(entries.values()), found.num_runs_rejected


def _entry(
    found: _Round, parts: Parts, folder: _Folder, benchmark: str | None, logs: dict[str, LogFacts]
) -> ResultEntry:
    where = folder.place
    return ResultEntry(
        round=_round_of(folder, logs.values()),
        organisation=where.organisation,
        system_folder=where.system,
        benchmark=benchmark,
        uri="/".join(where.folder),
        system=found.system_of(parts, where),
        scaling=folder.scaling,
        logs=tuple(
            Log(
                name=name,
                facts=logs[name],
                nodes_w=tuple(folder.nodes_w.get(name.rpartition(".")[0], ())),
                switches_w=tuple(folder.switches_w.get(name.rpartition(".")[0], ())),
            )
            for name in sorted(logs, key=_by_number)
        ),
    )
