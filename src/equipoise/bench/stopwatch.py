"""Times marked steps on a device's clock, splits them into phases, profiles communication. Needs torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from equipoise.bench.devices import DeviceKind
from equipoise.bench.phases import (
    BACKWARD,
    COMMUNICATION,
    EXPOSED,
    FORWARD,
    INPUT,
    OPTIMIZER,
    STEP,
    Span,
    parts,
    uncovered_s,
    with_exchanges,
    with_total,
    without_exposed,
)
from equipoise.bench.trace.activity import communicates, computes_on_host, host_operation
from equipoise.bench.training import Trainee
from equipoise.bench.training.steps import TrainingStep
from equipoise.intervals import covered_s
from equipoise.units import MICROSECOND_S


class ProfileEvent(Struct, frozen=True, kw_only=True):
    """A span of a profile, on a thread of the host or on the device.

    is_annotation: whether it only labels the spans nested in it.
    """

    name: str
    span: Span
    on_device: bool = False
    thread: int = 0
    is_annotation: bool = False


class Profiled(Struct, frozen=True, kw_only=True):
    """Seconds in which a collective ran, and the part of them in which nothing was computed."""

    communication_s: float
    exposed_s: float


def profiled(events: Iterable[ProfileEvent]) -> Profiled:
    """Return the communication in a profile, from a device's kernels or a CPU backend's threads.

    Assumes one rank's events. A device's collective counts from its launch, including any wait for other
    ranks; a CPU backend's collective counts from when its thread starts it.
    Source: names of kernels, trace/activity.py.
    """
    every = list(events)
    on_device = any(event.on_device for event in every)
    if on_device:
        kernels = [event for event in every if event.on_device and not event.is_annotation]
        communicating = [event.span for event in kernels if communicates(event.name)]
        computing = [event.span for event in kernels if not communicates(event.name)]
    else:
        # Copies on the backend's threads are part of communication.
        threads = {event.thread for event in every if host_operation(event.name)}
        communicating = [event.span for event in every if host_operation(event.name)]
        computing = [
            event.span for event in every if event.thread not in threads and computes_on_host(event.name)
        ]
    return Profiled(
        communication_s=covered_s(communicating), exposed_s=uncovered_s(communicating, by=computing)
    )


def exchanges_seen(
    seen: Profiled, splits: Sequence[Mapping[str, float]], *, throughout: bool
) -> dict[str, float]:
    """Return the input of `with_exchanges`; empty without steps. throughout: both passes exchange."""
    if not splits:
        return {}
    found = {"communication_s": seen.communication_s, "step_s": sum(split[STEP] for split in splits)}
    if throughout:
        found["exposed_s"] = seen.exposed_s
        found["passes_s"] = sum(split[FORWARD] + split[BACKWARD] for split in splits)
    return found


class CommunicationProfile:
    """Measures communication from `begin` to `ended` with torch's profiler."""

    def __init__(self, on: DeviceKind) -> None:
        """on: the device whose activities are recorded."""
        self._on = on
        self._profile: Any = None

    def begin(self) -> bool:
        """Start profiling unless another profiler runs; return whether it started."""
        if torch.autograd._profiler_enabled():  # noqa: SLF001 - torch has no public equivalent
            return False
        self._profile = profile(activities=[getattr(ProfilerActivity, name) for name in self._on.activities])
        self._profile.start()
        return True

    def ended(self) -> Profiled | None:
        """Return the communication since `begin`; None if nothing was profiled."""
        if self._profile is None:
            return None
        self._on.synchronise()
        self._profile.stop()
        events, self._profile = self._profile.events(), None
        return profiled(
            ProfileEvent(
                name=event.name,
                span=(event.time_range.start * MICROSECOND_S, event.time_range.end * MICROSECOND_S),
                on_device=event.device_type.name == "CUDA",
                thread=event.thread,
                is_annotation=bool(getattr(event, "is_user_annotation", None)),
            )
            for event in events
        )


# When a method communicates: outside both passes, in the backward pass (gradients), or in both (weights too).
APART, BACKWARDS, THROUGHOUT = "apart", "backwards", "throughout"

# The cost of marks in a short step, mostly due to evicted caches, and their allowed share of all steps:
# docs/measure/phases.md.
_MARKS_S = 300 * MICROSECOND_S
_MARKS_SHARE = 0.003
# Phases of fewer marked cycles would be too noisy.
_MIN_MARKED = 4


class Lap(NamedTuple):
    """One timed step: names and timestamps of its marks, timestamps of gradients, its end, and host seconds.

    Without names it was timed as a whole. Splitting is deferred, because it takes time.
    """

    names: Sequence[str]
    stamps: Sequence[Any]
    ready: Sequence[Any]
    end: Any
    host_s: float

    @property
    def is_marked(self) -> bool:
        """Return whether the step can be split into phases."""
        return bool(self.names)


def marked_every(step_s: float, num_steps: int, period: int) -> int:
    """Return n, where marking one of every n cycles costs no more than 0.3 %.

    step_s: seconds of one step. period: steps per cycle. At least four cycles are marked if there are that
    many.
    Source: docs/measure/phases.md, what it costs.

    >>> marked_every(0.001, 400, 1), marked_every(0.001, 20, 1), marked_every(0.02, 20, 1)
    (100, 5, 5)
    """
    wanted = ceil(_MARKS_S / (_MARKS_SHARE * step_s))
    return max(1, min(wanted, num_steps // period // _MIN_MARKED))


class GradientHooks:
    """Calls back when gradients are ready: at first all, later only those that were last in some step.

    After the last gradient of a backward pass, ranks only wait for communication. last: the parameters whose
    gradients were last in some step, by id.
    """

    def __init__(self, parameters: Iterable[Any], ready: Callable[[], None]) -> None:
        """ready: called when a gradient is ready."""
        self.last: dict[int, Any] = {}
        self._parameters = list(parameters)
        self._ready = ready
        self._latest: Any = None
        self._handles: list[Any] = []
        self.observe_all()

    def observe_all(self) -> None:
        """Observe every gradient from now on, and which is the last."""

        def note(parameter: object) -> None:
            self._latest = parameter
            self._ready()

        self._observe(self._parameters, note)

    def settle(self) -> None:
        """Observe only gradients that were last in some step from now on."""
        self._observe(list(self.last.values()), lambda _parameter: self._ready())

    def release(self) -> None:
        """Observe no gradients from now on."""
        self._observe((), lambda _parameter: None)

    def step_ended(self) -> None:
        """Record which gradient of the step was the last."""
        if self._latest is not None:
            self.last[id(self._latest)] = self._latest
            self._latest = None

    def _observe(self, parameters: Sequence[Any], hook: Callable[[Any], None]) -> None:
        self._observed, self._hook = parameters, hook
        self.pause()
        self.go_on()

    def pause(self) -> None:
        """Stop observing until `go_on`."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def go_on(self) -> None:
        """Resume observing after a pause."""
        self._handles = [each.register_post_accumulate_grad_hook(self._hook) for each in self._observed]


class Stopwatch:
    """Runs steps one at a time, each until the device is done, and records when its phases begin."""

    def __init__(self, step: TrainingStep, subject: Trainee, on: DeviceKind, *, num_ranks: int) -> None:
        """Observe every gradient until `settle` is called, to find those that are ready last."""
        self._on, self._step, self._batches = on, step, subject.batches
        self._clock = on.clock()
        self.exchanges = exchanges(step, num_ranks)
        self._parameters = [each for each in subject.model.parameters() if each.requires_grad]
        # Marks of the current step.
        self._names: list[str] = []
        self._stamps: list[Any] = []
        self._ready: list[Any] = []
        observed = self._parameters if self.exchanges == BACKWARDS else ()
        self._gradients = GradientHooks(observed, self._note_gradient)
        self._settled: set[int] = set()
        self.observe_all, self.release = self._gradients.observe_all, self._gradients.release
        step.marks.append(self._mark)

    def _mark(self, name: str) -> None:
        self._names.append(name)
        self._stamps.append(self._clock.now())

    def _note_gradient(self) -> None:
        self._ready.append(self._clock.now())

    def settle(self) -> None:
        """Observe only gradients that were last in some step from now on."""
        self._settled = set(self._gradients.last)
        self._gradients.settle()

    def run(self, num_steps: int, *, every: int = 1, period: int = 1) -> list[Lap]:
        """Run steps and return their laps; the first of every `every` cycles of `period` steps is marked."""
        if every == 1:
            return [self._run_marked() for _ in range(num_steps)]
        found: list[Lap] = []
        group = every * period
        for first in range(0, num_steps, group):
            num_marked = min(period, num_steps - first)
            found += [self._run_marked() for _ in range(num_marked)]
            self._step.marks.remove(self._mark)
            self._gradients.pause()
            found += self._run_unmarked(min(group, num_steps - first) - num_marked)
            self._step.marks.append(self._mark)
            self._gradients.go_on()
        return found

    def _run_marked(self) -> Lap:
        self._names, self._stamps, self._ready = [], [], []
        start_s = perf_counter()
        self._mark(INPUT)
        self._step.run(next(self._batches))
        end = self._clock.now()
        self._on.synchronise()
        host_s = perf_counter() - start_s
        self._gradients.step_ended()
        return Lap(self._names, self._stamps, self._ready, end, host_s)

    def _run_unmarked(self, num_steps: int) -> list[Lap]:
        """Run steps without marks, each until the device is done."""
        run, batches, synchronise = self._step.run, self._batches, self._on.synchronise
        ends = [perf_counter()]
        for _ in range(num_steps):
            run(next(batches))
            synchronise()
            ends.append(perf_counter())
        return [Lap((), (), (), None, end - start) for start, end in pairwise(ends)]

    def split(self, lap: Lap) -> dict[str, float]:
        """Return the seconds of a step by phase, which sum to it; only its total if it was not marked.

        The step ends when the host observes that the device is done.
        """
        if not lap.is_marked:
            return {STEP: lap.host_s}
        moments = self._clock.moments([*lap.stamps, *lap.ready, lap.end])
        marks = list(zip(lap.names, moments, strict=False))
        # Backward passes that only accumulate gradients do not communicate, so they have no exposed part.
        ready = moments[len(marks) : -1] if self.exchanged(lap) else ()
        found = parts(marks, max(moments[-1], lap.host_s), ready)
        return found if self.exchanges == THROUGHOUT else {EXPOSED: 0.0, **found}

    def slowest_s(self, laps: Sequence[Lap]) -> list[float]:
        """Return the seconds of each step on the slowest rank; all ranks must call."""
        place = self._parameters[0].device if self._parameters else "cpu"
        seconds = torch.tensor([lap.host_s for lap in laps], dtype=torch.float64, device=place)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        found: list[float] = seconds.tolist()
        return found

    def exchanged(self, lap: Lap) -> bool:
        """Return whether ranks communicated in that step; a step that only accumulates gradients does not."""
        return (COMMUNICATION if self.exchanges == APART else OPTIMIZER) in lap.names

    def with_communication(
        self, timed: Sequence[Lap], profiled: Sequence[Lap], seen: Profiled
    ) -> list[Mapping[str, float]]:
        """Return the phases of timed steps, with total communication taken from the profiled steps.

        Steps without exchanges have no communication. If exchanges are marked (APART), they are all of it.
        With BACKWARDS, the last gradients of profiled steps must equal those of the warm-up. Otherwise the
        model trains different weights in different steps, and exposed communication is unknown.
        """
        shown = exchanges_seen(
            seen,
            [self.split(lap) for lap in profiled if self.exchanged(lap)],
            throughout=self.exchanges == THROUGHOUT,
        )
        is_unknown = self.exchanges == BACKWARDS and set(self._gradients.last) != self._settled
        found = []
        for lap in timed:
            split: Mapping[str, float] = self.split(lap)
            if lap.is_marked and is_unknown:
                split = without_exposed(split)
            elif lap.is_marked and self.exchanged(lap) and self.exchanges != APART:
                split = with_exchanges(split, shown)
            elif lap.is_marked:
                split = with_total(split, total_s=0.0, step_s=1.0)
            found.append(split)
        return found


def exchanges(step: TrainingStep, num_ranks: int) -> str:
    """Return when a method communicates: APART, BACKWARDS or THROUGHOUT."""
    if num_ranks == 1:
        return APART
    if isinstance(step.module, DistributedDataParallel):
        return BACKWARDS
    return THROUGHOUT if hasattr(step.module, "set_requires_gradient_sync") else APART
