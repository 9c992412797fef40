"""A training loop as marks, cut into steps: what begins when, by hooks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from equipoise.bench.phases import BACKWARD, COMMUNICATION, FORWARD, INPUT, OPTIMIZER, REST, Mark, parts

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
    """What one rank's loop does, as its hooks mark it, cut into steps."""

    def __init__(
        self,
        now: Callable[[], Any],
        *,
        on_step: Callable[[WatchedStep], None],
        on_first: Callable[[Any], None] = lambda _model: None,
    ) -> None:
        """now: gives a stamp of this moment. on_step: takes each step; its time belongs to none.

        on_first: called within the first forward pass that trains, with the model.
        """
        self._now = now
        self._on_step, self._on_first = on_step, on_first
        self._seen_first = False
        self._names: list[str] = []
        self._stamps: list[Any] = []
        self._ready: list[Any] = []
        # Most steps have the same names: they are kept once.
        self._kinds: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._num_batches = self._num_samples = 0
        # How deep in passes, updates and pauses within each other.
        self._in_backward = self._in_optimizer = self._in_pause = 0
        self._trains = self._updated = False

    def next_batch(self) -> None:
        """The loop fetches its next batch: what was before it is a step if it has updated weights."""
        self.cut()
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
        end = self._now()
        names = tuple(self._names)
        names = self._kinds.setdefault(names, names)
        ready = tuple(self._ready)
        self._on_step(
            WatchedStep(names, tuple(self._stamps), ready, end, self._num_batches, self._num_samples)
        )
        self._num_batches = self._num_samples = 0
        self._trains = self._updated = False
        self._in_optimizer = 0  # one that raised has marked its begin only
        self._ready = []
        self._restart()

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
        if not self._in_pause:
            self._names.append(name)
            self._stamps.append(self._now())

    def _forget(self) -> None:
        """Keep no more than any step has, of a loop in which no step ends."""
        if len(self._names) + len(self._ready) > _MOST_MARKS:
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
