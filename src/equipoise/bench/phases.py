"""Splits the marks of a training loop into steps, and steps into phases that sum to the step.

Hooks mark when each phase begins. Exposed communication is the part of a backward pass after its last
gradient was ready, because ranks then wait only for communication. This works with any communication hook.
docs/measure/phases.md defines every phase.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

from equipoise.intervals import covered_s
from equipoise.units import NANOSECOND_S

# Valid steps take between a nanosecond and thirty years.
SHORTEST_S, LONGEST_S = NANOSECOND_S, 1 / NANOSECOND_S

STEP = "step"
INPUT, FORWARD, BACKWARD, OPTIMIZER, REST = "input", "forward", "backward", "optimizer", "rest"
EXPOSED = "communication_exposed"
TOTAL, OVERLAPPED = "communication_total", "communication_overlapped"
# The mark of exchanges outside backward passes, such as averaging weights.
COMMUNICATION = "communication"

PARTS = (INPUT, FORWARD, BACKWARD, EXPOSED, OPTIMIZER, REST)

Mark = tuple[str, float]
Span = tuple[float, float]


def parts(marks: Sequence[Mark], end_s: float, ready_s: Sequence[float]) -> dict[str, float]:
    """Return the seconds of each part of one step, and of the step, which is their sum by construction.

    marks: phases with their start times, in order; an unknown name counts as rest. end_s: the end of the
    step. ready_s: when each gradient was ready, in order; empty if not observed, in which case exposed
    communication is omitted and remains part of the backward pass.
    Assumes one clock, and that a backward pass ends at the next mark.
    Source: the definition above.

    >>> split = parts([("forward", 0.0), ("backward", 3.0), ("optimizer", 8.0)], 9.0, [4.0, 6.0])
    >>> split["backward"], split["communication_exposed"], split["step"]
    (3.0, 2.0, 9.0)
    """
    spent = dict.fromkeys(PARTS, 0.0)
    ends = [*(begun for _, begun in marks[1:]), end_s]
    observed = bool(ready_s) or any(name == COMMUNICATION for name, _ in marks)
    for (name, begun), ended in zip(marks, ends, strict=True):
        within = [moment for moment in ready_s if begun <= moment <= ended]
        if name == BACKWARD and within:
            spent[BACKWARD] += within[-1] - begun
            spent[EXPOSED] += ended - within[-1]
        else:
            part = EXPOSED if name == COMMUNICATION else name if name in spent else REST
            spent[part] += ended - begun
    if not observed:
        del spent[EXPOSED]
    return {**spent, STEP: end_s - marks[0][1]}


def uncovered_s(spans: Iterable[Span], by: Iterable[Span]) -> float:
    """Return the seconds covered by `spans` but not by `by`.

    Assumes begin <= end. Source: definition.

    >>> uncovered_s([(0.0, 4.0)], by=[(1.0, 2.0), (3.5, 9.0)])
    2.5
    """
    others = list(by)
    return covered_s([*spans, *others]) - covered_s(others)


def without_exposed(split: Mapping[str, float]) -> dict[str, float]:
    """Return the phases with exposed communication counted as part of the backward pass again.

    >>> without_exposed({"backward": 2.0, "communication_exposed": 1.0, "step": 3.0})
    {'backward': 3.0, 'step': 3.0}
    """
    whole = {**split, BACKWARD: split[BACKWARD] + split.get(EXPOSED, 0.0)}
    whole.pop(EXPOSED, None)
    return whole


def with_share_exposed(split: Mapping[str, float], share: float) -> dict[str, float]:
    """Return a step's phases with a share of its forward and backward pass counted as exposed communication.

    For methods that exchange throughout both passes, where computing and waiting alternate.
    share: 0..1, exposed communication of profiled steps over their forward and backward passes.
    Assumes the same share in timed and profiled steps. Source: definition; docs/measure/phases.md.

    >>> split = with_share_exposed({"forward": 1.0, "backward": 3.0, "step": 5.0}, 0.25)
    >>> split["forward"], split["backward"], split["communication_exposed"]
    (0.75, 2.25, 1.0)
    """
    forward, backward = split[FORWARD], split[BACKWARD]
    return {
        **split,
        FORWARD: forward * (1 - share),
        BACKWARD: backward * (1 - share),
        EXPOSED: split.get(EXPOSED, 0.0) + (forward + backward) * share,
    }


def with_total(split: Mapping[str, float], *, total_s: float, step_s: float) -> dict[str, float]:
    """Return the phases of a step with total communication and its overlapped part.

    total_s: time in which a collective ran, in a profiled step of step_s. Only its share of the step is used,
    because profiling slows a step. The total is at least the exposed communication.
    Assumes collectives take the same share of timed and of profiled steps.
    Source: definition; docs/reference/tables.md.
    """
    exposed = split.get(EXPOSED)
    if exposed is None:
        return dict(split)
    total = max(exposed, total_s / step_s * split[STEP])
    return {**split, TOTAL: total, OVERLAPPED: total - exposed}


def with_exchanges(split: Mapping[str, float], seen: Mapping[str, float]) -> Mapping[str, float]:
    """Return the phases of a step with communication as in profiled steps; unchanged if none was profiled.

    seen: `communication_s` in `step_s` of profiled steps; if ranks exchange throughout both passes, also
    `exposed_s` in `passes_s`. Assumes and Source: as for with_share_exposed and with_total.
    """
    if not seen.get("step_s"):
        return split
    if seen.get("passes_s") and {FORWARD, BACKWARD} <= set(split):
        split = with_share_exposed(split, min(1.0, seen["exposed_s"] / seen["passes_s"]))
    return with_total(split, total_s=seen["communication_s"], step_s=seen["step_s"])


def overlapped_fraction(exposed_s: float | None, total_s: float | None) -> float | None:
    """Return the fraction of communication that computation hides; None if unknown or without communication.

    >>> overlapped_fraction(1.0, 4.0)
    0.75
    """
    return None if exposed_s is None or not total_s else 1 - exposed_s / total_s


def largest_gap(splits: Iterable[Mapping[str, float]]) -> float:
    """Return the largest difference between a step and the sum of its parts, as a fraction of the step.

    Source: definition.

    >>> largest_gap([{"forward": 1.0, "backward": 2.0, "step": 3.0}, {"forward": 0.9, "step": 1.0}])
    0.1
    """
    return max(
        (round(abs(1 - sum(split.get(name, 0.0) for name in PARTS) / split[STEP]), 9) for split in splits),
        default=0.0,
    )


# Time that belongs to no step: evaluation, checkpoints, between epochs.
PAUSED = "paused"
# A forward pass in evaluation mode that records gradients: training with frozen statistics, or an evaluation.
# It counts as training if the whole step has no other forward pass.
MAYBE = "maybe"

_MOST_MARKS = 1_000_000


class WatchedStep(NamedTuple):
    """The recorded marks of one step. It is a tuple because thousands are held during a loop.

    names and stamps: phases and the clock's timestamps of their starts. ready: timestamps of when gradients
    were ready. num_samples: 0 if batches were not observed.
    """

    names: tuple[str, ...]
    stamps: tuple[Any, ...]
    ready: tuple[Any, ...]
    end: Any
    num_batches: int
    num_samples: int


class Loop:
    """Collects the marks of one rank's training loop and splits them into steps.

    is_counting: whether steps are currently only counted, by `optimizer_ended` and `cut`; set between steps.
    """

    def __init__(
        self,
        now: Callable[[], Any],
        *,
        on_step: Callable[[WatchedStep | None], None],
        on_first: Callable[[Any], None] = lambda _model: None,
    ) -> None:
        """now: returns a timestamp. on_step: called with each step, or with None if it was only counted.

        The time of `on_step` belongs to no step. on_first: called with the model, within the first forward
        pass that records gradients.
        """
        self._now = now
        self._on_step, self._on_first = on_step, on_first
        self._seen_first = False
        self.is_counting = False
        self._names: list[str] = []
        self._stamps: list[Any] = []
        self._ready: list[Any] = []
        # Interned tuples of names, because most steps have the same names.
        self._interned: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._num_batches = self._num_samples = 0
        # Nesting depth of backward passes, updates and pauses; a loop that is over stays paused.
        self._in_backward = self._in_optimizer = 0
        self._in_pause = 0.0
        self._trains = self._updated = False

    def next_batch(self) -> None:
        """Record that the loop fetches its next batch; this ends a step that has updated weights."""
        self.cut()
        if not self.is_counting:
            self._limit_marks()
            self._mark(INPUT)

    def fetching(self) -> None:
        """Record that a batch is being fetched, possibly ahead of its step."""
        self._mark(INPUT)

    def batch_fetched(self, num_samples: int) -> None:
        """Record that the batch has been fetched."""
        self._num_batches += 1
        self._num_samples += num_samples
        self._mark(REST)

    def cut(self) -> None:
        """End the step now if it has updated weights."""
        if not self._updated or self._in_pause:
            return
        if self.is_counting:
            self._updated = False
            self._on_step(None)
            if not self.is_counting:
                self._begin_step()
            return
        end = self._now()
        names = tuple(self._names)
        names = self._interned.setdefault(names, names)
        ready = tuple(self._ready)
        self._on_step(
            WatchedStep(names, tuple(self._stamps), ready, end, self._num_batches, self._num_samples)
        )
        self._begin_step()

    def begin_anew(self) -> None:
        """Discard the time since the last step, unless the next step has begun to compute."""
        if self._names and all(name in {REST, INPUT, PAUSED} for name in self._names):
            self._restart()

    def forward(self, model: Any, *, records: bool) -> None:  # noqa: ANN401 - a module; torch is not followed
        """Record a call of a model. records: whether gradients are recorded for a backward pass."""
        if self._in_backward:  # activation recomputation
            return
        if records:
            self._trains = self._trains or model.training
            self._mark(FORWARD if model.training else MAYBE)
            if not self._seen_first:
                self._seen_first = True
                self._on_first(model)
        elif not self._trains:
            self._mark(PAUSED)

    def backward_begins(self) -> None:
        """Record the start of a backward pass; a nested one belongs to the outer one."""
        self._in_backward += 1
        if self._in_backward == 1:
            self._mark(BACKWARD)

    def backward_ended(self) -> None:
        """Record the end of a backward pass."""
        self._in_backward -= 1
        if not self._in_backward:
            self._mark(self._enclosing_phase())

    def optimizer_begins(self) -> None:
        """Record the start of an update; updates within a backward pass belong to that pass."""
        self._in_optimizer += 1
        if self._in_optimizer == 1 and not self._in_backward:
            self._mark(OPTIMIZER)

    def optimizer_ended(self) -> None:
        """Record the end of an update."""
        if self.is_counting:
            self._updated = self._updated or not self._in_pause
            return
        self._in_optimizer = max(0, self._in_optimizer - 1)
        if self._in_pause:
            return
        self._updated, self._trains = True, False
        self._limit_marks()
        if not self._in_optimizer and not self._in_backward:
            self._mark(REST)

    def ready(self) -> None:
        """Record that a gradient is ready."""
        if self._in_backward:
            self._ready.append(self._now())

    @contextmanager
    def communication(self) -> Iterator[None]:
        """Record a communication that no backward pass hides."""
        self._mark(COMMUNICATION)
        try:
            yield
        finally:
            self._mark(self._enclosing_phase())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time within from all steps."""
        self.pause()
        try:
            yield
        finally:
            self.go_on()

    def pause(self) -> None:
        """Exclude the following time from all steps, until `go_on`."""
        self._mark(PAUSED)
        self._in_pause += 1

    def end(self) -> None:
        """Stop recording for good."""
        self._in_pause = inf

    @property
    def is_over(self) -> bool:
        """Return whether `end` was called."""
        return self._in_pause == inf

    def go_on(self) -> None:
        """End a pause."""
        self._in_pause = max(0, self._in_pause - 1)
        self._mark(self._enclosing_phase())

    def between(self) -> None:
        """Record the end of the loop over the data; the following time belongs to no step."""
        self._mark(PAUSED)

    def _enclosing_phase(self) -> str:
        """Return the phase that continues after a pass or pause has ended."""
        return OPTIMIZER if self._in_optimizer else REST

    def _mark(self, name: str) -> None:
        if not (self._in_pause or self.is_counting):
            self._names.append(name)
            self._stamps.append(self._now())

    def _limit_marks(self) -> None:
        """Discard the marks of a loop that ends no step, to bound memory."""
        if len(self._names) + len(self._ready) > _MOST_MARKS:
            self._ready = []
            self._restart()

    def _begin_step(self) -> None:
        """Reset the state of a step."""
        self._num_batches = self._num_samples = 0
        self._trains = self._updated = False
        self._in_optimizer = 0  # an update that raised has only marked its start
        self._ready = []
        self._restart()

    def _restart(self) -> None:
        """Discard the marks and let the step begin now."""
        self._names, self._stamps = [REST], [self._now()]


def phases_of(step: WatchedStep, moments: Callable[[Sequence[Any]], list[float]]) -> dict[str, float]:
    """Return the seconds of each phase of a step without its pauses; without input if no batch was observed.

    moments: returns the seconds from the first timestamp to each.
    """
    seconds = moments([*step.stamps, *step.ready, step.end])
    marks = _with_maybe_resolved(list(zip(step.names, seconds, strict=False)))
    ready_s, end_s = seconds[len(marks) : -1], seconds[-1]
    split = parts(*_without_pauses(marks, end_s, ready_s))
    if not any(name == INPUT for name, _ in marks):
        del split[INPUT]
    return split


def _with_maybe_resolved(marks: Sequence[Mark]) -> list[Mark]:
    """Return the marks with every MAYBE replaced by FORWARD or PAUSED."""
    trained = any(name == FORWARD for name, _ in marks)
    return [(name if name != MAYBE else PAUSED if trained else FORWARD, at) for name, at in marks]


def _without_pauses(
    marks: Sequence[Mark], end_s: float, ready_s: Sequence[float]
) -> tuple[list[Mark], float, list[float]]:
    """Return the step's marks, end and gradient times with its pauses removed from the timeline."""
    if not any(name == PAUSED for name, _ in marks):
        return list(marks), end_s, list(ready_s)
    ends = [*(at for _, at in marks[1:]), end_s]
    pauses = [(at, ended) for (name, at), ended in zip(marks, ends, strict=True) if name == PAUSED]

    def moved(moment: float) -> float:
        return moment - sum(min(ended, moment) - at for at, ended in pauses if at < moment)

    running = [(name, moved(at)) for name, at in marks if name != PAUSED]
    return running, moved(end_s), [moved(at) for at in ready_s]
