"""What would let a training fit that does not: more accelerators, or strategies that need less memory."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final, TypeAlias

from msgspec.structs import replace

from equipoise.decide.evidence import Shortfall
from equipoise.decide.question.fine_tuning import trained_part
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.training import parameter_choices
from equipoise.decide.strategies.size_searches import (
    ON_HOST,
    SEARCH_CACHE,
    beyond_hosts,
    first_that_fits,
    units_beyond,
)
from equipoise.decide.strategies.strategy_search import Problem
from equipoise.errors import SpecError, UsageError
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


# The problem that a question poses which states another strategy, or that other weights are trained. Raises
# SpecError or UsageError where it is refused.
Pose: TypeAlias = Callable[[TrainingQuery], Problem]


def remedy(problem: Problem, num_accelerators: int, *, asked: TrainingQuery, pose: Pose) -> Shortfall | None:
    """What the training needs, what there is, and what would do; None where nothing is legal or all is well.

    Amounts are of all accelerators together, by the strategy that needs the least. asked: the question.
    """
    found = SEARCH_CACHE.searches(problem, (num_accelerators,)).sizes[0].found
    held = problem.cluster.accelerator.usable_memory_bytes
    if found.nearest_bytes is None or found.num_fitting or held is None:
        return None
    whole = held * num_accelerators
    needed_text, whole_text = format_si_apart(found.nearest_bytes * num_accelerators, whole, "B")
    tries = chain(
        islice(_freed(num_accelerators, asked, pose), 1),
        _more(problem, num_accelerators),
        _others(problem, num_accelerators, asked, pose),
    )
    holds = "holds" if num_accelerators == 1 else "hold"
    whole_chip = float(problem.cluster.accelerator.memory_bytes or held)
    each_text = " of ".join(format_si(each, "B") for each in dict.fromkeys((held, whole_chip)))
    return Shortfall(
        needs=f"needs {needed_text}, {num_accelerators:,} x {each_text} {holds} {whole_text}",
        ways=tuple(islice(tries, _MOST_SHOWN)),  # tries take their time: no more than are shown
    )


def _freed(num_accelerators: int, asked: TrainingQuery, pose: Pose) -> Iterator[str]:
    """The question without one of the values that it fixes, where it then fits; of parameters of which
    `_others` has no other value.
    """
    changed = {name for name, _ in _SPARING}
    for place, each in enumerate(asked.fixed):
        if {*parameter_choices([each])} & changed:
            continue
        rest = asked.fixed[:place] + asked.fixed[place + 1 :]
        try:
            posed = pose(replace(asked, fixed=rest))
        except (SpecError, UsageError):
            continue
        if _fits_hosts_too(posed, num_accelerators):
            yield f"{num_accelerators:,} without --fix {each}"


def _more(problem: Problem, num_accelerators: int) -> Iterator[str]:
    """The fewest more accelerators on which it fits, if any."""
    size = least_fitting(problem, num_accelerators)
    if size is not None:
        yield f"{size:,} accelerators{_moved_words(problem, size)}"


def least_fitting(problem: Problem, most: int) -> int | None:
    """The fewest accelerators beyond a limit on which something fits; None where nothing does.

    The first doubling that does, and then what is smaller. Assumes that more accelerators hold more.
    """
    units = units_beyond(problem.cluster, problem)
    usual = units.usual(most, most << _MOST_DOUBLINGS)
    large = next((each for each in usual if SEARCH_CACHE.fits(problem, each)), None)
    if large is None:
        return None
    low = max((each for each in usual if each < large), default=most)
    while sizes := units.between(low, large):
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


def _others(problem: Problem, num_accelerators: int, asked: TrainingQuery, pose: Pose) -> Iterator[str]:
    """Changes of one parameter that make it fit, as options: those that are answered where they are stated.

    Other weights than asked about may be trained with other software.
    """
    for name, value in _SPARING:
        if not _is_change(problem, asked, name, value):
            continue
        words, changed = _trained(asked, value) if name == "trained" else _fixed(asked, name, value)
        try:
            posed = pose(changed)
        except (SpecError, UsageError):
            continue
        # Of adapters the search moves what has to be moved, and the answer says what hosts have to hold.
        does_fit = SEARCH_CACHE.fits if name == "trained" else _fits_hosts_too
        if does_fit(posed, num_accelerators):
            yield words


def _is_change(problem: Problem, asked: TrainingQuery, name: str, value: Value) -> bool:
    """Whether a value of a parameter is none that was tried, and one that may be asked for."""
    if value in problem.choices.get(name, USUAL[name]):
        return False
    if name == "activation_offload":
        return problem.with_activations_on_host is not None
    return name != "trained" or ":" not in asked.workload  # the user's own code is run once a question


def _trained(asked: TrainingQuery, value: Value) -> tuple[str, TrainingQuery]:
    """The option by which other weights are trained, and the question with it."""
    stated, option = trained_part(asked), value_text(value)
    words = f"--train {option}" + (f" in place of {stated}" if stated else "")
    return words, replace(asked, train=(option, *(each for each in asked.train if each != stated)))


def _fixed(asked: TrainingQuery, name: str, value: Value) -> tuple[str, TrainingQuery]:
    """The option by which a parameter has another value, and the question with it."""
    texts = {
        each: f"{each}={','.join(map(value_text, values))}"
        for each, values in parameter_choices(asked.fixed).items()
    }
    option = f"{name}={value_text(value)}"
    words = f"--fix {option}" + (f" in place of {texts[name]}" if name in texts else "")
    return words, replace(asked, fixed=(*({**texts, name: option}).values(),))


def _fits_hosts_too(problem: Problem, num_accelerators: int) -> bool:
    """Whether anything fits, and hosts have room for what the best that fits moves to them."""
    if not SEARCH_CACHE.fits(problem, num_accelerators):
        return False
    if not {"offload", "activation_offload"} & {*problem.choices}:
        return True
    (found,) = SEARCH_CACHE.searches(problem, (num_accelerators,)).sizes
    return found.best is not None and beyond_hosts(problem, found.best.strategy) is None
