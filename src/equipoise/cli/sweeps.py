"""The runs of `bench`: a plan from its options, their progress, and the search of `--find`."""

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import partial
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec import Struct, field

from equipoise.bench.counters import MOST_OTHERS, core_use, others_fraction
from equipoise.bench.devices import AvailableDevices, available_devices
from equipoise.bench.devices import device as device_kind
from equipoise.bench.launchers import Launcher
from equipoise.bench.summary import write_sweep_tables
from equipoise.bench.sweep import AdaptiveSweep, planned, run_sweep
from equipoise.bench.training import known_name, method
from equipoise.bench.trial import Store, Trial, stores_in
from equipoise.cli.app import printable
from equipoise.cli.output import progress_line, say
from equipoise.diagnose.method_search import (
    EXACT,
    FoundMethod,
    MethodSpace,
    default_methods,
    effect,
    one_device_trials,
    tuned,
)
from equipoise.diagnose.sweeps import Swept, sweep_now
from equipoise.errors import DataError, EquipoiseError, UsageError
from equipoise.runs import SEARCH_FILE, SWEEP_FILE, Progress
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.torch_model.factory import refuse_code
from equipoise.units import format_percent, plural

_MOST_VALUES = 100
_MOST_TRIALS = 100_000
_MOST_RANKS = 1_000_000
_MOST_BATCH = 1_000_000_000
# A host with many cores is only divided into ranks with one core each if --sizes requests it.
_MOST_DEFAULT_RANKS = 8
_WHOLE = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?(e[0-9]{1,2})?", re.IGNORECASE)


def trials_of(
    *,
    workloads: tuple[str, ...],
    sizes: str | None,
    batches: str,
    strategies: str,
    precisions: str,
    device: str,
    binds_here: bool,
    **rest: Any,  # noqa: ANN401 - as `planned` has them
) -> tuple[Trial, ...]:
    """The trials of the sweep. sizes, batches, strategies, precisions: lists, as typed.

    binds_here: whether ranks run on this machine. rest: the other arguments of `planned`.
    Raises UsageError for unknown names, batches that ranks cannot share, or more ranks than devices.
    """
    for workload in workloads:
        _refuse_unknown(workload)
    methods = _items(strategies, "--strategy")
    for text in methods:
        method(text)
    here = available_devices(device)
    if binds_here and not here.num_devices:
        raise UsageError(f"--device {device}: {device_kind(here.device).why_not() or 'none was found here'}")
    counts = _sizes(sizes, here if binds_here else None)
    trials = tuple(
        trial
        for precision in _items(precisions, "--precision")
        for trial in planned(
            workloads=workloads,
            methods=methods,
            sizes=counts,
            batches=[_whole(item, "--batch", _MOST_BATCH) for item in _items(batches, "--batch")],
            precision=precision,
            device=here.device,
            **rest,
        )
    )
    if len(trials) > _MOST_TRIALS:
        raise UsageError(
            f"{len(trials):,} runs; a sweep has at most {_MOST_TRIALS:,}: "
            "reduce --sizes, --batch, --strategy or --repeat"
        )
    return trials


def stored_plan(folder: Path, *, allow_code: bool) -> tuple[tuple[Trial, ...], dict[str, str]]:
    """The trials and settings of the sweep in a folder. Raises DataError if there is none.

    allow_code: the plan may name the user's code, which is not imported if all trials are finished.
    """
    store = Store(folder)
    if not store.has_plan:
        raise UsageError(f"{folder}: holds no sweep; expected the folder of a sweep, or a workload to train")
    trials = store.plan()
    if not allow_code and not store.holds_all(trials):
        refuse_code((trial.workload for trial in trials), where=folder / SWEEP_FILE)
    return trials, store.settings()


def name_of(trials: Sequence[Trial]) -> str:
    """The default folder name of a plan; equal plans have equal names."""
    names = "\n".join(sorted(trial.trial_id for trial in trials))
    workload = "".join(char if char.isalnum() else "-" for char in trials[0].workload)[:40]
    return f"bench-{workload}-{sha256(names.encode()).hexdigest()[:8]}"


def _refuse_unknown(workload: str) -> None:
    """Reject an unknown workload before any worker is started."""
    if not known_name(workload):
        module = workload.partition(":")[0].partition(".")[0]
        if not module.isidentifier() or PathFinder.find_spec(module, [str(Path.cwd()), *sys.path]) is None:
            raise UsageError(
                f"{workload!r}: no module {module!r} here; expected module:function, such as train:model "
                "for def model() in train.py of this directory"
            )


def _sizes(listed: str | None, here: AvailableDevices | None) -> tuple[int, ...]:
    """Numbers of ranks. here: the devices of this machine; None if ranks run on other machines."""
    if listed is None:
        most = min(here.num_devices, _MOST_DEFAULT_RANKS) if here else 2
        return tuple(_doubled(1, max(1, most)))
    text = listed.strip()
    continued = text.endswith("..")
    sizes = [_whole(item, "--sizes", _MOST_RANKS) for item in _items(text.removesuffix(".."), "--sizes")]
    if continued:
        if here is None:
            raise UsageError(f"--sizes {listed}: this launcher's devices are not known here; name every size")
        sizes += [size for size in _doubled(max(sizes), here.num_devices) if size not in sizes]
    if here is not None and max(sizes) > here.num_devices:
        kind = "cores" if here.device == "cpu" else "accelerators"
        raise UsageError(
            f"--sizes {max(sizes)}: this machine has {here.num_devices} {kind} to give each rank one; "
            "take smaller --sizes"
        )
    return tuple(dict.fromkeys(sizes))


def _doubled(first: int, most: int) -> list[int]:
    """The doublings of a size up to `most`."""
    sizes = []
    while first <= most:
        sizes.append(first)
        first *= 2
    return sizes


def _items(listed: str, option: str) -> list[str]:
    """The distinct items of a comma-separated list."""
    items = list(dict.fromkeys(item.strip() for item in listed.split(",") if item.strip()))
    if not items or len(items) > _MOST_VALUES:
        raise UsageError(f"{option} {listed!r}: expected 1 to {_MOST_VALUES} values, with commas between")
    return items


def _whole(item: str, option: str, most: int) -> int:
    number = Decimal(item) if _WHOLE.fullmatch(item) else Decimal(0)
    if not 1 <= number <= most or number % 1:
        raise UsageError(f"{option} {item!r}: expected whole numbers from 1 to {most:,}, such as 1,2,4")
    return int(number)


def strategies(given: str | None, *, exact_only: bool) -> str:
    """The methods to search: the given ones, or the defaults.

    Raises UsageError if only exact methods are requested and none of the given ones is exact.
    """
    if given is None:
        return ",".join(default_methods(exact_only=exact_only))
    named = [item.strip() for item in given.split(",") if item.strip()]
    kept = [item for item in named if not exact_only or effect(item) == EXACT]
    if not kept:
        raise UsageError(f"--exact: none of {given} is exact; ddp, static_graph and fsdp are")
    return ",".join(kept)


def swept(
    trials: Sequence[Trial],
    folder: Path,
    settings: Mapping[str, str],
    *,
    start: Callable[[], Launcher],
    limit_s: float,
    resume: bool,
    catalogue: Catalogue,
) -> Swept:
    """Run the sweep to its end; if it is interrupted or fails, report the finished trials.

    start: creates the launcher; only called if trials are left to run.
    """
    store = Store(folder)
    # A complete sweep can be shown again, even on machines that cannot train.
    if not (resume and store.holds_all(trials)):
        launch_with = start()
        if launch_with.binds_here:
            warn_of_others()
        with (
            resumable(folder, len(trials), partial(write_sweep_tables, folder, catalogue)),
            trial_progress(trials, store) as progress,
        ):
            run_sweep(
                trials,
                folder,
                launch_with,
                limit_s=limit_s,
                resume=resume,
                progress=progress,
                settings=settings,
            )
    write_sweep_tables(folder, catalogue)
    return sweep_now(folder)


def search_for_methods(
    trials: Sequence[Trial],
    folder: Path,
    launch_with: Launcher,
    *,
    num_trials: int,
    num_repetitions: int,
    limit_s: float,
    resume: bool,
    catalogue: Catalogue,
) -> FoundMethod:
    """Search for the fastest method among the trials of a sweep and one device.

    num_trials: limit on runs on several ranks. num_repetitions: of the best few. The tables of all runs are
    written even if the search is interrupted.

    Raises UsageError for trials that are not a single search, and as `tuned`.
    """
    if len({(trial.workload, trial.precision) for trial in trials}) != 1:
        raise UsageError("--find: expected one workload and one precision; each needs a separate search")
    if any(trial.train_samples is not None or trial.arm > 1 for trial in trials):
        raise UsageError("--find times steps: it goes with neither --train nor --aa")
    first = trials[0]
    space = MethodSpace(
        workload=first.workload,
        methods=tuple(dict.fromkeys(trial.method for trial in trials if trial.num_ranks > 1)),
        sizes=tuple(sorted({1, *(trial.num_ranks for trial in trials)})),
        batches=tuple(sorted({trial.batch_samples for trial in trials})),
        precision=first.precision,
        device=first.device,
        backend=device_kind(first.device).backend,
        num_steps=first.num_steps,
    )
    most = len(one_device_trials(space)) + num_trials
    if launch_with.binds_here:
        warn_of_others()
    save = partial(write_sweep_tables, folder, catalogue)
    with resumable(folder, None, save), progress_line() as line:

        def show(what: str, _done: int, _total: int) -> None:
            line.update(what, _num_kept(folder), most)

        sweep = AdaptiveSweep(
            folder=folder,
            launch_with=launch_with,
            limit_s=limit_s,
            most_ranks=max(space.sizes),
            progress=show,
        )
        found = tuned(
            space,
            sweep,
            num_trials=num_trials,
            num_repetitions=num_repetitions,
            resume=resume,
        )
    save()
    return found


class Pace(Struct):
    """Durations of finished runs, by number of ranks, for estimating the remaining time.

    trial: the current trial. since_s: its start on the monotonic clock.
    """

    took_s: dict[int, list[float]] = field(default_factory=dict)
    trial: Trial | None = None
    since_s: float = 0.0

    def next(self, trial: Trial | None) -> None:
        """End the current run, if any, and begin another, if `trial` is not None."""
        now_s = time.monotonic()
        if self.trial is not None:
            self.add(self.trial, now_s - self.since_s)
        self.trial, self.since_s = trial, now_s

    def add(self, trial: Trial, seconds: float) -> None:
        """Record the duration of a run."""
        self.took_s.setdefault(trial.num_ranks, []).append(seconds)

    def left_s(self, rest: Sequence[Trial]) -> float | None:
        """Estimated seconds for the remaining runs; None before the first has ended.

        Assumes that runs on equally many ranks take equally long, and other runs the mean of all.
        Source: definition.
        """
        everything = [seconds for each in self.took_s.values() for seconds in each]
        if not everything:
            return None
        return sum(fmean(self.took_s.get(trial.num_ranks, everything)) for trial in rest)


def trial_text(trial: Trial) -> str:
    """A trial as one line of text."""
    return (
        f"{trial.workload}, {trial.method} on {trial.num_ranks} at batch {trial.batch_samples}, "
        f"repetition {trial.repetition}"
    )


@contextmanager
def trial_progress(trials: Sequence[Trial], store: Store) -> Iterator[Progress]:
    """Context with the progress of a sweep on standard error; yields the function that reports progress."""
    named = {trial.trial_id: trial for trial in trials}
    pace = Pace()
    with progress_line() as line:

        def show(what: str, done: int, total: int) -> None:
            trial = named.get(what)
            if trial is not None or done == total:
                pace.next(trial)
            left_s = pace.left_s([each for each in trials if not store.has(each)])
            line.update(trial_text(trial) if trial else what, done, total, left_s=left_s)

        yield show


# Time to observe the load of cores before measuring; long enough for the resolution of the clock.
_LOOK_S = 0.3


def warn_of_others() -> None:
    """Warn on standard error if other programs use the cores to be measured."""
    before = core_use()
    time.sleep(_LOOK_S)
    now = core_use()
    if before is None or now is None:
        return
    taken = others_fraction([("", now.since(before))]) or 0.0
    if taken > MOST_OTHERS:
        say(
            f"equipoise: this machine is busy: other programs take {format_percent(taken)} of "
            f"{plural(len(now.cores), 'core')}, so times may be too long\n"
        )


def _num_kept(folder: Path) -> int:
    """The number of finished runs of a sweep or search on disk."""
    return sum(each.num_finished() for each in stores_in(folder))


@contextmanager
def resumable(
    folder: Path, num_trials: int | None, save: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Context that reports stored runs and the resuming command if a sweep or search is interrupted or fails.

    num_trials: total number, or None if unknown. save: called first, to write tables of the stored runs.
    """
    try:
        yield
    except (KeyboardInterrupt, DataError, OSError):
        num_kept = _num_kept(folder)
        # An error while saving would hide the error that stopped the sweep.
        with suppress(EquipoiseError, OSError):
            if num_kept:
                save()
        of = "" if num_trials is None else f" of {num_trials}"
        stored = f"{num_kept}{of} runs are stored in {folder}"
        if any((folder / name).exists() for name in (SWEEP_FILE, SEARCH_FILE)):
            say(f"{printable(stored)}; to continue: {printable(resuming_command(sys.argv[1:]))}\n")
        raise


def resuming_command(arguments: Sequence[str]) -> str:
    """The shell command that resumes a sweep. arguments: of the command that started it.

    >>> resuming_command(["bench", "mlp", "--out", "my runs"])
    "equipoise bench --resume mlp --out 'my runs'"
    """
    verb, *rest = arguments
    return shlex.join(("equipoise", verb, *(() if "--resume" in rest else ("--resume",)), *rest))
