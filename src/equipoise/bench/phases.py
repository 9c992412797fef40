"""A training loop as marks, cut into steps, and steps into phases: parts that sum to the step.

What begins when is marked by hooks. Exposed communication is what of a backward pass is left after its last
gradient was ready: only exchanges are waited for then. It works with any communication hook.
docs/measure/phases.md defines every phase.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

from equipoise.intervals import covered_s
from equipoise.units import NANOSECOND_S

# A step shorter than a nanosecond or longer than thirty years is none.
SHORTEST_S, LONGEST_S = NANOSECOND_S, 1 / NANOSECOND_S

STEP = "step"
INPUT, FORWARD, BACKWARD, OPTIMIZER, REST = "input", "forward", "backward", "optimizer", "rest"
EXPOSED = "communication_exposed"
TOTAL, OVERLAPPED = "communication_total", "communication_overlapped"
# What a method marks around exchanges that no backward pass hides: averaging weights, say.
COMMUNICATION = "communication"

PARTS = (INPUT, FORWARD, BACKWARD, EXPOSED, OPTIMIZER, REST)

Mark = tuple[str, float]
Span = tuple[float, float]


def parts(marks: Sequence[Mark], end_s: float, ready_s: Sequence[float]) -> dict[str, float]:
    """Seconds of each part of one step, and of the step; parts sum to it, by construction.

    marks: what begins when, in order; an unknown name belongs to the rest. end_s: when the step ended.
    ready_s: when each gradient was ready, in order; empty where that was not observed: then exposed
    communication stays within backward and is left out.
    Assumes one clock, and that a backward pass ends where the next mark stands.
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
    """Seconds covered by a span and by none of the others.

    Assumes begin <= end. Source: definition.

    >>> uncovered_s([(0.0, 4.0)], by=[(1.0, 2.0), (3.5, 9.0)])
    2.5
    """
    others = list(by)
    return covered_s([*spans, *others]) - covered_s(others)


def without_exposed(split: Mapping[str, float]) -> dict[str, float]:
    """The phases with exposed communication counted as part of the backward pass again.

    >>> without_exposed({"backward": 2.0, "communication_exposed": 1.0, "step": 3.0})
    {'backward': 3.0, 'step': 3.0}
    """
    whole = {**split, BACKWARD: split[BACKWARD] + split.get(EXPOSED, 0.0)}
    whole.pop(EXPOSED, None)
    return whole


def with_share_exposed(split: Mapping[str, float], share: float) -> dict[str, float]:
    """The phases of a step with a share of its forward and backward pass counted as exposed communication.

    For methods that exchange throughout both passes, so that no moment parts computing from waiting.
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
    """The phases of a step with communication in total and its overlapped part.

    total_s: time in which a collective ran, in a profiled step of step_s. It is carried over as a share:
    profiling slows a step. Never less than what is exposed.
    Assumes collectives take the same share of timed and of profiled steps.
    Source: definition; docs/reference/tables.md.
    """
    exposed = split.get(EXPOSED)
    if exposed is None:
        return dict(split)
    total = max(exposed, total_s / step_s * split[STEP])
    return {**split, TOTAL: total, OVERLAPPED: total - exposed}


def with_exchanges(split: Mapping[str, float], seen: Mapping[str, float]) -> Mapping[str, float]:
    """The phases of a step with communication as profiled steps show it; as they are where none was profiled.

    seen: `communication_s` in `step_s` of profiled steps; where ranks exchange throughout both passes also
    `exposed_s` in `passes_s`. Assumes and source: as with_share_exposed and with_total.
    """
    if not seen.get("step_s"):
        return split
    if seen.get("passes_s") and {FORWARD, BACKWARD} <= set(split):
        split = with_share_exposed(split, min(1.0, seen["exposed_s"] / seen["passes_s"]))
    return with_total(split, total_s=seen["communication_s"], step_s=seen["step_s"])


def overlapped_fraction(exposed_s: float | None, total_s: float | None) -> float | None:
    """The fraction of communication that computation hides; None where it is not known, or there is none.

    >>> overlapped_fraction(1.0, 4.0)
    0.75
    """
    return None if exposed_s is None or not total_s else 1 - exposed_s / total_s


def largest_gap(splits: Iterable[Mapping[str, float]]) -> float:
    """The largest fraction of a step by which its parts miss it.

    Source: definition.

    >>> largest_gap([{"forward": 1.0, "backward": 2.0, "step": 3.0}, {"forward": 0.9, "step": 1.0}])
    0.1
    """
    return max(
        (round(abs(1 - sum(split.get(name, 0.0) for name in PARTS) / split[STEP]), 9) for split in splits),
        default=0.0,
    )


# Time that belongs to no step: evaluation, checkpoints, between two passes over the data.
PAUSED = "paused"
# A forward pass in evaluation mode that records gradients: training with frozen statistics, or an evaluation.
# Only the whole step shows which: it is training where the step has no other.
MAYBE = "maybe"

_MOST_MARKS = 1_000_000


class WatchedStep(NamedTuple):
    """One step as it was seen: from one update of the weights to the next. A tuple: thousands wait in a loop.

    names and stamps: what begins when, by the clock. ready: when each gradient was. num_samples: 0 where
    batches were not seen.
    """

    names: tuple[str, ...]
    stamps: tuple[Any, ...]
    ready: tuple[Any, ...]
    end: Any
    num_batches: int
    num_samples: int


class Loop:
    """What one rank's loop does, as its hooks mark it, cut into steps.

    is_counting: whether steps are only counted for now, by `optimizer_ended` and `cut`; set between steps.
    """

    def __init__(
        self,
        now: Callable[[], Any],
        *,
        on_step: Callable[[WatchedStep | None], None],
        on_first: Callable[[Any], None] = lambda _model: None,
    ) -> None:
        """now: gives a stamp of this moment. on_step: takes each step, None if it was only counted.

        The time of `on_step` belongs to no step. on_first: called within the first forward pass that trains,
        with the model.
        """
        self._now = now
        self._on_step, self._on_first = on_step, on_first
        self._seen_first = False
        self.is_counting = False
        self._names: list[str] = []
        self._stamps: list[Any] = []
        self._ready: list[Any] = []
        # Most steps have the same names: they are kept once.
        self._kinds: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._num_batches = self._num_samples = 0
        # How deep in passes, updates and pauses within each other; what is over stays in a pause.
        self._in_backward = self._in_optimizer = 0
        self._in_pause = 0.0
        self._trains = self._updated = False

    def next_batch(self) -> None:
        """The loop fetches its next batch: what was before it is a step if it has updated weights."""
        self.cut()
        if not self.is_counting:
            self._forget()
            self._mark(INPUT)

    def fetching(self) -> None:
        """A batch is fetched, perhaps ahead of its step."""
        self._mark(INPUT)

    def batch_fetched(self, num_samples: int) -> None:
        """The batch is there."""
        self._num_batches += 1
        self._num_samples += num_samples
        self._mark(REST)

    def cut(self) -> None:
        """End the step here, if it has updated weights."""
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
        names = self._kinds.setdefault(names, names)
        ready = tuple(self._ready)
        self._on_step(
            WatchedStep(names, tuple(self._stamps), ready, end, self._num_batches, self._num_samples)
        )
        self._begin_step()

    def begin_anew(self) -> None:
        """What came since the last step belongs to none, if the next one has not begun to compute."""
        if self._names and all(name in {REST, INPUT, PAUSED} for name in self._names):
            self._restart()

    def forward(self, model: Any, *, records: bool) -> None:  # noqa: ANN401 - a module; torch is not followed
        """A model is called. records: gradients, for a backward pass to come."""
        if self._in_backward:  # computed again for the backward pass
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
        """A backward pass begins; those within another belong to it."""
        self._in_backward += 1
        if self._in_backward == 1:
            self._mark(BACKWARD)

    def backward_ended(self) -> None:
        """It has returned."""
        self._in_backward -= 1
        if not self._in_backward:
            self._mark(self._around())

    def optimizer_begins(self) -> None:
        """An update begins; updates that a backward pass makes by itself stay within it."""
        self._in_optimizer += 1
        if self._in_optimizer == 1 and not self._in_backward:
            self._mark(OPTIMIZER)

    def optimizer_ended(self) -> None:
        """The update was made."""
        if self.is_counting:
            self._updated = self._updated or not self._in_pause
            return
        self._in_optimizer = max(0, self._in_optimizer - 1)
        if self._in_pause:
            return
        self._updated, self._trains = True, False
        self._forget()
        if not self._in_optimizer and not self._in_backward:
            self._mark(REST)

    def ready(self) -> None:
        """A gradient is ready."""
        if self._in_backward:
            self._ready.append(self._now())

    @contextmanager
    def communication(self) -> Iterator[None]:
        """An exchange that no backward pass hides runs within."""
        self._mark(COMMUNICATION)
        try:
            yield
        finally:
            self._mark(self._around())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs within belongs to no step."""
        self.pause()
        try:
            yield
        finally:
            self.go_on()

    def pause(self) -> None:
        """What follows belongs to no step, until `go_on`."""
        self._mark(PAUSED)
        self._in_pause += 1

    def end(self) -> None:
        """Nothing is marked any more."""
        self._in_pause = inf

    @property
    def is_over(self) -> bool:
        """Whether it was ended."""
        return self._in_pause == inf

    def go_on(self) -> None:
        """The loop goes on."""
        self._in_pause = max(0, self._in_pause - 1)
        self._mark(self._around())

    def between(self) -> None:
        """The loop over the data is left: what follows belongs to no step."""
        self._mark(PAUSED)

    def _around(self) -> str:
        """The phase around a pass or pause that has ended."""
        return OPTIMIZER if self._in_optimizer else REST

    def _mark(self, name: str) -> None:
        if not (self._in_pause or self.is_counting):
            self._names.append(name)
            self._stamps.append(self._now())

    def _forget(self) -> None:
        """Keep no more than any step has, of a loop in which no step ends."""
        if len(self._names) + len(self._ready) > _MOST_MARKS:
            self._ready = []
            self._restart()

    def _begin_step(self) -> None:
        """Nothing of the next step has been seen yet."""
        self._num_batches = self._num_samples = 0
        self._trains = self._updated = False
        self._in_optimizer = 0  # one that raised has marked its begin only
        self._ready = []
        self._restart()

    def _restart(self) -> None:
        """The step begins now."""
        self._names, self._stamps = [REST], [self._now()]


def phases_of(step: WatchedStep, moments: Callable[[Sequence[Any]], list[float]]) -> dict[str, float]:
    """Seconds of each phase of a step, pauses taken out; without input where no batch was seen.

    moments: of stamps, seconds from the first to each.
    """
    seconds = moments([*step.stamps, *step.ready, step.end])
    marks = _settled(list(zip(step.names, seconds, strict=False)))
    ready_s, end_s = seconds[len(marks) : -1], seconds[-1]
    split = parts(*_unpaused(marks, end_s, ready_s))
    if not any(name == INPUT for name, _ in marks):
        del split[INPUT]
    return split


def _settled(marks: Sequence[Mark]) -> list[Mark]:
    """The marks with every `maybe` decided."""
    trained = any(name == FORWARD for name, _ in marks)
    return [(name if name != MAYBE else PAUSED if trained else FORWARD, at) for name, at in marks]


def _unpaused(
    marks: Sequence[Mark], end_s: float, ready_s: Sequence[float]
) -> tuple[list[Mark], float, list[float]]:
    """The same step as if its pauses had not been."""
    if not any(name == PAUSED for name, _ in marks):
        return list(marks), end_s, list(ready_s)
    ends = [*(at for _, at in marks[1:]), end_s]
    pauses = [(at, ended) for (name, at), ended in zip(marks, ends, strict=True) if name == PAUSED]

    def moved(moment: float) -> float:
        return moment - sum(min(ended, moment) - at for at, ended in pauses if at < moment)

    running = [(name, moved(at)) for name, at in marks if name != PAUSED]
    return running, moved(end_s), [moved(at) for at in ready_s]
