"""`equipoise.watch`: a user's own loop, from the first hook to its tables. Imports torch when loaded."""

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
    """A loader's batches, as the loop fetches them."""

    def __init__(self, loader: Iterable[Any], loop: Loop) -> None:
        """loop: what batches are marked on."""
        self._loader, self._loop = loader, loop

    def __len__(self) -> int:
        """How many there are, where the loader has a length."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """The batches; every pass is new."""
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
            # Also where the loop was left: whether its last step ended is known later, when none failed.
            loop.between()


# At most so much is lost when the process is killed.
_FLUSH_S = 5.0
# So often rank 0 says on standard error how far it is.
_SAY_EVERY_S = 30.0
# They are kept in memory, and a table has at most a million rows.
_MOST_STEPS = 100_000
# Of an update, over all ranks: as many as a record holds.
_MOST_SAMPLES = 2**53 - 1
# Steps that are profiled, by number, the same on every rank: within what is warm-up anyway.
_PROFILED = range(9, 13)
# So many steps are recorded before short ones are sampled: warm-up, and enough for medians of phases.
_ALL_RECORDED = 64
# What recording a step costs, and one among counted ones, for which hooks are put on and taken off: mostly by
# what they push out of caches. What both may cost of a step: docs/measure/watch.md.
_RECORDING_S, _RECORDING_ONE_S = 50 * MICROSECOND_S, 150 * MICROSECOND_S
_SHARE_OF_ALL, _SHARE_OF_SOME = 0.008, 0.002
_LEAST_RECORDED = 1 / 64


def recorded_share(step_s: float) -> float:
    """The share of steps that is recorded; the others are only counted.

    All where that costs no more than 0.8 % of a step, else so many that they cost 0.2 %. step_s: a step.
    Source: docs/measure/watch.md, what it does to your training.

    >>> recorded_share(0.01), round(recorded_share(0.003), 3), recorded_share(1e-6)
    (1.0, 0.04, 0.015625)
    """
    if _SHARE_OF_ALL * step_s >= _RECORDING_S:
        return 1.0
    return max(_LEAST_RECORDED, _SHARE_OF_SOME * step_s / _RECORDING_ONE_S)


def is_recorded(number: int, share: float) -> bool:
    """Whether the step of this number is among the share that is recorded.

    By a hash of the number: what a loop does every so many steps is met as often as it happens, and of two
    ranks the one with the smaller share records none that the other does not.
    Source: the finalizer of MurmurHash3 for 32 bits (Appleby, public domain). A checksum will not do: of
    every 11th step CRC-32 records a fifth more than of all.
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
    """What is seen of a training loop while the `with` block around it runs; its hooks are gone afterwards.

    model: wrapped or not, or several. out: a folder for the tables; without one nothing is written.
    name: of the workload; the model's class without it. num_steps: after so many updates every hook is
    removed. batch_samples: of an update over all ranks, where the batches do not show it. profiles: whether
    torch's profiler sees four steps of warm-up on several ranks; False where you profile yourself.
    Raises UsageError without torch, for what is no model or another value than stated, DataError where `out`
    cannot be written.
    """
    is_several = isinstance(model, Iterable) and not isinstance(model, nn.Module)
    models = list(model) if is_several else [model]
    wrong = [each for each in models if not isinstance(each, nn.Module)]
    if wrong or not models:
        found = type(wrong[0]).__name__ if wrong else "nothing"
        raise UsageError(f"watch: {found}; expected a torch.nn.Module, or several")
    if not (name is None or isinstance(name, str)):
        raise UsageError(f"watch: name={in_a_line(name)}; expected a text")
    num_steps = expect_whole("watch: num_steps", num_steps, most=_MOST_STEPS)
    if batch_samples is not None:
        batch_samples = expect_whole("watch: batch_samples", batch_samples, most=_MOST_SAMPLES)
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
    """A loop that is watched; made by `watch`. loop: what is marked, for callbacks of trainers."""

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
        """out: None to write nothing. Nothing is hooked before it is entered."""
        self.result: CombinedRun | None = None
        self._models, self._out = models, out
        self._name, self._num_steps, self._batch_samples = name, num_steps, batch_samples
        self._may_profile = profiles
        # The hooks of recorded steps alone are in `_marks`.
        self._hooks, self._marks = ExitStack(), ExitStack()
        self._on, self._place = hooks.device_of(models)
        self._clock = self._on.clock(self._place)
        self.loop = Loop(self._clock.now, on_step=self._on_step, on_first=self._note_forward)
        self._run = ""
        self._file: RankFile | None = None
        self._fresh: list[tuple[int, WatchedStep, bool]] = []
        self._steps: list[RecordedStep] = []
        self._number = 0
        # When the first steps ended: how long they take tells which of those to come are recorded.
        self._ends_s: list[float] = []
        self._share = 1.0
        self._next = 1

    def __enter__(self) -> Self:
        """Begin: hooks are attached, the file of this rank is made."""
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
        self._flushed_s = self._said_s = monotonic()
        self._begun = process_time(), perf_counter()
        self._use = core_use()
        self._hooks.enter_context(hooks.updates_seen(self.loop))
        self._marks.enter_context(hooks.phases_marked(self.loop, self._models))
        # Without another rank, what follows the last gradient is computing.
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
        """End: hooks are removed, what was seen is on disk, and rank 0 writes the tables."""
        self.end(error)

    def batches(self, loader: Iterable[Any]) -> Batches:
        """The batches of a loader; each update ends a step when the next batch is fetched.

        Raises UsageError outside of the `with` block, as the other methods do that count something.
        """
        self._expect_entered()
        return Batches(loader, self.loop)

    def fetches(self, loader: Any) -> None:  # noqa: ANN401 - a DataLoader, what wraps one, an iterator
        """Count as input what a torch DataLoader or an iterator takes, where other code iterates over it."""
        self._expect_entered()
        marked = hooks.iterator_marked if hasattr(loader, "__next__") else hooks.fetches_marked
        self._hooks.enter_context(marked(self.loop, loader))

    def calls(self, owner: Any, name: str) -> None:  # noqa: ANN401 - whatever has the method
        """Count a method as the forward pass."""
        self._expect_entered()
        within = partial(hooks.forward, self.loop, owner)
        self._hooks.enter_context(hooks.runs_within(owner, name, within))

    def pauses(self, owner: Any, name: str) -> None:  # noqa: ANN401 - whatever has the method
        """Count what a method takes to no step."""
        self._expect_entered()
        self._hooks.enter_context(hooks.runs_within(owner, name, self.loop.paused))

    def end_step(self) -> None:
        """End a step here, in a loop without `batches`; nothing where no update was made."""
        self.loop.cut()

    def paused(self) -> AbstractContextManager[None]:
        """A `with` block that belongs to no step: evaluation, checkpoints."""
        return self.loop.paused()

    def communication(self) -> AbstractContextManager[None]:
        """A `with` block that is communication nothing hides: averaging by hand, say."""
        return self.loop.communication()

    def summary(self) -> str:
        """Some lines on where the steps went, from what has been seen so far."""
        self._expect_entered()
        if self.result is None:
            self._flush()
            return summary(combine_ranks([self._record(RankEnd(exchanged=self._exchanged()))]))
        return summary(self.result)

    def end(self, error: BaseException | None = None) -> None:
        """What leaving the `with` block does; error: what it was left by."""
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
            self._gave_up(err)

    def _expect_entered(self) -> None:
        if not self._run:
            raise UsageError(
                "watch: not begun; use it as `with equipoise.watch(model) as watch:` around the loop"
            )

    def _cut_off(self) -> None:
        """The process ends within the loop, and the block was not left."""
        self.end(RuntimeError("the process ended within the loop"))

    def _on_step(self, step: WatchedStep | None) -> None:
        """Take a step that has ended, None where it was only counted."""
        self._number += 1
        if step is None:
            if self._number + 1 == self._next:
                self._record_steps()
            return
        self._fresh.append((self._number, step, self._profiles()))
        if self._gradients is not None and self._number < _PROFILED.stop:
            self._gradients.step_ended()
            if self._number == _PROFILED.stop - 1:
                self._gradients.settle()
        if self._number <= _ALL_RECORDED:
            self._ends_s.append(perf_counter())
            if self._number == _ALL_RECORDED:
                steps_s = [end - start for start, end in pairwise(self._ends_s[_ALL_RECORDED // 2 :])]
                self._share = recorded_share(median(steps_s))
        self._next = self._following(self._number)
        if self._next > self._number + 1:
            self._count_steps()
        if self._number >= self._num_steps:
            self._detach()
        if self.loop.is_over or monotonic() - self._flushed_s > _FLUSH_S:
            self._flush()

    def _following(self, number: int) -> int:
        """The next step that is recorded; the last one always is, which says that it was."""
        later = range(number + 1, self._num_steps)
        return next((each for each in later if is_recorded(each, self._share)), self._num_steps)

    def _count_steps(self) -> None:
        """From the next step on only count."""
        self.loop.is_counting = True
        self._marks.close()
        if self._gradients is not None:
            self._gradients.pause()

    def _record_steps(self) -> None:
        """From the next step on mark what it does."""
        self.loop.is_counting = False
        self._marks.enter_context(hooks.phases_marked(self.loop, self._models))
        if self._gradients is not None:
            self._gradients.go_on()

    def _profiles(self) -> bool:
        """Whether the step that has just ended was profiled; begins or ends that where it is time."""
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
        """Put what has been seen since the last time on disk."""
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
        if not self.loop.is_over and self._number and self._flushed_s - self._said_s > _SAY_EVERY_S:
            self._said_s = self._flushed_s
            if not self._about["rank"]:
                self._say_progress()

    def _say_progress(self) -> None:
        """One line on standard error: how many updates were seen, and how long until the last."""
        left_s = (perf_counter() - self._begun[1]) * (self._num_steps / self._number - 1)
        seen = f"{self._number:,} of at most {self._num_steps:,} updates seen"
        with suppress(OSError, ValueError):  # nobody reads it
            sys.stderr.write(f"equipoise.watch: {seen}, {format_duration(round(left_s))} left\n")
            sys.stderr.flush()

    def _write(self, lines: Sequence[RecordedStep | Mapping[str, Any]]) -> None:
        """Add lines to this rank's file; training goes on where that fails."""
        try:
            if self._file is not None:
                self._file.add(lines)
        except DataError as err:
            self._gave_up(err)

    def _exchanged(self) -> dict[str, float]:
        """Communication in profiled steps, and how long these took; empty where none was profiled."""
        splits = [step.seconds for step in self._steps if step.profiled]
        return exchanges_seen(self._profiled, splits, throughout=self._throughout) if self._profiled else {}

    def _record(self, end: RankEnd) -> RankRecord:
        """What this rank has seen, as its file would be read."""
        return RankRecord(about={**self._about, **self._forward_facts}, steps=self._steps, end=end)

    def _detach(self) -> None:
        self.loop.end()
        if self._profile is not None:
            self._profile.ended()
            self._profile = None
        self._marks.close()
        self._hooks.close()

    def _gave_up(self, err: DataError) -> None:
        """Training is worth more than its measurement: warn and write no more."""
        if self._file is not None:
            self._file.close()
        self._file = None
        warnings.warn(f"equipoise.watch: {err}; training continues without a record", stacklevel=2)


def _reason(error: BaseException | None) -> str | None:
    """Why the loop was left, where it failed; stopping it by hand is no failure."""
    if error is None or not isinstance(error, Exception):
        return None
    return f"raised {type(error).__name__}: {first_line(error)}"
