"""Watched runs from the files of their ranks: combined runs, their tables, and the state of running ones."""

import os
import stat
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

import polars as pl
from msgspec import Struct

from equipoise.bench.counters import MOST_OTHERS, others_fraction
from equipoise.bench.phases import (
    EXPOSED,
    INPUT,
    OPTIMIZER,
    PARTS,
    REST,
    STEP,
    TOTAL,
    overlapped_fraction,
    with_exchanges,
)
from equipoise.bench.summary import (
    CHECKED_EVERY,
    MOST_WARM_UP,
    WINDOW_STEPS,
    accelerator_of,
    is_steady,
    outliers,
    run_row,
    spread_of_steps,
    step_rows,
    uneven,
    write,
)
from equipoise.bench.trial import SUCCESS, WATCHED, is_held
from equipoise.bench.watching import RankRecord, RecordedStep, rank_record, rank_records, run_folder, runs_in
from equipoise.errors import DataError
from equipoise.files import one_path
from equipoise.runs.store import RUNS, STEPS
from equipoise.units import MIB, MILLISECOND_S, format_si, plural, whole_percent


class CombinedRun(Struct, frozen=True, kw_only=True):
    """One run of all its ranks, as in the tables.

    steps: seconds by phase of each step that counts, on its slowest rank; their numbers are in `numbers`.
    num_unlike: steps excluded because their number of batches or samples differs from most, for example after
    a skipped update or at the end of the data. num_counted: updates between recorded steps that some rank did
    not record, because most short steps are only counted. missing_ranks: ranks without a file.
    num_samples: per step, over all ranks; None if batches were not observed or a rank is missing.
    others_cpu_fraction: fraction of the ranks' cores used by other programs; None if a rank did not report
    it.
    """

    about: Mapping[str, Any]
    steps: Sequence[Mapping[str, float]]
    numbers: Sequence[int]
    num_warm_up: int
    is_steady: bool
    num_unlike: int
    num_counted: int
    num_batches: int
    num_samples: int | None
    missing_ranks: Sequence[int]
    num_nodes: int
    others_cpu_fraction: float | None

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the run."""
        return int(self.about["num_ranks"])

    @property
    def batch_samples(self) -> int | None:
        """Samples per step over all ranks, as stated or else as observed."""
        stated: int | None = self.about["batch_samples"]
        return stated or self.num_samples

    @property
    def strategy(self) -> str | None:
        """The training method, by the sweep's names; None on one rank, or if not known."""
        found: str | None = self.about.get("strategy")
        if found == "ddp" and self.num_batches > 1:
            found = f"accumulate:{self.num_batches}"
        return found if self.num_ranks > 1 else None


def combine_ranks(records: Sequence[RankRecord]) -> CombinedRun:
    """Return the run recorded by these ranks; steps that some rank did not record are left out.

    Assumes all ranks count the same updates, as when they train one model together.
    Source: the same definitions as for the sweep's timed steps; docs/measure/watch.md.
    """
    first = records[0]
    by_number = [{step.step: step for step in record.steps} for record in records]
    common = sorted(set.intersection(*(set(steps) for steps in by_number)))
    profiled = {number for steps in by_number for number in common if steps[number].profiled}
    series = [number for number in common if number not in profiled]
    num_warm_up, steady = _warm_up([max(steps[n].seconds[STEP] for steps in by_number) for n in series])
    timed = series[num_warm_up:]
    usual = [_most_common_size([steps[number] for number in timed]) for steps in by_number]
    like = [
        number
        for number in timed
        if all(_size(steps[number]) == size for steps, size in zip(by_number, usual, strict=True))
    ]
    shares = [_communication(record) for record in records]
    missing = sorted(set(range(first.num_ranks)) - {record.rank for record in records})
    samples = sum(size[1] for size in usual)
    return CombinedRun(
        about=first.about,
        steps=[_slowest([steps[n].seconds for steps in by_number], shares) for n in like],
        numbers=like,
        num_warm_up=num_warm_up + sum(number < (timed or [0])[0] for number in profiled),
        is_steady=steady,
        num_unlike=len(timed) - len(like),
        num_counted=common[-1] - common[0] + 1 - len(common) if common else 0,
        num_batches=usual[0][0],
        num_samples=samples if samples and not missing else None,
        missing_ranks=missing,
        num_nodes=len({record.host for record in records}),
        others_cpu_fraction=_others(records) if not missing else None,
    )


def _others(records: Sequence[RankRecord]) -> float | None:
    """Return the fraction of the ranks' cores used by other programs; None if a rank did not report."""
    uses = [
        (record.host, record.end.use)
        for record in records
        if record.end is not None and record.end.use is not None
    ]
    return others_fraction(uses) if len(uses) == len(records) else None


def _warm_up(step_s: Sequence[float]) -> tuple[int, bool]:
    """Return the number of warm-up steps, and whether steps were steady after them.

    step_s: (n_steps,), on the slowest rank. A run too short to become steady keeps its second half.
    """
    for num_first in range(WINDOW_STEPS, min(MOST_WARM_UP + 1, len(step_s)), CHECKED_EVERY):
        if is_steady(step_s[:num_first]):
            return num_first, True
    return min(MOST_WARM_UP, len(step_s) // 2), False


def _size(step: RecordedStep) -> tuple[int, int]:
    return step.batches, step.samples


def _most_common_size(steps: Sequence[RecordedStep]) -> tuple[int, int]:
    """Return the most common number of batches and samples per step."""
    found = Counter(map(_size, steps)).most_common(1)
    return found[0][0] if found else (0, 0)


def _communication(record: RankRecord) -> Mapping[str, float]:
    """Return the communication in profiled steps, the input of `with_exchanges`; empty if not profiled."""
    if record.num_ranks == 1:
        return {"communication_s": 0.0, "step_s": 1.0}
    return {} if record.end is None else record.end.exchanged


def _slowest(
    splits: Sequence[Mapping[str, float]], shares: Sequence[Mapping[str, float]]
) -> Mapping[str, float]:
    """Return the phases on the slowest rank, with total communication if it was profiled."""
    split, share = max(zip(splits, shares, strict=True), key=lambda each: each[0][STEP])
    return with_exchanges(split, share)


# Phases with a smaller share of the step are not reported as a possible gain.
_WORTH_FRACTION = 0.1

_NAMES = {EXPOSED: "exposed communication"}
_WAYS = {
    EXPOSED: "larger batches, accumulated gradients, compression: {bench} measures them",
    INPUT: "more workers or prefetching in the data loader",
    OPTIMIZER: "an optimizer with fused=True or foreach=True",
    REST: "fewer .item(), prints and logs per step",
}


def summary(watched: CombinedRun) -> str:
    """Return lines for a terminal; step time and rate are from the mean over the steps that count."""
    if not watched.steps:
        return (
            "No step was seen after warm-up: iterate over seen.batches(loader), or call seen.end_step() "
            "after each update, for a few dozen steps."
        )
    step_s = [step[STEP] for step in watched.steps]
    shares = shares_of(watched)
    lines = [_headline(watched, step_s), _split(shares)]
    hidden = overlapped_fraction(shares.get(EXPOSED), shares.get(TOTAL))
    if hidden is not None:
        lines.append(
            f"  communication runs {whole_percent(shares[TOTAL])} of the time, {whole_percent(hidden)} of it "
            "overlapped with computation"
        )
    lines += [f"  {line}" for line in gains(shares, watched)]
    return "\n".join([*lines, *_notes(watched, step_s)])


def gains(shares: Mapping[str, float], watched: CombinedRun) -> list[str]:
    """Return a line on the possible gain for each phase with a relevant share of the step.

    shares: fractions of the step time by phase.
    Assumes the other phases are unchanged. Source: Amdahl 1967.
    """
    workload = watched.about["workload"]
    model = workload if ":" in (workload or "") else "MODULE:FUNCTION"
    sizes = f"--sizes 1,{watched.num_ranks}"
    batch = f" --batch {watched.batch_samples}" if watched.batch_samples else ""
    bench = f"equipoise bench {model} {sizes}{batch} --strategy ddp,accumulate:4,fp16"
    return [
        f"without {_NAMES.get(name, name)} a step is at most {1 / (1 - share):.2f} times as fast: "
        f"{way.format(bench=bench)}"
        for name, way in _WAYS.items()
        if _WORTH_FRACTION <= (share := shares.get(name, 0.0)) < 1
    ]


def _headline(watched: CombinedRun, step_s: list[float]) -> str:
    found = spread_of_steps(step_s)
    step = f"{found.value / MILLISECOND_S:.3g} ms"
    if found.low is not None and found.high is not None:
        step += f" ({found.low / MILLISECOND_S:.3g} to {found.high / MILLISECOND_S:.3g})"
    samples = watched.batch_samples
    rate = f", {samples} samples each, {format_si(samples / found.value)} samples/s" if samples else ""
    ranks = "1 rank" if watched.num_ranks == 1 else f"{watched.num_ranks} ranks"
    return f"{watched.about['workload']} on {ranks}: {plural(len(step_s), 'step')} of {step}{rate}"


def shares_of(watched: CombinedRun) -> dict[str, float]:
    """Return each phase's fraction of the total time of the steps that count; PARTS sum to 1."""
    whole_s = sum(step[STEP] for step in watched.steps)
    named = [name for name in (*PARTS, TOTAL) if all(name in step for step in watched.steps)]
    return {name: sum(step[name] for step in watched.steps) / whole_s for name in named}


def _split(shares: dict[str, float]) -> str:
    words = [
        f"{_NAMES.get(name, name)} {whole_percent(share)}" for name, share in shares.items() if name != TOTAL
    ]
    return "  " + ", ".join(words)


def _notes(watched: CombinedRun, step_s: list[float]) -> list[str]:
    """Return lines with caveats."""
    notes = [
        f"warm-up {plural(watched.num_warm_up, 'step')}, {plural(sum(outliers(step_s)), 'outlier')} kept"
    ]
    if not watched.is_steady:
        notes.append("NOT steady: step times still had a trend")
    others = watched.others_cpu_fraction or 0.0
    if others > MOST_OTHERS:
        notes.append(f"machine busy: other programs took {whole_percent(others)} of the cores")
    if watched.num_unlike:
        notes.append(f"{plural(watched.num_unlike, 'step')} of another size excluded")
    if watched.num_counted:
        notes.append(f"{plural(watched.num_counted, 'step')} between them only counted")
    if watched.missing_ranks and watched.about["rank"]:
        notes.append(f"of rank {watched.about['rank']} only; rank 0 reports all ranks")
    elif watched.missing_ranks:
        notes.append(f"ranks {', '.join(map(str, watched.missing_ranks))} wrote nothing to this folder")
    found = [f"  {'; '.join(notes)}"]
    factor = uneven(step_s)
    if factor is not None:
        usual = f"{median(step_s) / MILLISECOND_S:.3g} ms"
        found.insert(
            0, f"  some steps stalled: on average they took {factor:.1f} times their median of {usual}"
        )
    return found


# Ranks end at about the same time; a rank that does not end within this time has died.
_END_S = 10.0
_POLL_S = 0.02


class WatchedTables(Struct, frozen=True, kw_only=True):
    """The tables `runs` and `steps` of a folder."""

    runs: pl.DataFrame
    steps: pl.DataFrame


def write_tables(out: Path, run: str, *, wait: bool) -> CombinedRun:
    """Write the tables of every run in the folder, and return the combined run.

    wait: whether to wait up to _END_S for ranks that have not ended. Raises DataError as `summary.write`
    does.
    """
    folder = run_folder(out, run)
    deadline = time.monotonic() + (_END_S if wait else 0.0)
    records = rank_records(folder)
    while not all(record.end for record in records) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        records = rank_records(folder)
    write_all(out)
    return combine_ranks(records)


def watched(out: str | Path) -> WatchedTables:
    """Return the tables of every watched run in a folder, rebuilt from the files of its ranks.

    Killed runs are included; a run that cannot be read causes a warning. Raises UsageError if `out` is not a
    path, DataError if no run can be read.
    """
    folder = one_path(out)
    if not runs_in(folder):
        raise DataError(f"{folder}: no run was watched into it; expected a folder `watched`")
    write_all(folder)
    runs, steps = (pl.read_parquet(folder / f"{table.name}.parquet") for table in (RUNS, STEPS))
    return WatchedTables(runs=runs, steps=steps)


def write_all(out: Path) -> None:
    """Write the tables of every watched run in a folder; warn of runs that cannot be read.

    Raises DataError as `summary.write` does, and if no run can be read.
    """
    runs: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    refused: list[DataError] = []
    for folder in runs_in(out):
        try:
            records = rank_records(folder)
            watched = combine_ranks(records)
        except DataError as err:  # e.g. killed at its start
            refused.append(err)
            continue
        row = _run(watched, records, folder)
        runs.append(row)
        steps += step_rows(row["run_id"], watched.steps)
    if refused and not runs:
        raise refused[0]
    for why in refused:
        warnings.warn(f"left out of the tables: {why}", stacklevel=2)
    write(out, runs, steps)


def _run(watched: CombinedRun, records: Sequence[RankRecord], folder: Path) -> dict[str, Any]:
    about = watched.about
    campaign = folder.parent.parent.resolve().name
    batch_samples = watched.batch_samples
    step_s = fmean(step[STEP] for step in watched.steps) if watched.steps else None
    return run_row(
        {
            "run_id": f"{campaign}/{folder.name}",
            "campaign": campaign,
            "system": about["conditions"].get("host"),
            "workload": about["workload"],
            "accelerator": accelerator_of(about["device"], about["conditions"]),
            "num_accelerators": watched.num_ranks,
            "num_nodes": watched.num_nodes,
            "framework": "pytorch",
            "precision": about.get("precision"),
            "strategy": watched.strategy,
            "global_batch_samples": batch_samples,
            "status": _status(watched, records),
            "samples_per_s": batch_samples / step_s if batch_samples and step_s else None,
            "source_uri": f"{folder.parent.name}/{folder.name}/rank-0.jsonl",
        }
    )


TRAINING = "training"


def _status(watched: CombinedRun, records: Sequence[RankRecord], *, is_alive: bool = False) -> str:
    """Return `success`, `training` or the failure; steps recorded before a failure remain valid."""
    if is_alive and not all(record.end for record in records):
        return TRAINING
    for record in records:
        if not record.end:
            return f"failed: rank {record.rank} did not finish"
        if record.end.reason:
            return f"failed: rank {record.rank} {record.end.reason}"
    if not watched.steps:
        return "failed: no step was seen after warm-up"
    return SUCCESS


MOST_RUNS = 20
MOST_RANKS = 64
_MOST_BYTES = 4 * MIB
_LIVE_BYTES = 8192
# Without file locks, a rank is considered alive if it has written within this time: it writes every five
# seconds, or once per step if steps are longer.
_SILENT_S = 15.0
_MOST_ENTRIES = 4096


class RunFiles(Struct, frozen=True, kw_only=True):
    """The files of one run, rank-N.jsonl, by number; `ranks` has at most MOST_RANKS of `num_files`.

    changed_s: time of the last write. is_alive: whether a process has locked a file or recently written to
    one.
    """

    folder: Path
    ranks: tuple[Path, ...]
    num_files: int
    num_bytes: int
    changed_s: float
    is_alive: bool

    @property
    def stamp(self) -> str:
        """A text that changes whenever the run's files change."""
        return f"{self.folder.name}:{self.num_files}:{self.num_bytes}:{self.changed_s}:{self.is_alive}"


class RunNow(Struct, frozen=True, kw_only=True):
    """The current state of one run.

    status: `success`, `training`, or the failure. is_whole: whether every rank and every step was read.
    """

    files: RunFiles
    records: tuple[RankRecord, ...]
    watched: CombinedRun
    status: str
    is_whole: bool

    @property
    def is_running(self) -> bool:
        """Return whether the run is still training."""
        return self.status == TRAINING


def runs_files(out: Path) -> tuple[tuple[RunFiles, ...], int]:
    """Return the newest watched runs in a folder, at most MOST_RUNS, and the number of further runs."""
    names: list[str] = []
    with suppress(OSError), os.scandir(out / WATCHED) as found:
        names = sorted(
            (each.name for each in islice(found, _MOST_ENTRIES) if each.is_dir(follow_symlinks=False)),
            reverse=True,
        )
    files = tuple(run_files(out / WATCHED / name) for name in names[:MOST_RUNS])
    return files, len(names) - len(files)


def run_files(folder: Path) -> RunFiles:
    """Return the files of the run in a folder."""
    found: list[tuple[int, Path, os.stat_result]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for each in islice(entries, _MOST_ENTRIES):
            number = each.name.removeprefix("rank-").removesuffix(".jsonl")
            if each.name == f"rank-{number}.jsonl" and number.isascii() and number.isdecimal():
                with suppress(OSError):
                    status = each.stat()
                    if stat.S_ISREG(status.st_mode):  # opening anything else may wait forever
                        found.append((int(number[:9]), Path(each.path), status))
    found.sort(key=lambda each: each[:2])
    changed_s = max((status.st_mtime for _, _, status in found), default=0.0)
    ranks = tuple(path for _, path, _ in found[:MOST_RANKS])
    return RunFiles(
        folder=folder,
        ranks=ranks,
        num_files=len(found),
        num_bytes=sum(status.st_size for _, _, status in found),
        changed_s=changed_s,
        is_alive=any(_is_alive(path, status) for _, path, status in found[:MOST_RANKS]),
    )


def _is_alive(path: Path, status: os.stat_result) -> bool:
    """Return whether a process has locked the file, or has recently written to it without ending."""
    if is_held(path):
        return True
    if not 0.0 <= time.time() - status.st_mtime < _SILENT_S:
        return False
    try:
        with path.open("rb") as file:
            file.seek(max(0, status.st_size - _LIVE_BYTES))
            return not file.read(_LIVE_BYTES).rstrip(b"\n").rpartition(b"\n")[2].startswith(b'{"end"')
    except OSError:
        return False


def run_now(files: RunFiles) -> RunNow:
    """Return the current state of a run. Raises DataError if a file is damaged or there is none."""
    if not files.ranks:
        raise DataError(f"{files.folder}: no rank wrote a file; expected rank-0.jsonl")
    each_bytes = _MOST_BYTES // len(files.ranks)
    records = tuple(rank_record(path, most_bytes=each_bytes) for path in files.ranks)
    if len({record.rank for record in records}) < len(records):
        raise DataError(f"{files.folder}: two files of one rank; delete the run's folder")
    watched = combine_ranks(records)
    return RunNow(
        files=files,
        records=records,
        watched=watched,
        status=_status(watched, records, is_alive=files.is_alive),
        is_whole=files.num_files == len(files.ranks) and all(record.is_whole for record in records),
    )


def row_now(now: RunNow) -> dict[str, Any]:
    """Return the row of `runs` for the current state; a running one is treated as if it ended now."""
    row = _run(now.watched, now.records, now.files.folder)
    return {**row, "status": SUCCESS} if now.is_running and now.watched.steps else row


def latest_step(files: RunFiles) -> tuple[int, bool] | None:
    """Return the latest step in the first rank's file and whether it is the final one; None before one."""
    try:
        record = rank_record(files.ranks[0], most_bytes=_LIVE_BYTES) if files.ranks else None
    except DataError:
        return None
    if record is None or not record.steps:
        return None
    latest = record.steps[-1].step
    return latest, latest == record.about["num_steps"]
