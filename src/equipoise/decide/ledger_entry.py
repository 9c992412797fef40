"""A prediction as a ledger keeps it: one number of one set-up, and what was measured of it since."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, Literal, TypeAlias, get_args

from equipoise.decide.estimate import LEVEL, EstimatorName
from equipoise.decide.field import MAX_ACCELERATORS
from equipoise.errors import SpecError, UsageError
from equipoise.spec.strategy import strategy as strategy_of

Quantity: TypeAlias = Literal["time_to_train_s", "step_s", "samples_per_s"]
_MAX_TEXT: Final = 1000
_MAX_SAMPLES: Final = 10**12
# The ways of `bench` that a strategy states too, by the ZeRO stages that they are.
_ZERO_STAGES: Final[Mapping[str, tuple[int, ...]]] = {"ddp": (0,), "static_graph": (0,), "fsdp": (2, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPrediction:
    """One predicted number: by which verb, of which set-up, with its interval at `level`.

    strategy, global_batch_samples: None where the prediction is of any. kind, ref: the estimator that has
    most weight in it, and its name. Raises UsageError for a number that is none.
    """

    verb: str
    workload: str | None
    accelerator: str | None
    num_accelerators: int
    quantity: Quantity
    value: float
    low: float
    high: float
    kind: EstimatorName
    strategy: str | None = None
    global_batch_samples: int | None = None
    level: float = LEVEL
    ref: str = ""

    def __post_init__(self) -> None:
        """Refuse what no later run can be compared with."""
        for name, value in (
            ("num_accelerators", self.num_accelerators),
            ("batch", self.global_batch_samples),
        ):
            most = MAX_ACCELERATORS if name == "num_accelerators" else _MAX_SAMPLES
            if value is not None and not (_is_whole(value) and 1 <= value <= most):
                raise UsageError(
                    f"a prediction has {name}={value!r}; expected a whole number, at most {most:,}"
                )
        ends = (self.low, self.value, self.high)
        if not all(is_amount(each) for each in ends) or not self.low <= self.value <= self.high:
            raise UsageError(f"a prediction is {ends}; expected low <= value <= high, finite and above 0")
        if not is_amount(self.level) or not self.level < 1.0:
            raise UsageError(f"a prediction has level={self.level!r}; expected a fraction")
        known = self.quantity in get_args(Quantity) and self.kind in get_args(EstimatorName)
        texts = [text for text in (self.workload, self.accelerator, self.strategy) if text is not None]
        if not known or not all(is_text(text) for text in (*texts, self.verb, self.ref)):
            raise UsageError(
                f"a prediction has quantity={self.quantity!r}, kind={self.kind!r}: see docs/decide/ledger.md"
            )

    @property
    def set_up(self) -> tuple[object, ...]:
        """What two predictions share where the later one replaces the earlier."""
        return (
            self.verb,
            self.workload,
            self.accelerator,
            self.num_accelerators,
            self.strategy,
            self.global_batch_samples,
            self.quantity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run took. source: its name, by which it counts once; None where it has none."""

    quantity: Quantity
    value: float
    source: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is no amount."""
        if self.quantity not in get_args(Quantity) or not is_amount(self.value):
            raise UsageError(f"measured {self.quantity}={self.value!r}; expected a finite number above 0")
        if self.source is not None and not is_text(self.source):
            raise UsageError(f"source={self.source!r}; expected the name of a run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A prediction of the ledger with what was measured of it since. made: when, ISO 8601 in UTC."""

    id: str
    made: str
    prediction: RecordedPrediction
    measured: tuple[Measured, ...]

    @property
    def outcome(self) -> float | None:
        """The median of what was measured; None where nothing was."""
        return median(each.value for each in self.measured) if self.measured else None

    @property
    def error(self) -> float | None:
        """Predicted time over the measured one, minus 1; of rates the inverse. None where nothing was."""
        if self.outcome is None:
            return None
        ratio = self.prediction.value / self.outcome
        return (1.0 / ratio if self.prediction.quantity == "samples_per_s" else ratio) - 1.0

    @property
    def is_covered(self) -> bool | None:
        """Whether the interval covers what was measured; None where nothing was."""
        if self.outcome is None:
            return None
        return self.prediction.low <= self.outcome <= self.prediction.high


def measured_value(row: Mapping[str, Any], prediction: RecordedPrediction) -> float | None:
    """What a row of the table `runs` measured of a prediction; None where it is of another set-up."""
    same = all(row[name] == getattr(prediction, name) for name in ("workload", "accelerator"))
    batches = {row["global_batch_samples"], prediction.global_batch_samples} - {None}
    if not same or len(batches) > 1 or not _is_same_strategy(row["strategy"], prediction.strategy):
        return None
    if prediction.quantity == "step_s":
        batch, rate = row["global_batch_samples"], row["samples_per_s"]
        value = batch / rate if batch and rate else None
    else:
        value = row[prediction.quantity]
    return value if value is not None and is_amount(value) else None


def _is_same_strategy(ran: str | None, predicted: str | None) -> bool:
    """Whether a run was parallelised as predicted, as far as both are stated.

    ran: text of a strategy, or a way to train as `bench` names it. What `bench` does besides plain and
    sharded data parallelism no strategy states.
    """
    if ran is None or predicted is None or ran == predicted:
        return True
    try:
        stated = strategy_of(predicted)
    except SpecError:
        return False
    is_data_parallel = stated.dp == stated.num_accelerators and stated.compression == "none"
    return is_data_parallel and stated.zero_stage in _ZERO_STAGES.get(ran, ())


def is_text(value: object) -> bool:
    """Whether it is a text short enough for a line."""
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_amount(value: object) -> bool:
    """Whether it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return 0.0 < float(value) < math.inf
    except OverflowError:
        return False
