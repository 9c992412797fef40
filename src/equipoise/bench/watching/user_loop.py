"""`equipoise.watch`: watches a user's own training loop and writes its tables. Imports torch when loaded."""

import atexit
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, process_time
from types import TracebackType
from typing import Any, Self

from equipoise.bench.counters import core_use
from equipoise.bench.environment import usable_cores
from equipoise.bench.phases import EXPOSED, Loop, WatchedStep, phases_of
from equipoise.bench.watching import RankEnd, RankFile, RankRecord, RecordedStep, run_folder, runs_in
from equipoise.bench.watching.rows import CombinedRun, combine_ranks, summary, write_tables
from equipoise.errors import DataError, UsageError, expect_whole, first_line, in_a_line
from equipoise.files import one_path
from equipoise.runs import SWEEP_FILE
from equipoise.units import MICROSECOND_S, format_duration

try:
    from torch import nn

    from equipoise.bench.stopwatch import CommunicationProfile, GradientHooks, Profiled, exchanges_seen
    from equipoise.bench.watching import hooks
except ModuleNotFoundError as err:
    raise UsageError("watching a training loop needs torch: pip install 'equipoise[torch]'") from err


class Batches:
    """An iterable over a loader's batches that marks when they are fetched."""

    def __init__(self, loader: Iterable[Any], loop: Loop) -> None:
        """loop: the loop on which batches are marked."""
        self._loader, self._loop = loader, loop

    def __len__(self) -> int:
        """Return the number of batches, if the loader has a length."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of a new pass over the loader."""
        loop = self._loop
        loop.next_batch()
        following = iter(self._loader)
        try:
            for batch in following:
                if not loop.is_counting:
                    loop.batch_fetched(hooks.num_samples(batch))
                yield batch
                loop.next_batch()
            loop.begin_anew()
        finally:
            # Also if the loop was left early; whether its last step counts is decided when watching ends.
            loop.between()


# Steps are written at this interval, which bounds the loss if the process is killed.
_FLUSH_S = 5.0
# The interval at which rank 0 reports progress on standard error.
_PROGRESS_EVERY_S = 30.0
# Steps are held in memory, and a table has at most a million rows.
_MAX_STEPS = 100_000
# The maximum of an update's samples over all ranks, as in a record.
_MAX_SAMPLES = 2**53 - 1
# Numbers of the profiled steps, equal on every rank and within warm-up.
_PROFILED = range(9, 13)
# Steps recorded before short steps are sampled: warm-up, and enough for medians of phases.
_ALL_RECORDED = 64
# The cost of recording every step, and of one step among counted ones, which includes attaching and removing
# hooks; both mostly due to evicted caches. Then the allowed fractions of a step: docs/measure/watch.md.
_RECORDING_S, _RECORDING_ONE_S = 50 * MICROSECOND_S, 150 * MICROSECOND_S
_SHARE_OF_ALL, _SHARE_OF_SOME = 0.008, 0.002
_MIN_RECORDED = 1 / 64


def recorded_share(step_s: float) -> float:
    """Return the share of steps to record; the others are only counted.

    It is 1 if recording costs no more than 0.8 % of a step, otherwise recording costs 0.2 % on average.
    Source: docs/measure/watch.md, what it does to your training.

    >>> recorded_share(0.01), round(recorded_share(0.003), 3), recorded_share(1e-6)
    (1.0, 0.04, 0.015625)
    """
    if _SHARE_OF_ALL * step_s >= _RECORDING_S:
        return 1.0
    return max(_MIN_RECORDED, _SHARE_OF_SOME * step_s / _RECORDING_ONE_S)


def is_recorded(number: int, share: float) -> bool:
    """Return whether the step of this number is among the share that is recorded.

    Steps are chosen by a hash of the number, so that periodic work of the loop is sampled in proportion, and
    a rank with a smaller share records a subset of the steps of a rank with a larger share.
    Source: the finalizer of MurmurHash3 for 32 bits (Appleby, public domain). A checksum is not suitable: of
    every 11th step, CRC-32 records a fifth more than of all steps.
    """
    mixed = number % 2**32
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2**32
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 % 2**32
    return mixed ^ mixed >> 16 < share * 2**32


def watch(
    model: "nn.Module | Sequence[nn.Module]",
    *,
    out: str | Path | None = None,
    name: str | None = None,
    num_steps: int = 1000,
    batch_samples: int | None = None,
    profiles: bool = True,
) -> "Watch":
    """Watch the training loop in the `with` block; all hooks are removed afterwards.

    model: one or several models, wrapped or not. out: a folder for the tables; None to write nothing.
    name: of the workload; the model's class by default. num_steps: number of updates after which all hooks
    are removed. batch_samples: samples per update over all ranks, if the batches do not show it. profiles:
    whether torch's profiler records four warm-up steps if there are several ranks; set False if you profile
    yourself.
    Raises UsageError without torch or for invalid arguments, DataError if `out` cannot be written.
    """
    is_several = isinstance(model, Iterable) and not isinstance(model, nn.Module)
    models = list(model) if is_several else [model]
    wrong = [each for each in models if not isinstance(each, nn.Module)]
    if wrong or not models:
        found = type(wrong[0]).__name__ if wrong else "nothing"
        raise UsageError(f"watch: {found}; expected a torch.nn.Module, or several")
    if not (name is None or isinstance(name, str)):
        raise UsageError(f"watch: name={in_a_line(name)}; expected a text")
    num_steps = expect_whole("watch: num_steps", num_steps, most=_MAX_STEPS)
    if batch_samples is not None:
        batch_samples = expect_whole("watch: batch_samples", batch_samples, most=_MAX_SAMPLES)
    folder = None if out is None else one_path(out)
    if folder is not None and (folder / SWEEP_FILE).exists():
        raise UsageError(f"{folder}: holds a sweep; take another folder for watched runs")
    return Watch(
        models,
        folder,
        name=name,
        num_steps=num_steps,
        batch_samples=batch_samples,
        profiles=profiles,
    )


class Watch:
    """A watched loop, created by `watch`. loop: the loop that hooks and callbacks of trainers mark."""

    def __init__(
        self,
        models: "Sequence[nn.Module]",
        out: Path | None,
        *,
        name: str | None,
        num_steps: int,
        batch_samples: int | None,
        profiles: bool,
    ) -> None:
        """out: None to write nothing. No hook is attached before the `with` block."""
        self.result: CombinedRun | None = None
        self._models, self._out = models, out
        self._name, self._num_steps, self._batch_samples = name, num_steps, batch_samples
        self._may_profile = profiles
        # `_marks` has the hooks that are attached during recorded steps only.
        self._hooks, self._marks = ExitStack(), ExitStack()
        self._on, self._place = hooks.device_of(models)
        self._clock = self._on.clock(self._place)
        self.loop = Loop(self._clock.now, on_step=self._on_step, on_first=self._note_forward)
        self._run = ""
        self._file: RankFile | None = None
        self._fresh: list[tuple[int, WatchedStep, bool]] = []
        self._steps: list[RecordedStep] = []
        self._number = 0
        # End times of the first steps, whose duration decides which later steps are recorded.
        self._ends_s: list[float] = []
        self._share = 1.0
        self._next = 1

    def __enter__(self) -> Self:
        """Attach the hooks and create this rank's file."""
        rank, num_ranks = hooks.ranks()
        self._about = hooks.about(
            self._models,
            name=self._name,
            rank=rank,
            num_ranks=num_ranks,
            batch_samples=self._batch_samples,
        ) | {"num_steps": self._num_steps}
        before = [] if self._out is None or rank else runs_in(self._out)
        self._run = hooks.run_name(rank, num_ranks, after=before[-1].name if before else "")
        if self._out is not None:
            self._file = RankFile(run_folder(self._out, self._run), self._about)
        self._profile = CommunicationProfile(self._on) if num_ranks > 1 and self._may_profile else None
        self._profiled: Profiled | None = None
        self._forward_facts: dict[str, Any] = {}
        self._flushed_s = self._reported_s = monotonic()
        self._begun = process_time(), perf_counter()
        self._use = core_use()
        self._hooks.enter_context(hooks.updates_seen(self.loop))
        self._marks.enter_context(hooks.phases_marked(self.loop, self._models))
        # On a single rank, the time after the last gradient is not communication.
        self._alone = num_ranks == 1
        self._throughout = hooks.exchanges_throughout(self._models)
        self._gradients = None
        if not (self._alone or self._throughout):
            self._gradients = GradientHooks(hooks.trained_once(self._models), self.loop.ready)
            self._hooks.callback(self._gradients.release)
        atexit.register(self._cut_off)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the hooks, write the remaining steps, and on rank 0 write the tables."""
        self.end(error)

    def batches(self, loader: Iterable[Any]) -> Batches:
        """Iterate over a loader's batches; a step with an update ends when the next batch is fetched.

        Raises UsageError outside of the `with` block, as `fetches`, `calls`, `pauses` and `summary` do.
        """
        self._expect_entered()
        return Batches(loader, self.loop)

    def fetches(self, loader: Any) -> None:  # noqa: ANN401 - a DataLoader, what wraps one, an iterator
        """Count the time in a torch DataLoader or an iterator as input, if other code iterates over it."""
        self._expect_entered()
        marked = hooks.iterator_marked if hasattr(loader, "__next__") else hooks.fetches_marked
        self._hooks.enter_context(marked(self.loop, loader))

    def calls(self, owner: Any, name: str) -> None:  # noqa: ANN401 - whatever has the method
        """Count calls of a method as forward passes."""
        self._expect_entered()
        within = partial(hooks.forward, self.loop, owner)
        self._hooks.enter_context(hooks.runs_within(owner, name, within))

    def pauses(self, owner: Any, name: str) -> None:  # noqa: ANN401 - whatever has the method
        """Exclude the time in a method from all steps."""
        self._expect_entered()
        self._hooks.enter_context(hooks.runs_within(owner, name, self.loop.paused))

    def end_step(self) -> None:
        """End a step now, for a loop without `batches`; does nothing if no update was made."""
        self.loop.cut()

    def paused(self) -> AbstractContextManager[None]:
        """Return a context for code that belongs to no step: evaluation, checkpoints."""
        return self.loop.paused()

    def communication(self) -> AbstractContextManager[None]:
        """Return a context for exposed communication, such as averaging weights manually."""
        return self.loop.communication()

    def summary(self) -> str:
        """Return some lines on how the time of steps is spent, from the steps so far."""
        self._expect_entered()
        if self.result is None:
            self._flush()
            return summary(combine_ranks([self._record(RankEnd(exchanged=self._exchanged()))]))
        return summary(self.result)

    def end(self, error: BaseException | None = None) -> None:
        """Stop watching, as at the end of the `with` block. error: the exception that ended the block."""
        if not self._run or self.result is not None:
            return
        atexit.unregister(self._cut_off)
        if error is None:
            self.loop.cut()
        self._detach()
        self._flush()
        cpu_s, wall_s = process_time() - self._begun[0], perf_counter() - self._begun[1]
        use = core_use()
        end = RankEnd(
            memory_bytes=self._on.memory(self._place)["peak"],
            cpu_fraction=cpu_s / wall_s / len(usable_cores()),
            exchanged=self._exchanged(),
            reason=_reason(error),
            use=None if use is None or self._use is None else use.since(self._use),
        )
        self._write([{"end": end}])
        if self._file is not None:
            self._file.close()
        record = self._record(end)
        self.result = combine_ranks([record])
        if self._out is None or record.rank or self._file is None:
            return
        try:
            self.result = write_tables(self._out, self._run, wait=error is None)
        except DataError as err:
            self._stop_recording(err)

    def _expect_entered(self) -> None:
        if not self._run:
            raise UsageError(
                "watch: not begun; use it as `with equipoise.watch(model) as watch:` around the loop"
            )

    def _cut_off(self) -> None:
        """Stop watching because the process ends within the block."""
        self.end(RuntimeError("the process ended within the loop"))

    def _on_step(self, step: WatchedStep | None) -> None:
        """Handle a step that has ended; None if it was only counted."""
        self._number += 1
        if step is None:
            if self._number + 1 == self._next:
                self._record_steps()
            return
        self._fresh.append((self._number, step, self._update_profiling()))
        if self._gradients is not None and self._number < _PROFILED.stop:
            self._gradients.step_ended()
            if self._number == _PROFILED.stop - 1:
                self._gradients.settle()
        if self._number <= _ALL_RECORDED:
            self._ends_s.append(perf_counter())
            if self._number == _ALL_RECORDED:
                steps_s = [end - start for start, end in pairwise(self._ends_s[_ALL_RECORDED // 2 :])]
                self._share = recorded_share(median(steps_s))
        self._next = self._next_recorded(self._number)
        if self._next > self._number + 1:
            self._count_steps()
        if self._number >= self._num_steps:
            self._detach()
        if self.loop.is_over or monotonic() - self._flushed_s > _FLUSH_S:
            self._flush()

    def _next_recorded(self, number: int) -> int:
        """Return the next step to record; the last one is always recorded, to show the run is complete."""
        later = range(number + 1, self._num_steps)
        return next((each for each in later if is_recorded(each, self._share)), self._num_steps)

    def _count_steps(self) -> None:
        """Only count steps from the next one on."""
        self.loop.is_counting = True
        self._marks.close()
        if self._gradients is not None:
            self._gradients.pause()

    def _record_steps(self) -> None:
        """Record steps from the next one on."""
        self.loop.is_counting = False
        self._marks.enter_context(hooks.phases_marked(self.loop, self._models))
        if self._gradients is not None:
            self._gradients.go_on()

    def _update_profiling(self) -> bool:
        """Start or stop profiling if due; return whether the step that has just ended was profiled."""
        if self._profile is None:
            return False
        if self._number == _PROFILED.start - 1 and not self._profile.begin():
            self._profile = None
        if self._number == _PROFILED.stop - 1 and self._profile is not None:
            self._profiled = self._profile.ended()
        return self._number in _PROFILED and self._profile is not None

    def _note_forward(self, model: Any) -> None:  # noqa: ANN401 - a module
        self._forward_facts = hooks.facts_of_forward(model, self._on)

    def _flush(self) -> None:
        """Write the steps since the last flush to disk."""
        unmeasured = {EXPOSED: 0.0} if self._alone else {}
        steps = [
            RecordedStep(
                step=number,
                batches=step.num_batches,
                samples=step.num_samples,
                profiled=profiled,
                seconds=unmeasured | phases_of(step, self._clock.moments),
            )
            for number, step, profiled in self._fresh
        ]
        self._fresh.clear()
        self._steps += steps
        self._write([{"stated": self._forward_facts}, *steps])
        self._flushed_s = monotonic()
        if not self.loop.is_over and self._number and self._flushed_s - self._reported_s > _PROGRESS_EVERY_S:
            self._reported_s = self._flushed_s
            if not self._about["rank"]:
                self._report_progress()

    def _report_progress(self) -> None:
        """Print a line on standard error with the number of updates so far and the time left."""
        left_s = (perf_counter() - self._begun[1]) * (self._num_steps / self._number - 1)
        seen = f"{self._number:,} of at most {self._num_steps:,} updates seen"
        with suppress(OSError, ValueError):  # standard error is closed
            sys.stderr.write(f"equipoise.watch: {seen}, {format_duration(round(left_s))} left\n")
            sys.stderr.flush()

    def _write(self, lines: Sequence[RecordedStep | Mapping[str, Any]]) -> None:
        """Append lines to this rank's file; if that fails, training continues without a record."""
        try:
            if self._file is not None:
                self._file.add(lines)
        except DataError as err:
            self._stop_recording(err)

    def _exchanged(self) -> dict[str, float]:
        """Return the communication in profiled steps and their time; empty if none was profiled."""
        splits = [step.seconds for step in self._steps if step.profiled]
        return exchanges_seen(self._profiled, splits, throughout=self._throughout) if self._profiled else {}

    def _record(self, end: RankEnd) -> RankRecord:
        """Return this rank's record, as it would be read from its file."""
        return RankRecord(about={**self._about, **self._forward_facts}, steps=self._steps, end=end)

    def _detach(self) -> None:
        self.loop.end()
        if self._profile is not None:
            self._profile.ended()
            self._profile = None
        self._marks.close()
        self._hooks.close()

    def _stop_recording(self, err: DataError) -> None:
        """Warn and write nothing further, because training matters more than its measurement."""
        if self._file is not None:
            self._file.close()
        self._file = None
        warnings.warn(f"equipoise.watch: {err}; training continues without a record", stacklevel=2)


def _reason(error: BaseException | None) -> str | None:
    """Return the reason of a failure; None if there was none, or if the loop was interrupted by hand."""
    if error is None or not isinstance(error, Exception):
        return None
    return f"raised {type(error).__name__}: {first_line(error)}"
