"""The record of the advised number: its errors over what was held out, and what of it ships.

`python -m equipoise.advice.forecast.advice_record` backtests the embedded data, writes data/advice.json.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from equipoise.advice.forecast.held_out_advice import (
    OBJECTIVES,
    OURS,
    HeldOutAdvice,
    HeldOutPart,
    Objective,
    held_out_advice,
)
from equipoise.errors import DataError
from equipoise.runs import embedded
from equipoise.scaling.backtest import JUMPS
from equipoise.units import significant

ALL_JUMPS = "all"
# Of numbers sought on the curves of published results alone, and on those combined with the model's
# (decide/records/combined_advice.py).
PUBLISHED, JOINED = "advice.json", "joined_advice.json"
_NUM_DIGITS = 5
# Up to four times the largest known, and beyond: too few groups are compared to tell more apart.
_JUMPS = JUMPS[-2:]
_PARTS: Mapping[HeldOutPart, str] = {
    "largest": "the largest size of a group",
    "half": "the larger half of a group's sizes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How right one way to choose a number was. within_doubling, doublings: of the numbers compared.

    regret: what the numbers compared lose against those found, on the curve of all sizes; measured_regret:
    what all lose against the best measured size, censored or not. None where nothing was compared.
    """

    within_doubling: float | None
    median_doublings: float | None
    median_regret: float | None
    p90_regret: float | None
    mean_measured_regret: float | None
    p90_measured_regret: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceErrors:
    """The errors for one objective where sizes were held out in one way, at some jumps in size.

    num_compared: groups where the number advised and the one found lie inside the sizes. Of the others:
    num_both_beyond lie at the largest size or beyond; num_advised_beyond and num_found_beyond, only one of
    the two; the rest lie at the smallest or below. coverage: how often the 90 % interval held.
    ways: ours and the simple rules, over the same groups.
    """

    objective: Objective
    held_out: HeldOutPart
    jump: str
    num_groups: int
    num_compared: int
    num_both_beyond: int
    num_advised_beyond: int
    num_found_beyond: int
    coverage: float
    ways: Mapping[str, Way]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRecord:
    """How right numbers like this one were. of: over what, in words; the rest as in AdviceErrors."""

    objective: Objective
    of: str
    num_groups: int
    num_compared: int
    within_doubling: float
    median_regret: float
    p90_regret: float
    coverage: float


def advice_errors(results: Sequence[HeldOutAdvice]) -> tuple[AdviceErrors, ...]:
    """The errors of every objective and part held out, over all and by jump; without those of no group."""
    jumps = ((ALL_JUMPS, 0.0, np.inf), *_JUMPS)
    found = []
    for objective in OBJECTIVES:
        for part in _PARTS:
            asked = [one for one in results if (one.objective, one.held_out) == (objective, part)]
            for name, above, most in jumps:
                kept = [one for one in asked if above < one.jump <= most]
                if kept:
                    found.append(_errors(kept, name))
    return tuple(found)


def _errors(kept: Sequence[HeldOutAdvice], jump: str) -> AdviceErrors:
    beyond = [(one.advised.limited_by is not None, one.found.limited_by is not None) for one in kept]
    return AdviceErrors(
        objective=kept[0].objective,
        held_out=kept[0].held_out,
        jump=jump,
        num_groups=len(kept),
        num_compared=sum(one.is_compared for one in kept),
        num_both_beyond=beyond.count((True, True)),
        num_advised_beyond=beyond.count((True, False)),
        num_found_beyond=beyond.count((False, True)),
        coverage=float(np.mean([one.is_covered for one in kept])),
        ways={name: _way(kept, name) for name in kept[0].losses},
    )


def _way(kept: Sequence[HeldOutAdvice], name: str) -> Way:
    compared = [one for one in kept if one.is_compared]
    doublings = [one.num_doublings(name) for one in compared]
    regret = [one.losses[name].curve for one in compared]
    measured = [loss for one in kept if (loss := one.losses[name].measured) is not None]
    return Way(
        within_doubling=float(np.mean(np.array(doublings) <= 1.0)) if compared else None,
        median_doublings=float(np.median(doublings)) if compared else None,
        median_regret=float(np.median(regret)) if compared else None,
        p90_regret=float(np.quantile(regret, 0.9)) if compared else None,
        mean_measured_regret=float(np.mean(measured)) if measured else None,
        p90_measured_regret=float(np.quantile(measured, 0.9)) if measured else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedAdvice:
    """The record that ships; dataset: the version it is of."""

    dataset: str
    errors: tuple[AdviceErrors, ...]

    def record(self, objective: Objective = "answer", *, jump: float = 1.0) -> AdviceRecord | None:
        """How right the advised number was; None where none was ever held against one found.

        jump: the largest size asked about over the largest with a time. Near jumps are those of the group's
        largest size held out, far ones those of its larger half: the others are few.
        """
        (near, _, most), (far, _, _) = _JUMPS
        part, name = ("largest", near) if jump <= most else ("half", far)
        for each in self.errors:
            ours = each.ways[OURS]
            if (each.objective, each.held_out, each.jump) != (objective, part, name):
                continue
            if ours.within_doubling is None or ours.median_regret is None or ours.p90_regret is None:
                return None
            return AdviceRecord(
                objective=objective,
                of=f"{_PARTS[each.held_out]} held out, {name} the largest known",
                num_groups=each.num_groups,
                num_compared=each.num_compared,
                within_doubling=ours.within_doubling,
                median_regret=ours.median_regret,
                p90_regret=ours.p90_regret,
                coverage=each.coverage,
            )
        return None


@cache
def shipped_advice(name: str = PUBLISHED) -> ShippedAdvice:
    """What ships, PUBLISHED or JOINED. Raises DataError where the file is missing or is no such record."""
    path = files("equipoise") / "data" / name
    try:
        found = orjson.loads(path.read_bytes())
        return ShippedAdvice(
            dataset=found["dataset"], errors=tuple(_read_errors(each) for each in found["errors"])
        )
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"{path}: {err!r}; expected a record of advised numbers: `make dataset profiles` writes it"
        ) from err


def _read_errors(found: Mapping[str, Any]) -> AdviceErrors:
    ways = {name: Way(**each) for name, each in found["ways"].items()}
    return AdviceErrors(**{**found, "ways": ways})


def write_advice(name: str, results: Sequence[HeldOutAdvice]) -> None:
    """Write the record of some results beside the embedded tables, under a name."""
    document = {
        "dataset": embedded.version(),
        "errors": [asdict(each) for each in advice_errors(results)],
    }
    encoded = orjson.dumps(
        significant(document, _NUM_DIGITS), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
    Path(str(files("equipoise") / "data" / name)).write_bytes(encoded)


def main() -> int:
    """Write the record of the curves of published results."""
    write_advice(PUBLISHED, held_out_advice(embedded.load().scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
