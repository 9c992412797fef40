"""Accuracy of predictions: held-out rows, intervals, errors by cluster, and regret of choosing by them."""

import math
import re
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.calibration.published import PublishedRow
from equipoise.calibration.published.models import known_workload
from equipoise.errors import EvidenceError, UsageError
from equipoise.intervals import DEVIATE, LEVEL
from equipoise.runs import Progress
from equipoise.runs.readers.cells import quoted
from equipoise.spec.strategy import AXES
from equipoise.stats import conformal_half_width


def cluster_weights(clusters: NDArray[np.intp]) -> NDArray[np.float64]:
    """Weights that make every cluster count once: one over its number of rows; same shape as `clusters`."""
    _, inverse, counts = np.unique(clusters, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[inverse])


# With fewer clusters, a distribution fitted to their errors is more reliable than an empirical quantile.
_FEWEST_FOR_QUANTILE = 20


class TimeErrors(Struct, frozen=True, kw_only=True):
    """|predicted time / measured time - 1|, averaged over the executions of each cluster.

    mape, median, p90: over clusters. coverage: fraction of executions inside their intervals, each cluster
    counted once. mape_by_execution, median_by_execution: with every execution counted once.
    """

    num_executions: int
    num_clusters: int
    mape: float
    median: float
    p90: float
    coverage: float
    mape_by_execution: float
    median_by_execution: float


class MemoryErrors(Struct, frozen=True, kw_only=True):
    """|predicted / stated - 1| of memory, over the executions that state it."""

    num_executions: int
    mean: float
    largest: float


def time_errors(
    *,
    measured_s: NDArray[np.float64],
    predicted_s: NDArray[np.float64],
    low_s: NDArray[np.float64],
    high_s: NDArray[np.float64],
    clusters: NDArray[np.intp],
) -> TimeErrors:
    """The errors of executions. All arguments have shape (n_executions,), with at least one execution."""
    error = np.abs(predicted_s / measured_s - 1.0)
    inside = (low_s <= measured_s) & (measured_s <= high_s)
    weights = cluster_weights(clusters)
    _, member = np.unique(clusters, return_inverse=True)
    of_cluster = np.bincount(member, weights=weights * error)
    return TimeErrors(
        num_executions=len(error),
        num_clusters=len(of_cluster),
        mape=float(np.mean(of_cluster)),
        median=float(np.median(of_cluster)),
        p90=float(np.quantile(of_cluster, 0.9)),
        coverage=float(np.average(inside, weights=weights)),
        mape_by_execution=float(np.mean(error)),
        median_by_execution=float(np.median(error)),
    )


def memory_errors(measured: Sequence[float | None], predicted: Sequence[float | None]) -> MemoryErrors | None:
    """Errors of memory over the executions that state it and have a prediction; None if there are none."""
    errors = [
        abs(value / stated - 1.0)
        for stated, value in zip(measured, predicted, strict=True)
        if stated is not None and value is not None
    ]
    if not errors:
        return None
    return MemoryErrors(num_executions=len(errors), mean=float(np.mean(errors)), largest=max(errors))


def half_width(residuals: NDArray[np.float64], clusters: NDArray[np.intp], *, level: float) -> float:
    """The bound on |log(measured / predicted)| of a new row at a confidence level; NaN without residuals.

    residuals: (n_rows,) log residuals of held-out rows. clusters: (n_rows,) cluster of each row.
    Assumes that the errors of new rows are distributed alike; for few clusters, that they are normal.
    Source: `conformal_half_width`; for few clusters, Student 1908.
    """
    if not len(residuals):
        return float("nan")
    weights = cluster_weights(clusters)
    num_clusters = len(np.unique(clusters))
    if num_clusters >= _FEWEST_FOR_QUANTILE:
        return conformal_half_width(residuals, clusters, level=level)
    from scipy.special import stdtrit  # noqa: PLC0415 - loading it takes as long as a plan

    rms = np.sqrt(np.average(residuals**2, weights=weights))
    # Prediction interval for a new cluster: its own error, and the uncertainty of a spread from few clusters.
    return float(stdtrit(num_clusters, (1 + level) / 2) * rms * np.sqrt(1 + 1 / num_clusters))


# A group with fewer strategies offers too little choice.
FEWEST_CHOICES = 4


class Regret(Struct, frozen=True, kw_only=True):
    """Measured time of the strategy predicted as fastest over that of the fastest, minus one; over groups.

    A group has the same model, batch and number of accelerators under at least FEWEST_CHOICES strategies.
    """

    num_groups: int
    mean: float
    largest: float


def regret(rows: Sequence[PublishedRow], predicted_s: Sequence[float]) -> Regret | None:
    """The regret over all groups of some executions; None if no group is large enough.

    Assumes that repeated measurements of a strategy, and strategies with equal predictions, are averaged.
    """
    groups: dict[Hashable, dict[Hashable, list[tuple[float, float]]]] = {}
    for row, row_predicted_s in zip(rows, predicted_s, strict=True):
        if row.kind != "step" or row.strategy is None or row.model is None or row.seconds is None:
            continue
        job = (row.workload, row.model.transformer, row.model.sequence, row.hardware, row.num_accelerators)
        of_job = groups.setdefault((*job, row.strategy.global_batch_samples), {})
        of_job.setdefault(row.strategy, []).append((row_predicted_s, row.seconds))
    costs = [_group_regret(choices) for choices in groups.values() if len(choices) >= FEWEST_CHOICES]
    if not costs:
        return None
    return Regret(num_groups=len(costs), mean=sum(costs) / len(costs), largest=max(costs))


def _group_regret(choices: dict[Hashable, list[tuple[float, float]]]) -> float:
    """Regret of one group."""
    means = [
        (sum(value for value, _ in pairs) / len(pairs), sum(was for _, was in pairs) / len(pairs))
        for pairs in choices.values()
    ]
    least_s = min(value for value, _ in means)
    chosen_s = [was for value, was in means if value == least_s]
    return sum(chosen_s) / len(chosen_s) / min(was for _, was in means) - 1.0


Indices: TypeAlias = NDArray[np.intp]
Seconds: TypeAlias = NDArray[np.float64]


class PredictedRows(Struct, frozen=True, kw_only=True):
    """Predicted seconds of all rows of a task, with their uncertainty.

    All have shape (n_rows,), with NaN or None for unknown. prior_log_sd: standard deviation of log seconds
    where nothing was fitted. further_log_sd: additional standard deviation from parameters that matter more
    for a row than for the fitted rows. memory_bytes: as frameworks report it for the fullest accelerator.
    bases: the Profile behind each prediction; None if it was fitted to rows or uses the priors.
    """

    seconds: Seconds
    prior_log_sd: Seconds
    further_log_sd: Seconds
    memory_bytes: NDArray[np.float64]
    bases: NDArray[np.object_]

    def take(self, members: Indices, other: "PredictedRows") -> None:
        """Overwrite the rows `members` with those of `other`."""
        for name in self.__struct_fields__:
            getattr(self, name)[members] = getattr(other, name)[members]


def unpredicted(num_rows: int) -> PredictedRows:
    """`num_rows` rows without predictions."""
    seconds, prior_log_sd, further_log_sd, memory_bytes = (np.full(num_rows, np.nan) for _ in range(4))
    return PredictedRows(
        seconds=seconds,
        prior_log_sd=prior_log_sd,
        further_log_sd=further_log_sd,
        memory_bytes=memory_bytes,
        bases=np.full(num_rows, None),
    )


class PredictionTask(Struct, frozen=True, kw_only=True):
    """The rows handled by one predictor.

    by: the predictor. reasons: for each row, why it cannot be predicted, or None. given: rows from which
    others are predicted, and which are not predicted themselves. predict: fits to the rows with the given
    indices, possibly none, and predicts all rows.
    """

    by: str
    rows: Sequence[PublishedRow]
    reasons: tuple[str | None, ...]
    predict: Callable[[Indices], PredictedRows]
    given: frozenset[int] = frozenset()

    def aims(self, tested: AbstractSet[int]) -> Indices:
        """Indices of the rows to predict: those whose executions are in `tested`."""
        return self._expressed([row.execution in tested for row in self.rows])

    def others(self, tested: AbstractSet[int]) -> Indices:
        """Indices of the further rows to which it may be fitted."""
        return self._expressed([row.execution not in tested for row in self.rows])

    def _expressed(self, wanted: Sequence[bool]) -> Indices:
        found = (why is None and at not in self.given for at, why in enumerate(self.reasons))
        return np.flatnonzero(
            [each and is_expressed for each, is_expressed in zip(wanted, found, strict=True)]
        )


class Predictor(Struct, frozen=True, kw_only=True):
    """One method of prediction. claims: which of all rows it handles. begin: makes the task for them."""

    claims: Callable[[Sequence[PublishedRow]], Sequence[bool]]
    begin: Callable[[Sequence[PublishedRow]], PredictionTask]


NONE = "none"
_LEAVE = re.compile(r"leave-(half-of-)?([a-z0-9_]+(?:\+[a-z0-9_]+){0,7})-out")


def _size(name: str) -> Callable[[PublishedRow], object]:
    """A function for a size of the model, from its transformer, else from the cell of the row."""

    def value(row: PublishedRow) -> object:
        model = None if row.model is None else row.model.transformer
        return row.cells.get(name, "").strip() if model is None else getattr(model, name)

    return value


def _parameter(name: str) -> Callable[[PublishedRow], object]:
    """A function for a parameter of the parsed strategy."""
    return lambda row: None if row.strategy is None else getattr(row.strategy, name)


def _strategy(row: PublishedRow) -> object:
    """The kind of strategy, in words: the axes in use, and every parameter that is not a size."""
    found = row.strategy
    if found is None:
        return row.cells.get("parallel_config", "").strip()
    words = [axis for axis in AXES if getattr(found, axis) > 1]
    words += [f"zero{found.zero_stage}"] if found.zero_stage else []
    words += ["interleaved"] if found.interleave > 1 else []
    words += [name for name in ("sequence_parallel", "tp_overlap") if getattr(found, name)]
    words += [found.trained] if found.trained != "full" else []
    return " ".join((*words, f"recompute={found.recompute}", found.precision, found.implementation))


def _model(row: PublishedRow) -> object:
    """The model: its name in the catalogue, else its sizes or its name in the row."""
    known = known_workload(row.workload, row.catalogue) if row.model is None else row.model.known
    if known is not None:
        return known.slug
    return row.workload if row.model is None else row.model.transformer


# Columns whose values are parsed; the values of other columns are compared as text.
_VALUES: dict[str, Callable[[PublishedRow], object]] = {
    "n_gpus": lambda row: row.num_accelerators,
    "model": _model,
    "workload": _model,
    "strategy": _strategy,
    "file": lambda row: row.file,
    "cluster": lambda row: row.cluster,
    **{name: _size(name) for name in ("layers", "hidden", "heads")},
    **{name: _parameter(name) for name in (*AXES, "precision", "recompute", "implementation")},
    "bytes": lambda row: row.payload_bytes,
}


class Split(Struct, frozen=True, kw_only=True):
    """How rows are split into folds: by each value of a column, or (is_half) by alternating values.

    column: several columns are joined by `+`; a value is then their combination.
    """

    column: str
    is_half: bool


def split_of(text: str) -> Split | None:
    """Parse the name of a split; None for `none`.

    Raises UsageError if the text is not a split.

    >>> split_of("leave-n_gpus-out")
    Split(column='n_gpus', is_half=False)
    """
    if text == NONE:
        return None
    match = _LEAVE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--split {text[:80]!r}: expected none, leave-COLUMN-out or leave-half-of-COLUMN-out, such as "
            "leave-n_gpus-out"
        )
    return Split(column=match[2], is_half=match[1] is not None)


def fold_names(rows: Sequence[PublishedRow], split: Split) -> list[str]:
    """The fold of every row: the text of its value in the column, or the half that contains that value.

    Raises UsageError if no row has the column, EvidenceError if all rows have the same value.
    """
    column = split.column
    parts = [_values(rows, name) for name in column.split("+")]
    found = parts[0] if len(parts) == 1 else [" ".join(map(str, each)) for each in zip(*parts, strict=True)]
    distinct = sorted(set(found), key=_order)
    if len(distinct) == 1:
        raise EvidenceError(
            f"every row has {column} = {str(distinct[0])[:80]}: no rows remain to calibrate on",
            missing=(f"rows with another {column}",),
        )
    if split.is_half:
        place = {each: ("first", "second")[at % 2] for at, each in enumerate(distinct)}
        return [f"{place[each]} half of {column}" for each in found]
    return [str(each) for each in found]


def _values(rows: Sequence[PublishedRow], column: str) -> list[object]:
    """The value of every row in one column, parsed if the column is in _VALUES, else as text."""
    value = _VALUES.get(column)
    if value is not None:
        return [value(row) for row in rows]
    if not any(column in row.cells for row in rows):
        known = dict.fromkeys((*_VALUES, *(name for row in rows[:1] for name in row.cells)))
        raise UsageError(f"--split leave-{column}-out: column not found; found {quoted([*known])}")
    return [row.cells.get(column, "").strip() for row in rows]


def _order(value: object) -> tuple[float, str]:
    """Sort key: numbers by value, then everything else by its text."""
    return (float(value), "") if isinstance(value, int | float) else (math.inf, str(value))


# Folds into which the rows of a calibration are split to estimate its errors on unseen rows.
_NUM_INNER_FOLDS = 5


def held_out(
    task: PredictionTask,
    *,
    aims: Indices,
    folds: Sequence[str],
    fitted: Indices,
    progress: Progress | None,
) -> tuple[PredictedRows, Seconds]:
    """Cross-validated predictions: each fold is predicted by models fitted to the other folds and `fitted`.

    aims: indices of the rows to predict. folds: the fold of each; if all are equal, models are fitted to
    `fitted` alone. fitted: indices of further rows to fit to. Intervals come from the errors on the other
    folds, or from cross-validation within `fitted`.
    Returns also the half-width of every row's interval in log time; (n_rows,), NaN for rows not in `aims`.
    """
    measured_s = np.array([row.seconds for row in task.rows], dtype=float)
    clusters = np.array([row.cluster for row in task.rows], dtype=np.intp)
    members = {name: aims[[each == name for each in folds]] for name in dict.fromkeys(folds)}
    found = _cross_validated(task, members, fitted, progress)
    known = np.log(measured_s / found.seconds)
    if len(members) == 1 and len(fitted):
        inner = _cross_validated(task, _inner_folds(task.rows, fitted), np.array([], dtype=np.intp), progress)
        known = np.log(measured_s / inner.seconds)
    half = np.full(len(task.rows), np.nan)
    for name, some in members.items():
        others = np.concatenate([rest for other, rest in members.items() if other != name] or [fitted])
        half[some] = half_width(known[others], clusters[others], level=LEVEL)
    # The errors on fitted rows are too small where parameters matter that those rows do not determine.
    further = DEVIATE * found.further_log_sd
    half = np.hypot(half, np.where(np.isfinite(further), further, 0.0))
    by_priors = np.isfinite(found.prior_log_sd)
    half[by_priors] = DEVIATE * found.prior_log_sd[by_priors]
    return found, half


def _cross_validated(
    task: PredictionTask, folds: dict[str, Indices], fitted: Indices, progress: Progress | None
) -> PredictedRows:
    """Predict the members of every fold by models fitted to the others; other rows stay unpredicted."""
    whole = unpredicted(len(task.rows))
    for done, (name, members) in enumerate(folds.items()):
        if progress is not None:
            progress(f"holding out {name}" if name else "predicting", done, len(folds))
        others = [rest for other, rest in folds.items() if other != name]
        whole.take(members, task.predict(np.concatenate([fitted, *others]).astype(np.intp)))
    return whole


def _inner_folds(rows: Sequence[PublishedRow], fitted: Indices) -> dict[str, Indices]:
    """Folds of a calibration's rows: by setting (machine, size, model) if there are enough, else cluster."""
    settings = [_setting(rows[i]) for i in fitted]
    if len(set(settings)) < _NUM_INNER_FOLDS:
        settings = [str(rows[i].cluster) for i in fitted]
    order = {setting: at % _NUM_INNER_FOLDS for at, setting in enumerate(sorted(set(settings)))}
    numbers = np.array([order[setting] for setting in settings], dtype=np.intp)
    return {f"part {number + 1}": fitted[numbers == number] for number in np.unique(numbers)}


def _setting(row: PublishedRow) -> str:
    model = None if row.model is None else row.model.transformer
    return f"{row.hardware} {row.num_accelerators} {row.workload if model is None else model.hidden}"
