"""The field report's returns on a second GPU: under which readings they follow from its times.

    python experiments/costs.py [--write]

--write puts the tables into docs/experiments/0019-costs.md, between its markers.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from equipoise.economics.payback import Consistent, Range, consistent

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
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
