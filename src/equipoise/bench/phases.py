"""Phases of a step from the moments they begin: parts that sum to the step, and communication in total.

Exposed communication is what of a backward pass is left after its last gradient was ready: only exchanges
are waited for then. It works with any communication hook. docs/measure/phases.md defines every phase.
"""

from collections.abc import Iterable, Mapping, Sequence

from equipoise.stats import covered_s

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
