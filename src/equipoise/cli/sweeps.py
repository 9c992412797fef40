"""What `bench` runs: its options as a plan of runs, their progress, and the search of `--find`."""

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from statistics import fmean

from msgspec import Struct, field

from equipoise.bench.devices import AvailableDevices, available_devices, device
from equipoise.bench.launchers import Launcher
from equipoise.bench.methods import method
from equipoise.bench.models import known_name
from equipoise.bench.store import Store
from equipoise.bench.sweep import AdaptiveSweep, Progress, Scaling, planned
from equipoise.bench.trial import Trial
from equipoise.cli.output import printable
from equipoise.diagnose.method_search import EXACT, FoundMethod, MethodSpace, default_methods, effect, tuned
from equipoise.errors import DataError, EquipoiseError, UsageError
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.torch_model.factory import refuse_code
from equipoise.units import format_duration

_MOST_VALUES = 100
_MOST_TRIALS = 100_000
_MOST_RANKS = 1_000_000
_MOST_BATCH = 1_000_000_000
# A host with many cores is not cut into ranks of one core each unless --sizes requests it.
_MOST_DEFAULT_RANKS = 8
_WHOLE = re.compile(r"[0-9]{1,12}")


class SweepOptions(Struct, frozen=True, kw_only=True):
    """The options as they were given: lists are still text. binds_here: whether ranks run on this machine."""

    workloads: tuple[str, ...]
    sizes: str | None
    batches: str
    strategies: str
    precisions: str
    scaling: Scaling
    device: str
    binds_here: bool
    num_repetitions: int
    num_steps: int
    train_samples: int | None
    learning_rate: float | None
    num_arms: int


def trials_of(options: SweepOptions) -> tuple[Trial, ...]:
    """The trials of the sweep.

    Raises UsageError for what no trial can be made of: unknown names, batches that ranks cannot share, more
    ranks than devices.
    """
    for workload in options.workloads:
        _refuse_unknown(workload)
    methods = _items(options.strategies, "--strategy")
    for text in methods:
        method(text)
    here = available_devices(options.device)
    sizes = _sizes(options.sizes, here if options.binds_here else None)
    trials = tuple(
        trial
        for precision in _items(options.precisions, "--precision")
        for trial in planned(
            workloads=options.workloads,
            methods=methods,
            sizes=sizes,
            batches=[_whole(item, "--batch", _MOST_BATCH) for item in _items(options.batches, "--batch")],
            num_repetitions=options.num_repetitions,
            precision=precision,
            num_steps=options.num_steps,
            scaling=options.scaling,
            num_arms=options.num_arms,
            device=here.device,
            train_samples=options.train_samples,
            learning_rate=options.learning_rate,
        )
    )
    if len(trials) > _MOST_TRIALS:
        raise UsageError(
            f"{len(trials)} runs; a sweep has at most {_MOST_TRIALS}: "
            "reduce --sizes, --batch, --strategy or --repeat"
        )
    return trials


def stored_plan(folder: Path, *, allow_code: bool) -> tuple[tuple[Trial, ...], dict[str, str]]:
    """The trials and settings of the sweep that a folder holds. Raises DataError when it holds none.

    allow_code: the plan may name code of the user.
    """
    store = Store(folder)
    if not (folder / "sweep.json").exists():
        raise UsageError(f"{folder}: holds no sweep; expected the folder of a sweep, or a workload to train")
    trials = store.plan()
    if not allow_code:
        refuse_code((trial.workload for trial in trials), where=folder / "sweep.json")
    return trials, store.settings()


def _refuse_unknown(workload: str) -> None:
    """Refuse a workload that no worker could find, before any is started."""
    if not known_name(workload):
        module = workload.partition(":")[0].partition(".")[0]
        if not module.isidentifier() or PathFinder.find_spec(module, [str(Path.cwd()), *sys.path]) is None:
            raise UsageError(
                f"{workload!r}: no module {module!r} here; expected module:function, such as train:model "
                "for def model() in train.py of this directory"
            )


def _sizes(listed: str | None, here: AvailableDevices | None) -> tuple[int, ...]:
    """Numbers of ranks. here: the devices they have to share; None where other machines have them."""
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
    """A size doubled until it would pass the most."""
    sizes = []
    while first <= most:
        sizes.append(first)
        first *= 2
    return sizes


def _items(listed: str, option: str) -> list[str]:
    """The parts of a list, each once."""
    items = list(dict.fromkeys(item.strip() for item in listed.split(",") if item.strip()))
    if not items or len(items) > _MOST_VALUES:
        raise UsageError(f"{option} {listed!r}: expected 1 to {_MOST_VALUES} values, with commas between")
    return items


def _whole(item: str, option: str, most: int) -> int:
    if not _WHOLE.fullmatch(item) or not 1 <= int(item) <= most:
        raise UsageError(f"{option} {item!r}: expected whole numbers from 1 to {most:,}, such as 1,2,4")
    return int(item)


class SearchLimits(Struct, frozen=True, kw_only=True):
    """How to look: runs on several ranks, repetitions of the best few, whether only for what is exact."""

    num_trials: int
    num_repetitions: int
    exact_only: bool


def strategies(given: str | None, *, exact_only: bool) -> str:
    """The ways to train that are searched: those named, or those searched by default.

    Raises UsageError where none of those named is exact and only such are wanted.
    """
    if given is None:
        return ",".join(default_methods(exact_only=exact_only))
    named = [item.strip() for item in given.split(",") if item.strip()]
    kept = [item for item in named if not exact_only or effect(item) == EXACT]
    if not kept:
        raise UsageError(f"--exact: none of {given} is exact; ddp, static_graph and fsdp are")
    return ",".join(kept)


def search_for_methods(
    trials: Sequence[Trial],
    folder: Path,
    launch_with: Launcher,
    limits: SearchLimits,
    *,
    limit_s: float,
    resume: bool,
) -> FoundMethod:
    """The fastest way that was found among the trials of a sweep, and one device alone.

    Raises UsageError for what is no one search, and as `tuned`.
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
        backend=device(first.device).backend,
        num_steps=first.num_steps,
    )
    sweep = AdaptiveSweep(
        folder=folder,
        launch_with=launch_with,
        limit_s=limit_s,
        most_ranks=max(space.sizes),
        progress=_show if sys.stderr.isatty() else None,
    )
    return tuned(
        space,
        sweep,
        num_trials=limits.num_trials,
        num_repetitions=limits.num_repetitions,
        resume=resume,
    )


def _show(what: str, done: int, total: int) -> None:
    """Say on standard error what is being run."""
    if what and done < total:
        sys.stderr.write(f"{printable(what)}\n")


class Pace(Struct):
    """What runs took, by number of ranks, and what the rest may take."""

    took_s: dict[int, list[float]] = field(default_factory=dict)

    def add(self, trial: Trial, seconds: float) -> None:
        """Remember what one run took."""
        self.took_s.setdefault(trial.num_ranks, []).append(seconds)

    def left_s(self, rest: Sequence[Trial]) -> float | None:
        """Seconds that the rest may take, each as the mean of its like; None before any has ended.

        Assumes runs of as many ranks take equally long; others as the mean of all.
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
def progress_bar(trials: Sequence[Trial], store: Store) -> Iterator[Progress | None]:
    """A bar on standard error, fed by what it gives; None when that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    named = {trial.trial_id: trial for trial in trials}
    pace, running = Pace(), _RunningBar()
    columns = (
        BarColumn(bar_width=12),
        TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task("", total=len(trials), left="")

        def show(what: str, done: int, total: int) -> None:
            trial = named.get(what)
            if trial is not None or done == total:
                running.next(trial, pace)
            left_s = pace.left_s([each for each in trials if not store.has(each)])
            left = "" if left_s is None else f"{format_duration(left_s)} left"
            label = trial_text(trial) if trial else what
            bar.update(task, description=escape(printable(label)), completed=done, total=total, left=left)

        yield show


class _RunningBar(Struct):
    """The run that is under way, and since when."""

    trial: Trial | None = None
    since_s: float = 0.0

    def next(self, trial: Trial | None, pace: Pace) -> None:
        """One has ended, if one ran; another begins, if it is not None."""
        now_s = time.monotonic()
        if self.trial is not None:
            pace.add(self.trial, now_s - self.since_s)
        self.trial, self.since_s = trial, now_s


@contextmanager
def saving_tables(store: Store, *, num_trials: int, catalogue: Catalogue | None = None) -> Iterator[None]:
    """Where a sweep is interrupted or cannot go on: its tables written, and how to go on printed."""
    try:
        yield
    except (KeyboardInterrupt, DataError, OSError):
        _save_tables(store, num_trials, catalogue)
        raise


def _save_tables(store: Store, num_trials: int, catalogue: Catalogue | None) -> None:
    from equipoise.bench.tables import write_sweep_tables
    from equipoise.report.format import plural

    # The reason why the sweep stopped is shown; a second one of the same kind would hide it.
    with suppress(EquipoiseError, OSError):
        if store.finished():
            write_sweep_tables(store.folder, catalogue)
    num_kept = store.num_finished()
    if not num_kept:
        return
    runs = plural(num_trials, "run")
    folder = printable(str(store.folder))
    sys.stderr.write(
        f"{num_kept} of {runs} are stored in {folder}; the same command with --resume continues\n"
    )
    sys.stderr.flush()
