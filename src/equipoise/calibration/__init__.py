"""Calibration and accuracy: from measured rows to executions, fits, profiles and error records; `validate`.

Rows: published/, accuracy, {step,scale_up}_rows, validate, profiles.
Times by size: curves, forecasts, advice_backtest.
Links: collective_runs, collective_verdicts, user_collectives, user_links.
"""

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

EstimatorName: TypeAlias = Literal["published", "measured", "model"]
# Standard deviation of the log step time predicted with the priors alone, in addition to the spread of the
# priors: with it, the 90 % intervals cover 90 % of 884 steps, each of 160 sources counted once:
# docs/experiments/0080.
UNCALIBRATED_LOG_SD = 0.45


class EvidenceSource(Struct, frozen=True, kw_only=True):
    """Source of a number. ref: an entry, a run, a formula. share: fraction of the estimator's weight.

    time_s: the time at num_accelerators that the source states, or None. is_same_group: whether the source is
    of the user, or of the same system and round as the curve.
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
    """Errors of predictions of one kind on held-out results. coverage: of the 90 % interval.

    of: description of what was held out. num_held_out: number of held-out results. None means unknown.
    """

    of: str
    num_held_out: int
    median_abs_error: float
    p90_abs_error: float | None = None
    coverage: float | None = None
