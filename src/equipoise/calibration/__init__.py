"""How wrong is it? Measured rows to executions, fits, profiles and error records; `validate`.

Rows: published/, accuracy, {step,scale_up}_rows, validate, profiles.
Times by size: curves, forecasts, advice_backtest.
Links: collective_runs, collective_verdicts, user_collectives, user_links.
"""

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

EstimatorName: TypeAlias = Literal["published", "measured", "model"]
# How wrong steps by the priors alone are, of their logarithm, besides what the priors leave open: with it
# 90 % of 884 steps lie inside their ranges, each of 160 sources counted once: docs/experiments/0080.
UNCALIBRATED_LOG_SD = 0.45


class EvidenceSource(Struct, frozen=True, kw_only=True):
    """Where a number comes from. ref: an entry, a run, a formula. share: of the estimator's weight.

    time_s: the time at num_accelerators that the source states; None where it states none. is_same_group:
    whether it is of the very system and round, or of the user, whose curve it bears on.
    """

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("is_same_group",)

    kind: EstimatorName
    ref: str
    share: float | None = None
    num_accelerators: int | None = None
    time_s: float | None = None
    source_uri: str | None = None
    source_line: int | None = None
    is_same_group: bool = False


class HeldOutErrors(Struct, frozen=True, kw_only=True):
    """How wrong predictions of this kind were on results held out. coverage: of the 90 % interval.

    of: what was held out, in words. num_held_out: how many results the figures are from. None is not known.
    """

    of: str
    num_held_out: int
    median_abs_error: float
    p90_abs_error: float | None = None
    coverage: float | None = None
