"""A user's timed collectives: which runs apply to a machine and its groups of ranks; why others do not."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from equipoise.bench.collectives import CollectiveRun
from equipoise.calibration.collective_runs import cluster_of_device, is_like, num_nodes_of, thinned
from equipoise.calibration.collective_verdicts import LARGE_BYTES, RINGS, expect_runs
from equipoise.errors import SpecError, UsageError
from equipoise.files import file_names
from equipoise.notes import Note
from equipoise.perfmodel.collectives import NOISE_LOG_SD, OPERATIONS, Timings, timings
from equipoise.perfmodel.load import Numbers
from equipoise.perfmodel.machine import Group
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import Accelerator
from equipoise.units import format_count, plural

_SHOWN = 60
_MOST_FILES = 3


class TimedCollectives(Struct, frozen=True, kw_only=True):
    """Contents of files of timed collectives. notes: what was rejected, one sentence each.

    catalogue: for resolving the names of devices.
    """

    runs: tuple[CollectiveRun, ...]
    notes: tuple[Note, ...] = ()
    catalogue: Catalogue = field(default_factory=shipped)


def given_collectives(files: Sequence[Path], catalogue: Catalogue) -> TimedCollectives:
    """Read files written by nccl-tests, rccl-tests or `collectives --measure --out`.

    Raises DataError for a file that cannot be read, EvidenceError if no row of any file can be used.
    """
    from equipoise.bench.collectives.files import read_files  # noqa: PLC0415 - only where files are given

    reading = read_files(files)
    expect_runs(reading)
    refused = tuple(
        Note(f"{plural(each['count'], 'row')}: {each['first']}.", "not_used")
        for each in reading.rejected.rows()
    )
    return TimedCollectives(
        runs=reading.runs,
        notes=(*refused, *(Note(f"{each}.") for each in reading.notes)),
        catalogue=catalogue,
    )


def refuse_unnamed(given: TimedCollectives, accelerators: Sequence[str]) -> None:
    """Raise UsageError if there are several accelerators and a file does not name its own."""
    kinds = set(accelerators)
    unnamed = next((run for run in given.runs if not names_accelerator(run, given.catalogue)), None)
    if unnamed is not None and len(kinds) > 1:
        raise UsageError(
            f"--collectives {unnamed.file}: it names no known accelerator, and the question has "
            f"{len(kinds)}: give only the one it was timed on"
        )


def names_accelerator(run: CollectiveRun, catalogue: Catalogue) -> bool:
    """Whether a run names its accelerator by a known name."""
    return run.device is not None and _chip(run.device, catalogue) is not None


def _reason_not_applicable(run: CollectiveRun, chip: Accelerator, catalogue: Catalogue) -> str | None:
    """Why a run does not apply to an accelerator; None if it does."""
    if run.operation not in OPERATIONS:
        return f"{run.operation} is not an operation of the model"
    if run.num_copies > 1:
        return f"{run.num_copies} copies of the program ran at once and disturbed each other"
    if run.num_ranks < 2:  # noqa: PLR2004 - one never talks
        return "one rank: no data were sent"
    if run.backend == "gloo" and chip.kind != "cpu":
        return "timed between processors (gloo)"
    found = None if run.device is None else _chip(run.device, catalogue)
    if found is not None and not is_like(found.slug, chip.slug) and run.backend != "gloo":
        return f"timed on {found.title}"
    return None


def _chip(device: str, catalogue: Catalogue) -> Accelerator | None:
    """The accelerator that a program names, possibly within other words; None if unknown."""
    try:
        found = cluster_of_device(device, 1, catalogue)
    except SpecError:
        return None
    return None if found is None else found.accelerator


def _caveats(run: CollectiveRun, nodes: Cluster, catalogue: Catalogue) -> list[str]:
    """Caveats of a run that is used, as text that follows the name of its file."""
    remarks = []
    title = nodes.accelerator.title
    if run.device is None:
        remarks.append(f" names no accelerator: {title} is assumed.")
    elif not names_accelerator(run, catalogue):
        remarks.append(f" names {run.device[:_SHOWN]!r}, which is not known: {title} is assumed.")
    size, ranks = nodes.node_size, run.num_ranks
    if run.num_nodes is None and ranks > size:
        remarks.append(
            f" does not say on how many hosts its {format_count(ranks)} ranks are: "
            f"{format_count(size)} per host are assumed."
        )
    if run.num_nodes == 1 and ranks > size:
        remarks.append(
            f" has {format_count(ranks)} ranks on one host, the cluster has {format_count(size)} "
            "per node: its times are used for links inside a node."
        )
    return remarks


# More sizes add no information and are thinned evenly.
MOST_SIZES = 200


class TimedOperation(Struct, frozen=True, kw_only=True):
    """One operation over one group: sizes in ascending order, with the median time of each; (n_sizes,)."""

    operation: str
    group: Group
    payload_bytes: Numbers
    seconds: Numbers
    log_error: Numbers
    spread: float
    runs: tuple[CollectiveRun, ...]

    @property
    def is_inside(self) -> bool:
        """Whether the group is inside one node."""
        return float(self.group.num_nodes) <= 1

    def points(self) -> Timings | None:
        """The points to which the law is fitted; None if the law does not apply to them."""
        kept = (self.operation in RINGS) | (self.payload_bytes >= LARGE_BYTES)
        if not kept.any():
            return None
        return timings(
            self.operation,
            self.payload_bytes[kept],
            self.seconds[kept],
            ranks_per_node=self.group.ranks_per_node,
            num_nodes=self.group.num_nodes,
            log_error=self.log_error[kept],
        )


def timed_operations(
    given: TimedCollectives, nodes: Cluster
) -> tuple[tuple[TimedOperation, ...], tuple[Note, ...]]:
    """The operations timed on a cluster, in order, and notes on runs that do not apply or contradict others.

    Runs of one operation over one group are combined, whatever the order of files. A file that names no
    accelerator is assumed to be from this one.
    """
    together: dict[tuple[str, float, float], list[CollectiveRun]] = defaultdict(list)
    notes: dict[Note, list[str]] = defaultdict(list)  # text that follows the names of files: the files
    for run in given.runs:
        name = run.file.rpartition("/")[2]
        reason = _reason_not_applicable(run, nodes.accelerator, given.catalogue)
        if reason is not None:
            notes[Note(f" for {nodes.accelerator.title}: {reason}.", "not_used")].append(name)
            continue
        for remark in _caveats(run, nodes, given.catalogue):
            notes[Note(remark)].append(name)
        num_nodes = num_nodes_of(run, nodes)
        together[run.operation, run.num_ranks / num_nodes, float(num_nodes)].append(run)
    of_runs = (
        Note(f"{file_names(tuple(dict.fromkeys(names)), _MOST_FILES)}{behind.words}", behind.kind)
        for behind, names in notes.items()
    )
    found = (
        _operation(name, Group(ranks_per_node=ranks, num_nodes=num_nodes), together[name, ranks, num_nodes])
        for name, ranks, num_nodes in sorted(together)
    )
    return tuple(found), (*of_runs, *given.notes)  # a whole file before rows of it


def _operation(name: str, group: Group, runs: Sequence[CollectiveRun]) -> TimedOperation:
    rows = [
        (float(timing.payload_bytes), seconds, timing.resolution)
        for run in runs
        for timing in run.timings
        for seconds in timing.seconds
    ]
    payload, seconds, resolution = np.array(rows).T
    sizes = thinned(np.unique(payload), MOST_SIZES)
    at_size = [payload == size for size in sizes]
    medians = np.array([np.median(seconds[each]) for each in at_size])
    left = np.concatenate(
        [np.log(seconds[each] / middle) for each, middle in zip(at_size, medians, strict=True)]
    )
    return TimedOperation(
        operation=name,
        group=group,
        payload_bytes=sizes,
        seconds=medians,
        log_error=np.array([np.median(resolution[each]) for each in at_size]),
        spread=float(np.hypot(NOISE_LOG_SD, np.sqrt(np.mean(left**2)))),
        runs=tuple(runs),
    )
