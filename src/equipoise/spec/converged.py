"""How logs state the samples that a training took to its target."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from equipoise.spec.facts import Block

Per: TypeAlias = Literal["sample", "epoch", "token", "step"]
PERS: tuple[Per, ...] = ("sample", "epoch", "token", "step")
_KEYS = frozenset({"key", "per", "counts_from_zero", "above", "below", "first_round", "last_round"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Converged:
    """One way in which logs state samples to target: a key, what it counts, where that holds."""

    key: str
    per: Per
    counts_from_zero: bool = False
    above: float = -math.inf
    below: float = math.inf
    first_round: float = 0.0
    last_round: float = math.inf


# What every benchmark since v4.0 is asked to log; the reading for a workload that the table does not have.
UNKNOWN_CONVERGED = (Converged(key="samples_count", per="sample"),)


def read_converged(block: Block) -> Converged:
    """One way of stating samples to target."""
    block.check_keys(_KEYS)
    key, per = block.text("key"), block.text("per")
    if key is None:
        raise block.refuse("key", "the name of a log key")
    for choice in PERS:
        if per == choice:
            stated = {name: block.number(name) for name in ("above", "below", "first_round", "last_round")}
            bounds = {name: value for name, value in stated.items() if value is not None}
            from_zero = block.fields.get("counts_from_zero", False)
            if not isinstance(from_zero, bool):
                raise block.refuse("counts_from_zero", "true or false")
            return Converged(key=key, per=choice, counts_from_zero=from_zero, **bounds)
    raise block.refuse("per", " or ".join(PERS))


def samples_stated(
    ways: Sequence[Converged],
    stated: Mapping[str, object],
    *,
    round_number: float,
    samples_each: Mapping[Per, float],
) -> float | None:
    """Samples to target by the first way that applies to what a log states; None where none does.

    samples_each: samples in one unit of what a log counts; units of which nothing is known are not in it.
    """
    for way in ways:
        value, each = stated.get(way.key), samples_each.get(way.per)
        if each is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not (way.first_round <= round_number <= way.last_round and way.above <= value < way.below):
            continue
        try:
            samples = (float(value) + (1 if way.counts_from_zero else 0)) * each
        except OverflowError:
            continue
        if math.isfinite(samples) and samples > 0:
            return samples
    return None
