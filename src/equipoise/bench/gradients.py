"""Which gradients a backward pass makes: their shapes, and the share of it after which each is ready."""

from functools import partial
from statistics import median
from typing import Any

from equipoise.bench.devices import Device
from equipoise.bench.methods import Step
from equipoise.bench.models import Trainee
from equipoise.bench.phases import BACKWARD, OPTIMIZER

_NUM_STEPS = 3


def gradients(step: Step, subject: Trainee, on: Device) -> dict[str, Any]:
    """Gradients in the order they come to exist, and buffers, of a rank that trains alone.

    `gradients`: shape, bytes and `ready`, the share of the backward pass after which each is there.
    `buffers`: bytes of each tensor of statistics, by its dtype.
    """
    clock = on.clock()
    trained = [each for each in subject.model.parameters() if each.requires_grad]
    seen: list[list[float]] = [[] for _ in trained]
    for _ in range(_NUM_STEPS):
        for each, share in zip(seen, _one_step(step, subject, on, clock, trained), strict=True):
            each.append(share)
    ready = [median(each) for each in seen]
    order = sorted(range(len(trained)), key=ready.__getitem__)
    return {
        "gradients": [
            {
                "shape": list(trained[at].shape),
                "bytes": trained[at].numel() * trained[at].element_size(),
                "dtype": str(trained[at].dtype).removeprefix("torch."),
                "ready": ready[at],
            }
            for at in order
        ],
        "buffers": [
            {"bytes": each.numel() * each.element_size(), "dtype": str(each.dtype).removeprefix("torch.")}
            for each in subject.model.buffers()
        ],
    }


def _one_step(
    step: Step,
    subject: Trainee,
    on: Device,
    clock: Any,  # noqa: ANN401 - a Clock's stamps are its own
    trained: list[Any],
) -> list[float]:
    """The share of one backward pass after which each gradient was ready."""
    stamps: list[Any] = []
    places: dict[object, int] = {}

    def note(what: object, _parameter: object = None) -> None:
        places[what] = len(stamps)
        stamps.append(clock.now())

    hooks = [each.register_post_accumulate_grad_hook(partial(note, at)) for at, each in enumerate(trained)]
    step.marks.append(note)
    step.run(next(subject.batches))
    on.synchronise()
    step.marks.remove(note)
    for hook in hooks:
        hook.remove()
    moments = clock.moments(stamps)
    begun, ended = moments[places[BACKWARD]], moments[places[OPTIMIZER]]
    # A weight that took no part in this step is there when the pass ends.
    return [
        (moments[places[at]] - begun) / (ended - begun) if at in places else 1.0 for at in range(len(trained))
    ]
