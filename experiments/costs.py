"""The field report's returns on a second GPU: under which readings they follow from its times.

    python experiments/costs.py [--write]

--write puts the tables into docs/experiments/0019-costs.md, between its markers.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from msgspec import Struct

PAGE = Path(__file__).parents[1] / "docs" / "experiments" / "0019-costs.md"
EXTRA_POWER_USD = 45.0
SIZES = ("small", "medium", "large")
RETURNS_USD = {"small": -180.0, "medium": 35.0, "large": 420.0}
# Hours on one GPU and on two, as stated, and half the last digit of each.
HOURS = {
    "small CNN": (45 / 60, 68 / 60, 0.5 / 60, 0.5 / 60),
    "MobileNetV2": (1.2, 1.5, 0.05, 0.05),
    "ResNet-50": (4.5, 3.8, 0.05, 0.05),
    "ResNet-152": (12.0, 7.5, 0.5, 0.05),
    "ViT-Large": (48.0, 28.0, 0.5, 0.5),
}
# What is the same for the three: the number of trainings, or the hours in which the machine is busy, counted
# with one GPU or with two.
COUNTS = ("trainings", "hours with one GPU", "hours with two GPUs")
# Returns are multiples of 5 USD.
ROUNDED_USD = 2.5
# Of a linear inequality.
_ROUNDING = 1e-8


class Range(Struct, frozen=True, kw_only=True):
    """An amount known by its ends: of a rounded figure, what rounds to it."""

    low: float
    high: float


class Consistent(Struct, frozen=True, kw_only=True):
    """Values and costs with which returns follow from savings.

    usd_per_unit: of what one unit of saving is worth. costs_usd: what each return has less, the same for all.
    corners: (cost, value) at the corners of the set.
    """

    usd_per_unit: Range
    costs_usd: Range
    corners: tuple[tuple[float, float], ...]

    def holds(self, costs_usd: float) -> bool:
        """Whether these costs are in the set."""
        return self.costs_usd.low <= costs_usd <= self.costs_usd.high


def consistent(returns_usd: Mapping[str, Range], saved: Mapping[str, Range]) -> Consistent | None:
    """All pairs of value and cost for which every return follows from its saving; None where there are none.

    returns_usd, saved: by name, what was stated with its rounding. Values and costs are not negative.
    Assumes one value of a unit and one cost for all names.
    Source: linear programming: the corners of return <= value x saving - cost <= return over their ranges,
    found by crossing every pair of edges.
    """
    edges = [*_edges(returns_usd, saved), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)]
    corners = sorted(
        {
            (round(cost, 9), round(value, 9))
            for value, cost in _crossings(edges)
            if _keeps(edges, value=value, cost=cost)
        }
    )
    if not corners:
        return None
    costs, values = [each[0] for each in corners], [each[1] for each in corners]
    return Consistent(
        usd_per_unit=Range(low=min(values), high=max(values)),
        costs_usd=Range(low=min(costs), high=max(costs)),
        corners=tuple(corners),
    )


def _edges(
    returns_usd: Mapping[str, Range], saved: Mapping[str, Range]
) -> Iterator[tuple[float, float, float]]:
    """Inequalities a value + b cost >= c, two for each name.

    The worth of a saving is at most value x its upper end and at least value x its lower one.
    """
    for name, stated in returns_usd.items():
        yield saved[name].high, -1.0, stated.low
        yield -saved[name].low, 1.0, -stated.high


def _crossings(edges: Sequence[tuple[float, float, float]]) -> Iterator[tuple[float, float]]:
    """Where two edges cross: value and cost."""
    for (a, b, c), (d, e, f) in combinations(edges, 2):
        determinant = a * e - b * d
        if determinant:
            yield (c * e - b * f) / determinant, (a * f - c * d) / determinant


def _keeps(edges: Sequence[tuple[float, float, float]], *, value: float, cost: float) -> bool:
    """Whether every inequality holds, up to rounding."""
    return all(
        a * value + b * cost >= c - _ROUNDING * (1.0 + abs(a * value) + abs(cost)) for a, b, c in edges
    )


class Reading(Struct, frozen=True, kw_only=True):
    """Which models the sizes are, and what they have in common."""

    models: tuple[str, str, str]
    same: str

    def saved(self) -> dict[str, Range]:
        """Hours saved a training, or a busy hour."""
        return {size: _saved(model, self.same) for size, model in zip(SIZES, self.models, strict=True)}


def _saved(model: str, same: str) -> Range:
    one, two, round_one, round_two = HOURS[model]
    ends = [
        (one + sign * round_one, two + other * round_two) for sign in (-1.0, 1.0) for other in (-1.0, 1.0)
    ]
    found = [
        {"trainings": a - b, "hours with one GPU": (a - b) / a, "hours with two GPUs": (a - b) / b}[same]
        for a, b in ends
    ]
    return Range(low=min(found), high=max(found))


def readings() -> Iterator[Reading]:
    """Every way to name three of the five models small, medium and large."""
    for models in combinations(HOURS, 3):
        for same in COUNTS:
            yield Reading(models=models, same=same)


def allowed(reading: Reading) -> Consistent | None:
    """Values of a saved hour (times what is the same) and costs with which all three returns follow."""
    returns = {
        size: Range(low=usd - ROUNDED_USD, high=usd + ROUNDED_USD) for size, usd in RETURNS_USD.items()
    }
    return consistent(returns, reading.saved())


def worth_usd(model: str, size: str, *, times: float) -> float:
    """What an hour saved times the number of trainings is worth, where nothing but power is charged.

    times: how often the 45 USD are paid in the three months.
    """
    one, two, *_ = HOURS[model]
    return (RETURNS_USD[size] + times * EXTRA_POWER_USD) / (one - two)


def tables() -> str:
    """The tables of the page."""
    head = "| size | model | saved a training | value x trainings, power once | power each month |\n"
    lines = [head, "|---|---|---|---|---|\n"]
    for size, models in (
        ("small", ("small CNN", "MobileNetV2")),
        ("medium", ("ResNet-50", "ResNet-152")),
        ("large", ("ResNet-152", "ViT-Large")),
    ):
        for model in models:
            one, two, *_ = HOURS[model]
            amounts = [worth_usd(model, size, times=times) for times in (1.0, 3.0)]
            lines.append(
                f"| {size} | {model} | {one - two:+.2f} h | {amounts[0]:.0f} USD | {amounts[1]:.0f} USD |\n"
            )
    lines.append(
        "\n| small, medium, large | the same for all three | value | costs | power once | each month |\n"
    )
    lines.append("|---|---|---|---|---|---|\n")
    found = [(each, allowed(each)) for each in readings()]
    for each, able in found:
        if able is not None:
            value, cost = able.usd_per_unit, able.costs_usd
            lines.append(
                f"| {', '.join(each.models)} | {each.same} | {value.low:.0f} to {value.high:.0f} USD | "
                f"{cost.low:.0f} to {cost.high:.0f} USD | {_yes(able, 1)} | {_yes(able, 3)} |\n"
            )
    refused = sum(able is None for _, able in found)
    lines.append(f"\n{refused} of {len(found)} readings allow no value and cost at all.\n")
    return "".join(lines)


def _yes(found: Consistent, times: int) -> str:
    return "in the set" if found.holds(times * EXTRA_POWER_USD) else "not"


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if not parser.parse_args().write:
        print(tables())
        return
    page = PAGE.read_text(encoding="utf-8")
    made = re.sub(
        r"(<!-- tables -->\n).*(<!-- end -->)",
        lambda found: f"{found[1]}{tables()}{found[2]}",
        page,
        flags=re.DOTALL,
    )
    PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
