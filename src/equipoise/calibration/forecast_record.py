"""Records that ship: settings and errors of the pooled law, and how right recommended numbers were."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import orjson
from msgspec import Struct, field, to_builtins

from equipoise.calibration.curves import ForecastRecord
from equipoise.files import shipped_record
from equipoise.runs import embedded
from equipoise.scaling import backtest as scaling
from equipoise.scaling import pooled
from equipoise.scaling.backtest import JUMPS, Protocol
from equipoise.scaling.pooled import SubmitterSpread, submitter_spread
from equipoise.spec.mlperf import best_per_size
from equipoise.units import significant

FORECAST = "forecast.json"
# As many as are the same whatever the order of sums inside a library: the file is then the same bytes.
_NUM_DIGITS = 5
_PROTOCOLS: tuple[tuple[Protocol, bool], ...] = (("largest", False), ("largest", True), ("new_round", False))
_HELD_OUT = {"largest": "the largest size of a group", "new_round": "all but the smallest size of a group"}

HeldOutPart: TypeAlias = Literal["largest", "half"]
Objective: TypeAlias = Literal["answer", "balance", "marginal", "floor", "cost"]
OURS: Final = "equipoise"
ALL_JUMPS = "all"
# Of numbers sought on the curves of published results alone, and on those combined with the model's
# (decide/records/combined.py).
PUBLISHED, COMBINED = "advice.json", "combined_advice.json"
# Up to four times the largest known, and beyond: too few groups are compared for more.
ADVICE_JUMPS = JUMPS[-2:]
HELD_OUT_PARTS: Mapping[HeldOutPart, str] = {
    "largest": "the largest size of a group",
    "half": "the larger half of a group's sizes",
}


class BacktestSummary(Struct, frozen=True, kw_only=True):
    """The errors of one backtest on the embedded data, and of the baselines."""

    protocol: Protocol
    given_batch: bool
    pooled_law: scaling.BacktestRecord
    baselines: Mapping[str, scaling.BacktestRecord]


class Shipped(Struct, frozen=True, kw_only=True):
    """Settings of the pooled law without and with given batches, its record, and the spread of submitters.

    dataset: the version they are of.
    """

    dataset: str
    settings_without_batch: Mapping[str, Any] = field(name="settings")
    settings_given_batch: Mapping[str, Any]
    summaries: tuple[BacktestSummary, ...] = field(name="backtests")
    submitters: SubmitterSpread

    def settings(self, *, given_batch: bool) -> Mapping[str, Sequence[float]]:
        """The settings of the pooled law, as `pooled.fit` takes them."""
        return self.settings_given_batch if given_batch else self.settings_without_batch

    def summary(self, protocol: Protocol, *, given_batch: bool) -> BacktestSummary | None:
        """The whole record of one protocol; None where it was not made."""
        wanted = (
            each for each in self.summaries if (each.protocol, each.given_batch) == (protocol, given_batch)
        )
        return next(wanted, None)

    def record(self, protocol: Protocol, *, jump: float, given_batch: bool) -> ForecastRecord | None:
        """The errors at sizes so many times the largest known; None where none was held out.

        Where none was held out with its batch given, those of batches that the law did not know: no smaller.
        """
        stated = [self.summary(protocol, given_batch=each) for each in dict.fromkeys((given_batch, False))]
        for found, (name, above, most) in product(stated, JUMPS):
            errors = found and found.pooled_law.by_jump.get(name)
            if errors and above < jump <= most and errors.coverage is not None:
                far = f"up to {most:g}" if np.isfinite(most) else f"more than {above:g}"
                return ForecastRecord(
                    of=f"{_HELD_OUT[protocol]}, {far} times the largest known",
                    num_held_out=errors.num_groups,
                    median_abs_error=errors.median_abs_error or 0.0,
                    p90_abs_error=errors.p90_abs_error,
                    coverage=errors.coverage,
                )
        return None


@cache
def shipped() -> Shipped:
    """What ships. Raises DataError where the file is missing or no such record."""
    return shipped_record(FORECAST, Shipped, made_by="dataset")


def forecast_document() -> dict[str, Any]:
    """Settings and record of the embedded data, as they ship."""
    entries = embedded.scores().entries
    best = best_per_size(entries)
    summaries = []
    for protocol, given_batch in _PROTOCOLS:
        result = scaling.backtest(best, protocol=protocol, given_batch=given_batch)
        summaries.append(
            BacktestSummary(
                protocol=protocol,
                given_batch=given_batch,
                pooled_law=result.pooled_law,
                baselines=result.baselines,
            )
        )
    return {
        "dataset": embedded.version(),
        "settings": pooled.fit(best).settings(),
        "settings_given_batch": pooled.fit(best, given_batch=True).settings(),
        "backtests": [to_builtins(each) for each in summaries],
        "submitters": to_builtins(submitter_spread(entries)),
    }


def write_record(name: str, document: Mapping[str, Any], *, num_digits: int = _NUM_DIGITS) -> None:
    """Write a record into the package's data, under a name, its numbers rounded to so many digits."""
    encoded = orjson.dumps(
        significant(document, num_digits), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
    Path(str(files("equipoise") / "data" / name)).write_bytes(encoded)


class Way(Struct, frozen=True, kw_only=True):
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


class AdviceErrors(Struct, frozen=True, kw_only=True):
    """The errors for one objective where sizes were held out in one way, at some jumps in size.

    num_compared: groups where the number advised and the one found lie inside the sizes. Of the others:
    num_both_beyond lie at the largest size or beyond; num_advised_beyond and num_found_beyond, only one of
    the two; the rest lie at the smallest or below. coverage: how often the 90 % interval held.
    methods: advice and the simple rules, over the same groups.
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
    methods: Mapping[str, Way]


class AdviceRecord(Struct, frozen=True, kw_only=True):
    """How right numbers like this one were. of: over what, in words; the rest as in AdviceErrors."""

    objective: Objective
    of: str
    num_groups: int
    num_compared: int
    within_doubling: float
    median_regret: float
    p90_regret: float
    coverage: float


class ShippedAdvice(Struct, frozen=True, kw_only=True):
    """The record that ships; dataset: the version it is of."""

    dataset: str
    errors: tuple[AdviceErrors, ...]

    def record(self, objective: Objective = "answer", *, jump: float = 1.0) -> AdviceRecord | None:
        """How right the advised number was; None where none was ever held against one found.

        jump: the largest size in question over the largest with a time. Near jumps are those of the group's
        largest size held out, far ones those of its larger half: the others are few.
        """
        (near, _, most), (far, _, _) = ADVICE_JUMPS
        part, name = ("largest", near) if jump <= most else ("half", far)
        for each in self.errors:
            ours = each.methods[OURS]
            if (each.objective, each.held_out, each.jump) != (objective, part, name):
                continue
            if ours.within_doubling is None or ours.median_regret is None or ours.p90_regret is None:
                return None
            return AdviceRecord(
                objective=objective,
                of=f"{HELD_OUT_PARTS[each.held_out]} held out, {name} the largest known",
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
    """What ships, PUBLISHED or COMBINED. Raises DataError where the file is missing or is no such record."""
    return shipped_record(name, ShippedAdvice, made_by="dataset profiles")
