"""What would let a training fit that does not: more accelerators, or strategies that need less memory."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from msgspec.structs import replace

from equipoise.decide.evidence import Shortfall
from equipoise.decide.question.fine_tuning import QLORA_OFFLOAD, USUAL_LORA_RANK
from equipoise.decide.strategies.size_searches import (
    ON_HOST,
    SEARCH_CACHE,
    beyond_hosts,
    first_that_fits,
    sizes_beyond,
)
from equipoise.decide.strategies.strategy_search import Problem
from equipoise.perfmodel.space import USUAL
from equipoise.spec.strategy import Value, value_text
from equipoise.units import format_si, format_si_apart

_MOST_DOUBLINGS: Final = 14
_MOST_SHOWN: Final = 3
# What saves memory: another value of one parameter at a time. What computes the same comes first, in the
# order of what it costs, then what trains with other states, then what trains fewer weights.
_SPARING: Final[tuple[tuple[str, Value], ...]] = (
    ("zero_stage", 3),
    ("recompute", "full"),
    ("activation_offload", True),
    ("offload", "optimizer"),
    ("offload", "optimizer_and_params"),
    ("implementation", "compiled"),
    ("optimizer", "adam_8bit"),
    ("master_weights", False),
    ("trained", "lora"),
    ("trained", "qlora"),
)


def remedy(problem: Problem, num_accelerators: int) -> Shortfall | None:
    """What the training needs, what there is, and what would do; None where nothing is legal or all is well.

    Amounts are of all accelerators together, by the strategy that needs the least.
    """
    found = SEARCH_CACHE.searches(problem, (num_accelerators,)).sizes[0].found
    held = problem.cluster.accelerator.memory_bytes
    if found.nearest_bytes is None or found.num_fitting or held is None:
        return None
    whole = float(held) * num_accelerators
    needed_text, whole_text = format_si_apart(found.nearest_bytes * num_accelerators, whole, "B")
    tries = chain(_more(problem, num_accelerators), _others(problem, num_accelerators))
    holds = "holds" if num_accelerators == 1 else "hold"
    each_text = format_si(float(held), "B")
    return Shortfall(
        needs=f"needs {needed_text}, {num_accelerators:,} x {each_text} {holds} {whole_text}",
        ways=tuple(islice(tries, _MOST_SHOWN)),  # tries take their time: no more than are shown
    )


def _more(problem: Problem, num_accelerators: int) -> Iterator[str]:
    """The fewest more accelerators on which it fits, if any."""
    size = least_fitting(problem, num_accelerators)
    if size is not None:
        yield f"{size:,} accelerators{_moved_words(problem, size)}"


def least_fitting(problem: Problem, most: int) -> int | None:
    """The fewest accelerators beyond a limit on which something fits; None where nothing does.

    The first doubling that does, and then what is smaller. Assumes that more accelerators hold more.
    """
    grid = sizes_beyond(problem.cluster, problem.choices)
    usual = grid.usual(most, most << _MOST_DOUBLINGS)
    large = next((each for each in usual if SEARCH_CACHE.fits(problem, each)), None)
    if large is None:
        return None
    low = max((each for each in usual if each < large), default=most)
    while sizes := grid.between(low, large):
        fitting = (place for place, each in enumerate(sizes) if SEARCH_CACHE.fits(problem, each))
        place = next(fitting, len(sizes))
        low, large = ((low, *sizes)[place], (*sizes, large)[place])
    return large


def _moved_words(problem: Problem, size: int) -> str:
    """What a search moves to the host's memory at a size at which something fits; empty for nothing."""
    found = first_that_fits(problem, size)
    choices = {} if found is None else {**found.choices}
    (offload,) = choices.get("offload", ("none",))[:1]
    moved = [ON_HOST[offload]] if offload in ON_HOST else []
    moved += ["activations"] if True in choices.get("activation_offload", ()) else []
    return f" with {' and '.join(moved)} in the host's memory" if moved else ""


def _others(problem: Problem, num_accelerators: int) -> Iterator[str]:
    """Changes of one parameter that make it fit, as options."""
    for name, value in _SPARING:
        if value in problem.choices.get(name, USUAL[name]):
            continue
        choices = dict(problem.choices) | {name: (value,)}
        if name == "activation_offload":
            if problem.with_activations_on_host is None:
                continue
            choices = dict(problem.with_activations_on_host)
        if name == "offload" and "zero_stage" not in problem.choices:
            choices["zero_stage"] = USUAL["zero_stage"]
        if name == "trained":
            choices["lora_rank"] = (problem.training.workload.lora_rank or USUAL_LORA_RANK,)
            choices |= {"offload": QLORA_OFFLOAD, **choices} if value == "qlora" else {}  # as --train has it
        if _fits_hosts_too(replace(problem, choices=choices), num_accelerators):
            text = value_text(value)
            yield f"--train {text}" if name == "trained" else f"--fix {name}={text}"


def _fits_hosts_too(problem: Problem, num_accelerators: int) -> bool:
    """Whether anything fits, and hosts have room for what the best that fits moves to them."""
    if not SEARCH_CACHE.fits(problem, num_accelerators):
        return False
    if not {"offload", "activation_offload"} & {*problem.choices}:
        return True
    (found,) = SEARCH_CACHE.searches(problem, (num_accelerators,)).sizes
    return found.best is not None and beyond_hosts(problem, found.best.strategy) is None
