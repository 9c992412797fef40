"""Marks of a step on the clock of its device, as cheap as can be: raw while steps run, split afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from equipoise.bench.devices import Device
from equipoise.bench.methods import Step
from equipoise.bench.models import Trainee
from equipoise.bench.phases import (
    BACKWARD,
    COMMUNICATION,
    EXPOSED,
    FORWARD,
    INPUT,
    OPTIMIZER,
    REST,
    STEP,
    parts,
    with_share_exposed,
    with_total,
    without_exposed,
)
from equipoise.bench.profiled import Profiled

# Where a method's backward pass exchanges: nowhere, in itself (gradients), or throughout (weights too).
APART, BACKWARDS, THROUGHOUT = "apart", "backwards", "throughout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One step as it was marked: names and stamps, stamps of gradients, its end, and the host's seconds."""

    names: tuple[str, ...]
    stamps: Sequence[Any]
    ready: Sequence[Any]
    end: Any
    host_s: float

    @property
    def kind(self) -> object:
        """What it did: steps of one kind are alike, others of the same method are not."""
        return self.names


class Stopwatch:
    """Runs steps one at a time, each to its end on the device, and notes when its phases begin."""

    def __init__(self, step: Step, subject: Trainee, on: Device, *, num_ranks: int) -> None:
        """Every gradient is looked at until `settle`, to find those that are ready last."""
        self._step = step
        self._batches = subject.batches
        self._on = on
        self._clock = on.clock()
        self._now = self._clock.now
        self._names: list[str] = []
        self._stamps: list[Any] = []
        self._ready: list[Any] = []
        self.exchanges = exchanges(step, num_ranks)
        self._parameters = [each for each in subject.model.parameters() if each.requires_grad]
        self._hooks: list[Any] = []
        self._latest: Any = None
        self._last: dict[int, Any] = {}
        self._was_other = False
        step.marks.append(self._mark)
        self.observe_all()

    def _mark(self, name: str) -> None:
        self._names.append(name)
        self._stamps.append(self._now())

    def _ready_now(self, _parameter: object) -> None:
        self._ready.append(self._now())

    def _ready_noted(self, parameter: object) -> None:
        self._latest = parameter
        self._ready.append(self._now())

    def observe_all(self) -> None:
        """From now on look at every gradient."""
        self._observe(self._parameters, self._ready_noted)

    def settle(self) -> None:
        """From now on look only at gradients that were the last in some step."""
        self._observe(list(self._last.values()), self._ready_now)
        self._settled = set(self._last)

    def release(self) -> None:
        """From now on look at no gradient."""
        self._observe((), self._ready_now)

    def _observe(self, parameters: Sequence[Any], hook: Any) -> None:  # noqa: ANN401 - torch is not followed
        for held in self._hooks:
            held.remove()
        watched = parameters if self.exchanges == BACKWARDS else ()
        self._hooks = [each.register_post_accumulate_grad_hook(hook) for each in watched]

    def lap(self) -> Lap:
        """One step, run to its end."""
        self._names, self._stamps, self._ready = [], [], []
        start = perf_counter()
        self._mark(INPUT)
        batch = next(self._batches)
        self._mark(REST)
        self._step.run(batch)
        end = self._now()
        self._on.synchronise()
        host_s = perf_counter() - start
        if self._latest is not None:
            self._last[id(self._latest)] = self._latest
            self._latest = None
        return Lap(
            names=tuple(self._names), stamps=self._stamps, ready=self._ready, end=end, host_s=host_s
        )

    def split(self, lap: Lap) -> dict[str, float]:
        """Seconds of a step by phase; they sum to it.

        The step ends where the host has seen the device end it: what follows the last mark is rest.
        """
        moments = self._clock.moments([*lap.stamps, *lap.ready, lap.end])
        marks = list(zip(lap.names, moments, strict=False))
        # Passes that only add up gradients exchange nothing: what follows their last gradient is computing.
        ready = moments[len(marks) : -1] if self.exchanged(lap) else ()
        found = parts(marks, max(moments[-1], lap.host_s), ready)
        return found if self.exchanges == THROUGHOUT else {EXPOSED: 0.0, **found}

    def slowest_s(self, laps: Sequence[Lap]) -> list[float]:
        """Seconds of each step on the rank that took longest; all ranks must call."""
        import torch  # noqa: PLC0415 - loaded by now
        import torch.distributed as dist  # noqa: PLC0415 - likewise

        place = self._parameters[0].device if self._parameters else "cpu"
        seconds = torch.tensor([lap.host_s for lap in laps], dtype=torch.float64, device=place)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        found: list[float] = seconds.tolist()
        return found

    def exchanged(self, lap: Lap) -> bool:
        """Whether ranks exchanged anything in that step; passes that only add up gradients do not."""
        return (COMMUNICATION if self.exchanges == APART else OPTIMIZER) in lap.names

    def with_communication(
        self, timed: Sequence[Lap], profiled: Sequence[Lap], seen: Profiled
    ) -> list[dict[str, float]]:
        """The phases of timed steps, communication among them as the profiled ones show it.

        Steps that exchange nothing have none, and exchanges that are marked are all there is of it.
        """
        # A rank alone exchanges in no step: of nothing, any share is nothing.
        profiled_s = sum(self.split(lap)[STEP] for lap in profiled if self.exchanged(lap)) or 1.0
        found = []
        for lap, split in zip(timed, self._with_exposed(timed, profiled, seen), strict=True):
            total_s = seen.communication_s if self.exchanged(lap) and self.exchanges != APART else 0.0
            found.append(with_total(split, total_s=total_s, step_s=profiled_s))
        return found

    def _with_exposed(
        self, timed: Sequence[Lap], profiled: Sequence[Lap], seen: Profiled
    ) -> list[dict[str, float]]:
        """The phases of timed steps with exposed communication.

        Where gradients are looked at, profiled steps must show the same last ones as warm-up did: a model
        that trains now these weights and now others has no moment that was looked at, and no such number.
        """
        split = [self.split(lap) for lap in timed]
        if self.exchanges == THROUGHOUT:
            passes = [self.split(lap) for lap in profiled]
            share = min(1.0, seen.exposed_s / sum(each[FORWARD] + each[BACKWARD] for each in passes))
            return [with_share_exposed(each, share) for each in split]
        if self.exchanges == BACKWARDS and set(self._last) != self._settled:
            return [without_exposed(each) for each in split]
        return split


def exchanges(step: Step, num_ranks: int) -> str:
    """Where the backward pass of a method exchanges."""
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 - loaded by now

    if num_ranks == 1:
        return APART
    if isinstance(step.module, DistributedDataParallel):
        return BACKWARDS
    return THROUGHOUT if hasattr(step.module, "set_requires_gradient_sync") else APART
