"""What would make a training fit that does not: more accelerators, or other values of what was fixed."""

from collections.abc import Iterator

from equipoise.decide.strategies.problem import Problem
from equipoise.decide.training import USUAL_LORA_RANK
from equipoise.perfmodel.space import USUAL, Value
from equipoise.units import format_si

_MOST_DOUBLINGS = 14
_MOST_SHOWN = 3
# What saves memory, in the order of what it costs: another value of one knob at a time.
_SPARING: tuple[tuple[str, Value], ...] = (
    ("zero_stage", 3),
    ("recompute", "full"),
    ("optimizer", "adam_8bit"),
    ("offload", "optimizer"),
    ("offload", "optimizer_and_params"),
    ("trained", "lora"),
    ("trained", "qlora"),
)


def remedy(problem: Problem, num_accelerators: int) -> str | None:
    """What the training needs, what there is, and what would do; None where nothing is legal or all is well.

    Amounts are of all accelerators together, by the strategy that needs the least.
    """
    found = problem.searched(num_accelerators)
    held = problem.cluster.accelerator.memory_bytes
    if found.memories is None or found.num_fitting or held is None:
        return None
    needed = found.memories.least_bytes * num_accelerators
    tries = [*_more(problem, num_accelerators), *_others(problem, num_accelerators)]
    hint = f": try {' or '.join(tries[:_MOST_SHOWN])}" if tries else ""
    return (
        f"needs {format_si(needed, 'B')}, {num_accelerators:,} x {format_si(float(held), 'B')} hold "
        f"{format_si(float(held) * num_accelerators, 'B')}{hint}"
    )


def _more(problem: Problem, num_accelerators: int) -> Iterator[str]:
    """The fewest doublings of accelerators on which it fits, if any."""
    for doubling in range(1, _MOST_DOUBLINGS + 1):
        size = num_accelerators * 2**doubling
        if problem.searched(size).num_fitting:
            yield f"{size:,} accelerators"
            return


def _others(problem: Problem, num_accelerators: int) -> Iterator[str]:
    """Changes of one knob that make it fit."""
    for name, value in _SPARING:
        if value in problem.choices.get(name, USUAL[name]):
            continue
        choices = dict(problem.choices) | {name: (value,)}
        if name == "offload" and "zero_stage" not in problem.choices:
            choices["zero_stage"] = USUAL["zero_stage"]
        if name == "trained":
            choices["lora_rank"] = (problem.training.workload.lora_rank or USUAL_LORA_RANK,)
        if problem.searched(num_accelerators, choices=choices).num_fitting:
            yield f"{name}={value}"
