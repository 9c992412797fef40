"""Ways to make a training fit in memory: more accelerators, or strategies that need less memory."""

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
    offloads_weights,
    units_beyond,
)
from equipoise.decide.strategies.strategy_search import Problem
from equipoise.errors import SpecError, UsageError
from equipoise.perfmodel.space import USUAL
from equipoise.spec.strategy import ALL_OFFLOADED, Value, value_text
from equipoise.units import format_si, format_si_apart

_MAX_DOUBLINGS: Final = 14
_MAX_SHOWN: Final = 3
# Values of single parameters that save memory: first those with the same results, by increasing cost, then
# those with other optimizer states or gradients, then those that train fewer weights.
_MEMORY_SAVING: Final[tuple[tuple[str, Value], ...]] = (
    ("zero_stage", 3),
    ("recompute", "full"),
    ("activation_offload", True),
    ("offload", "optimizer"),
    ("offload", ALL_OFFLOADED),
    ("implementation", "compiled"),
    ("optimizer", "adam_8bit"),
    ("precision", "fp16"),  # its gradients are kept in 16 bits, where those of bf16 are summed in 32
    ("master_weights", False),
    ("trained", "lora"),
    ("trained", "qlora"),
)


# Makes the problem of a modified question. Raises SpecError or UsageError if the question is rejected.
Pose: TypeAlias = Callable[[TrainingQuery], Problem]


def remedy(problem: Problem, num_accelerators: int, *, asked: TrainingQuery, pose: Pose) -> Shortfall | None:
    """The memory needed, the memory available, and ways to fit; None if anything fits or nothing is legal.

    Amounts are totals over all accelerators for the strategy that needs the least. asked: the question.
    """
    found = SEARCH_CACHE.searches(problem, (num_accelerators,)).sizes[0].found
    held = problem.cluster.accelerator.usable_memory_bytes
    if found.nearest_bytes is None or found.num_fitting or held is None:
        return None
    whole = held * num_accelerators
    needed_text, whole_text = format_si_apart(found.nearest_bytes * num_accelerators, whole, "B")
    tries = chain(
        islice(_without_fixed_values(num_accelerators, asked, pose), 1),
        _more_accelerators(problem, num_accelerators),
        _other_values(problem, num_accelerators, asked, pose),
    )
    holds = "holds" if num_accelerators == 1 else "hold"
    whole_chip = float(problem.cluster.accelerator.memory_bytes or held)
    each_text = " of ".join(format_si(each, "B") for each in dict.fromkeys((held, whole_chip)))
    return Shortfall(
        needs=f"needs {needed_text}, but {num_accelerators:,} x {each_text} {holds} {whole_text}",
        ways=tuple(islice(tries, _MAX_SHOWN)),  # evaluated lazily, because each takes time
    )


def _without_fixed_values(num_accelerators: int, asked: TrainingQuery, pose: Pose) -> Iterator[str]:
    """Yield fixed values without which the training fits, for parameters not covered by `_other_values`."""
    changed = {name for name, _ in _MEMORY_SAVING}
    for place, each in enumerate(asked.fixed):
        if {*parameter_choices([each])} & changed:
            continue
        rest = asked.fixed[:place] + asked.fixed[place + 1 :]
        try:
            posed = pose(replace(asked, fixed=rest))
        except (SpecError, UsageError):
            continue
        if _fits_with_hosts(posed, num_accelerators):
            yield f"{num_accelerators:,} without --fix {each}"


def _more_accelerators(problem: Problem, num_accelerators: int) -> Iterator[str]:
    """Yield the smallest larger number of accelerators on which the training fits, if any."""
    size = least_fitting(problem, num_accelerators)
    if size is not None:
        yield f"{size:,} accelerators{_moved_words(problem, size)}"


def least_fitting(problem: Problem, most: int) -> int | None:
    """The smallest number of accelerators above `most` on which any strategy fits; None if there is none.

    Searches doublings first, then smaller sizes. Assumes what fits on fewer accelerators also fits on more.
    """
    units = units_beyond(problem.cluster, problem)
    usual = units.usual(most, most << _MAX_DOUBLINGS)
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
    """Text on what the search offloads to host memory at a size that fits; empty for nothing."""
    found = first_that_fits(problem, size)
    choices = {} if found is None else {**found.choices}
    (offload,) = choices.get("offload", ("none",))[:1]
    moved = [ON_HOST[offload]] if offload in ON_HOST else []
    moved += ["activations"] if True in choices.get("activation_offload", ()) else []
    return f" with {' and '.join(moved)} in the host's memory" if moved else ""


def _other_values(problem: Problem, num_accelerators: int, asked: TrainingQuery, pose: Pose) -> Iterator[str]:
    """Yield changes of one parameter with which the training fits, as options that the question accepts.

    Training other weights may need other software.
    """
    for name, value in _MEMORY_SAVING:
        if not _is_change(problem, asked, name, value):
            continue
        words, changed = _CHANGES.get(name, _with_fixed_value)(asked, name, value)
        try:
            posed = pose(changed)
        except (SpecError, UsageError):
            continue
        # With adapters the search offloads what is needed, and the answer states the host memory required.
        does_fit = SEARCH_CACHE.fits if name == "trained" else _fits_with_hosts
        if does_fit(posed, num_accelerators):
            yield words


def _is_change(problem: Problem, asked: TrainingQuery, name: str, value: Value) -> bool:
    """Whether a value of a parameter was not tried, and may be requested."""
    if value in problem.choices.get(name, USUAL[name]):
        return False
    if name == "activation_offload":
        return problem.with_activations_on_host is not None
    if value == ALL_OFFLOADED:
        return offloads_weights(problem)
    return name != "trained" or ":" not in asked.workload  # user code is run only once per question


def _with_precision(asked: TrainingQuery, _: str, value: Value) -> tuple[str, TrainingQuery]:
    """The option with which a training computes in another type, and the question with it."""
    stated, option = ",".join(asked.precision), value_text(value)
    words = f"--precision {option}" + (f" instead of {stated}" if stated else "")
    return words, replace(asked, precision=(option,))


def _with_other_weights(asked: TrainingQuery, _: str, value: Value) -> tuple[str, TrainingQuery]:
    """The option with which other weights are trained, and the question with it."""
    stated, option = trained_part(asked), value_text(value)
    words = f"--train {option}" + (f" instead of {stated}" if stated else "")
    return words, replace(asked, train=(option, *(each for each in asked.train if each != stated)))


def _with_fixed_value(asked: TrainingQuery, name: str, value: Value) -> tuple[str, TrainingQuery]:
    """The option that sets a parameter to another value, and the question with it."""
    texts = {
        each: f"{each}={','.join(map(value_text, values))}"
        for each, values in parameter_choices(asked.fixed).items()
    }
    option = f"{name}={value_text(value)}"
    words = f"--fix {option}" + (f" instead of {texts[name]}" if name in texts else "")
    return words, replace(asked, fixed=(*({**texts, name: option}).values(),))


_CHANGES: Final = {"trained": _with_other_weights, "precision": _with_precision}


def _fits_with_hosts(problem: Problem, num_accelerators: int) -> bool:
    """Whether any strategy fits, and host memory has room for what the best one offloads."""
    if not SEARCH_CACHE.fits(problem, num_accelerators):
        return False
    if not {"offload", "activation_offload"} & {*problem.choices}:
        return True
    (found,) = SEARCH_CACHE.searches(problem, (num_accelerators,)).sizes
    return found.best is not None and beyond_hosts(problem, found.best.strategy) is None
