"""Prediction of rows on many accelerators from the row of the same set-up on the fewest accelerators."""

import re
from collections.abc import Hashable, Sequence
from statistics import geometric_mean

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.calibration.accuracy import (
    Indices,
    PredictedRows,
    PredictionTask,
    Predictor,
    Seconds,
    cluster_weights,
    unpredicted,
)
from equipoise.calibration.published import PublishedRow, nodes_of
from equipoise.calibration.published.models import known_workload
from equipoise.calibration.published.quantities import count_in
from equipoise.calibration.published.set_ups import STRATEGY_CELLS, StrategyWords, strategy_words
from equipoise.calibration.step_rows import machine_of
from equipoise.errors import DataError, SpecError
from equipoise.perfmodel import machine as machines
from equipoise.perfmodel.load import GRADIENT_BYTES
from equipoise.perfmodel.parameters import prior_log_sd
from equipoise.perfmodel.scale_up import (
    RAGGED_SAMPLES,
    SCALE_UP_PRIORS,
    MeasuredSteps,
    ScaleUpParameters,
    fit_scale_up,
    slowdown,
)
from equipoise.spec.strategy import peak_in
from equipoise.spec.workload import Workload
from equipoise.stats import by_key

# Cells that are equal in all rows of one set-up, whatever the number of accelerators and the batch.
_SET_UP_CELLS = ("params_b", "layers", "hidden", "heads", "precision", "seq", "recompute", "source")
_OTHER_AXES = ("tp", "pp", "cp", "ep")
_ACCUMULATION = re.compile(r"(?:grad\w*[-_ ])?acc(?:um\w*)?(?:[-_ ]steps)?\s*[=:][^;+]*")
# The count in `8 x A100`, which is not part of the accelerator's name.
_MULTIPLE = re.compile(r"(?<![\w-])\d+\s*[x\u00d7]\s*(?=\D)", re.IGNORECASE)


class Batch(Struct, frozen=True, kw_only=True):
    """Samples per micro-batch and accelerator, and micro-batches per exchange; None if not stated."""

    microbatch: int | None
    num_accumulated: int | None


class Partner(Struct, frozen=True, kw_only=True):
    """The reference rows of a set-up on fewer accelerators.

    rows: indices; several if a table repeats a measurement. rate: samples per second over all accelerators,
    the geometric mean over `rows`.
    """

    rows: tuple[int, ...]
    rate: float


def is_data_parallel(row: PublishedRow) -> bool:
    """Whether the accelerators of a row use data parallelism alone."""
    return all(row.cells.get(name, "").strip() in {"", "1"} for name in _OTHER_AXES)


def words_of(row: PublishedRow) -> StrategyWords | None:
    """The strategy options that a row states in words; None if they cannot be parsed."""
    try:
        config, precision, recompute = (row.cells.get(name, "").strip() for name in STRATEGY_CELLS)
        return strategy_words(config, precision, recompute)
    except DataError:
        return None


def batch_of(row: PublishedRow) -> Batch:
    """The batch that a row states."""
    if row.kind == "step" and row.strategy is not None:
        micro, dp = row.strategy.microbatch_samples, row.strategy.dp
        return Batch(
            microbatch=micro, num_accumulated=max(1, row.strategy.global_batch_samples // (micro * dp))
        )
    precision = row.cells.get("precision", "")
    micro_text = row.cells.get("micro_batch", "").strip()
    words = words_of(row)
    stated = words.num_accumulated if words else None
    return Batch(
        microbatch=count_in(micro_text, precision) or None if micro_text else None,
        num_accumulated=count_in(stated, precision) or None if stated else None,
    )


def rate_of(row: PublishedRow) -> float:
    """Samples per second over all accelerators, or whatever unit the row counts; NaN without seconds."""
    if row.seconds is None:
        return float("nan")
    return (row.strategy.global_batch_samples if row.kind == "step" and row.strategy else 1.0) / row.seconds


def partners(rows: Sequence[PublishedRow]) -> tuple[Partner | None, ...]:
    """For every row, the rows of its set-up on the fewest accelerators; None for those and if there are none.

    Rows with the same micro-batch are preferred; otherwise the micro-batch shrank at a constant batch. Tables
    list repetitions in the same order at every size, so the second is paired with the second.
    """
    set_ups = by_key((_set_up_key(row), index) for index, row in enumerate(rows))
    found: dict[int, Partner] = {}
    for members in set_ups.values():
        tables = _tables(rows, members)
        for with_same_batch in (True, False):
            for candidates in (tables, [members]):
                given = {at for index in members if index in found for at in found[index].rows}
                for table in candidates:
                    for index, partner in _partners_within(rows, table, with_same_batch).items():
                        if index not in given:
                            found.setdefault(index, partner)
    return tuple(found.get(index) for index in range(len(rows)))


def _set_up_key(row: PublishedRow) -> Hashable:
    config = " ".join(_ACCUMULATION.sub("", row.cells.get("parallel_config", "").lower()).split())
    cells = tuple(row.cells.get(name, "").strip() for name in _SET_UP_CELLS)
    hardware = " ".join(_MULTIPLE.sub("", row.hardware).split())
    return (row.file, row.workload, hardware, row.unit, config.strip(" ;+"), cells)


def _tables(rows: Sequence[PublishedRow], members: Sequence[int]) -> list[list[int]]:
    """Rows of one set-up, split into tables where sizes restart: another model of the same name."""
    tables: list[list[int]] = [[]]
    seen: set[int] = set()
    for index in members:
        size = rows[index].num_accelerators
        if size in seen and size < rows[tables[-1][-1]].num_accelerators:
            tables.append([])
            seen = set()
        tables[-1].append(index)
        seen.add(size)
    return tables


def _partners_within(
    rows: Sequence[PublishedRow],
    table: Sequence[int],
    with_same_batch: bool,  # noqa: FBT001 - a loop's variable
) -> dict[int, Partner]:
    """The partner of each row of a table on the fewest accelerators, with the same or any micro-batch."""
    fewest = min(rows[at].num_accelerators for at in table)
    by_size = by_key(((rows[at].num_accelerators, batch_of(rows[at]).microbatch), at) for at in table)
    everyone = [at for at in table if rows[at].num_accelerators == fewest]
    found: dict[int, Partner] = {}
    for (size, batch), again in by_size.items():
        first = by_size.get((fewest, batch), [] if with_same_batch else everyone)
        if size == fewest or not first:
            continue
        if len(first) == len(again):
            found |= {at: _partner(rows, [one]) for at, one in zip(again, first, strict=True)}
        else:
            found |= dict.fromkeys(again, _partner(rows, first))
    return found


def _partner(rows: Sequence[PublishedRow], first: Sequence[int]) -> Partner:
    return Partner(rows=tuple(first), rate=geometric_mean([rate_of(rows[at]) for at in first]))


# Plausible time of a micro-batch, from its kernel launches to what anybody would wait for; outside, the row
# does not count samples (but e.g. frames or millions).
_SHORTEST_S, _LONGEST_S = 3e-3, 1e3
# Plausible fraction of the chip's peak: more than 1 only if sequences are shorter than in the catalogue.
_MOST_OF_PEAK, _LEAST_OF_PEAK = 10.0, 1e-5
_IMAGES = re.compile(r"\b(?:imgs?|images?)\b", re.IGNORECASE)
_RAGGED = re.compile(r"\b(?:utterances?|sentences?|clips?)\b", re.IGNORECASE)
# Unexplained standard deviation: nine in ten pairs lie within 1.64 of it (docs/experiments/0009).
_UNEXPLAINED_LOG_SD = 0.16


class Pairs(Struct, frozen=True, kw_only=True):
    """Rows paired with their reference rows on fewer accelerators, as arrays of shape (n_pairs,).

    rows: indices of the rows. measured: the measurements on fewer accelerators. slowdowns: time of a
    micro-batch over its time there. unslowed_s: seconds of a row without slowdown. workloads: model names.
    """

    rows: Indices
    measured: MeasuredSteps
    num_accelerators: NDArray[np.float64]
    microbatch_ratio: NDArray[np.float64]
    num_accumulated: NDArray[np.float64]
    slowdowns: NDArray[np.float64]
    unslowed_s: Seconds
    workloads: NDArray[np.str_]

    def slowdown(self, parameters: ScaleUpParameters) -> NDArray[np.float64]:
        """The slowdown of every pair, as predicted by the law."""
        return slowdown(
            self.measured,
            self.num_accelerators,
            parameters,
            microbatch_ratio=self.microbatch_ratio,
            num_accumulated=self.num_accumulated,
        )

    def fitted(self, chosen: Indices) -> ScaleUpParameters:
        """The law fitted to the chosen pairs, each workload counted once; the priors' medians if none."""
        if not len(chosen):
            return ScaleUpParameters()
        numbers = np.unique(self.workloads[chosen], return_inverse=True)[1]
        return fit_scale_up(
            lambda parameters: self.slowdown(parameters)[chosen],
            self.slowdowns[chosen],
            weights=cluster_weights(numbers),
        )

    def prior_log_sd(self) -> NDArray[np.float64]:
        """Standard deviation of the log of each prediction: from the priors and the unexplained part."""
        priors = prior_log_sd(
            lambda values: self.slowdown(replace(ScaleUpParameters(), **values)), SCALE_UP_PRIORS
        )
        return np.hypot(priors, _UNEXPLAINED_LOG_SD)


def scale_up_pairs(rows: Sequence[PublishedRow]) -> Pairs | None:
    """The pairs among the rows with known hardware; None if there are none."""
    found = {
        at: partner
        for at, partner in enumerate(partners(rows))
        if partner is not None and _refusal(rows[at], partner) is None
    }
    if not found:
        return None
    here = [rows[at] for at in found]
    first = [rows[partner.rows[0]] for partner in found.values()]
    rates = np.array([partner.rate for partner in found.values()])
    each_rate = rates / np.array([row.num_accelerators for row in first])
    size = np.array([row.num_accelerators for row in here], dtype=float)
    ratio = np.array([_microbatch_ratio(*pair) for pair in zip(here, first, strict=True)])
    measured_s = np.array([row.seconds or np.nan for row in here])
    unslowed_s = measured_s * np.array([rate_of(row) for row in here]) / (each_rate * size * ratio)
    return Pairs(
        rows=np.array(list(found), dtype=np.intp),
        measured=_measured(here, first, each_rate),
        num_accelerators=size,
        microbatch_ratio=ratio,
        num_accumulated=np.array([_accumulated(row) for row in here]),
        slowdowns=measured_s / unslowed_s,
        unslowed_s=unslowed_s,
        workloads=np.array([known.slug if (known := _known(row)) else row.workload for row in here]),
    )


def _claims(rows: Sequence[PublishedRow]) -> list[bool]:
    """Whether each row is a data-parallel row in a pair, either predicted or used as reference.

    Steps of transformers in times and tokens are excluded, because they validate the model of steps.
    """
    mine = [at for at, row in enumerate(rows) if _is_claimable(row)]
    found = partners([rows[at] for at in mine])
    paired = [
        (at, *(mine[first] for first in each.rows)) for at, each in zip(mine, found, strict=True) if each
    ]
    claimed = {at for pair in paired for at in pair}
    return [at in claimed for at in range(len(rows))]


def _is_claimable(row: PublishedRow) -> bool:
    if row.kind not in {"step", "throughput"} or row.quantity is None or not is_data_parallel(row):
        return False
    is_modelled = row.kind == "step" and row.model is not None and row.model.transformer is not None
    return row.quantity.kind in {"samples", "items"} or not is_modelled


def _begin(rows: Sequence[PublishedRow]) -> PredictionTask:
    """The task of predicting each row from its set-up on the fewest accelerators."""
    found = partners(rows)
    given = frozenset(at for partner in found if partner is not None for at in partner.rows)
    pairs = scale_up_pairs(rows)

    def predict(fitted: Indices) -> PredictedRows:
        whole = unpredicted(len(rows))
        if pairs is None:
            return whole
        chosen = np.flatnonzero(np.isin(pairs.rows, fitted))
        whole.seconds[pairs.rows] = pairs.unslowed_s * pairs.slowdown(pairs.fitted(chosen))
        if not len(chosen):
            whole.prior_log_sd[pairs.rows] = pairs.prior_log_sd()
        return whole

    reasons = tuple(
        None if at in given else _refusal(row, partner)
        for at, (row, partner) in enumerate(zip(rows, found, strict=True))
    )
    return PredictionTask(by="scale_up", rows=rows, reasons=reasons, predict=predict, given=given)


def _refusal(row: PublishedRow, partner: Partner | None) -> str | None:
    """Why a row cannot be predicted from another; None if it can."""
    if partner is None:
        return "no row of the same set-up on fewer accelerators"
    try:
        machine_of(row)
    except SpecError as err:
        return str(err)
    return None


def _measured(
    here: Sequence[PublishedRow], first: Sequence[PublishedRow], each_rate: NDArray[np.float64]
) -> MeasuredSteps:
    """The reference rows as arrays, with the machines of the rows that are predicted from them."""
    rates = machines.stacked([machine_of(row) for row in here])
    return MeasuredSteps(
        microbatch_s=np.array([_microbatch_s(*each) for each in zip(first, each_rate, strict=True)]),
        num_accelerators=np.array([row.num_accelerators for row in first], dtype=float),
        gradient_bytes=np.array([_gradient_bytes(row) for row in first]),
        node_size=rates.node_size,
        wires=rates.wires,
        num_accumulated=np.array([_accumulated(row) for row in first]),
        num_cores=np.array([_num_cores(row) for row in here]),
        decoded_per_s=each_rate * np.array([_is_decoded(row) for row in first], dtype=float),
        is_ragged=np.array([_is_ragged(row) for row in first], dtype=float),
    )


def _microbatch_ratio(here: PublishedRow, first: PublishedRow) -> float:
    """Micro-batch of a row over that of its reference row; 1 if not stated."""
    now, then = batch_of(here).microbatch, batch_of(first).microbatch
    return now / then if now and then else 1.0


def _microbatch_s(row: PublishedRow, each_rate: float) -> float:
    """Seconds per micro-batch of a row; NaN if implausible. each_rate: samples/s per accelerator."""
    samples = batch_of(row).microbatch
    if samples is None:
        return float("nan")
    seconds = samples / each_rate
    share = _share_of_peak(row, each_rate)
    is_plausible = _SHORTEST_S <= seconds <= _LONGEST_S and _LEAST_OF_PEAK <= share <= _MOST_OF_PEAK
    return seconds if is_plausible else float("nan")


def _share_of_peak(row: PublishedRow, each_rate: float) -> float:
    """FLOP/s implied by a rate of samples, over the accelerator's peak; 1 if either is unknown."""
    known, words = _known(row), words_of(row)
    flop = known.train_flop_per_sample if known else None
    cluster = nodes_of(row)
    if flop is None or cluster is None or words is None or words.precision is None:
        return 1.0
    peak = peak_in(cluster.accelerator, words.precision)
    return each_rate * flop / peak if peak else 1.0


def _gradient_bytes(row: PublishedRow) -> float:
    """Bytes of gradients; NaN if the workload is unknown."""
    known = _known(row)
    trained = known.trained_params if known else None
    return float("nan") if trained is None else trained * GRADIENT_BYTES


def _is_decoded(row: PublishedRow) -> bool:
    """Whether the host decodes the samples: they are images, by the workload or the unit."""
    known = _known(row)
    return known.sample == "image" if known else _IMAGES.search(row.unit) is not None


def _is_ragged(row: PublishedRow) -> bool:
    """Whether samples have unequal lengths."""
    known = _known(row)
    return known.sample in RAGGED_SAMPLES if known else _RAGGED.search(row.unit) is not None


def _accumulated(row: PublishedRow) -> float:
    return float(batch_of(row).num_accumulated or 1)


def _known(row: PublishedRow) -> Workload | None:
    """The workload that a row trains, from the catalogue."""
    return row.model.known if row.model is not None else known_workload(row.workload, row.catalogue)


def _num_cores(row: PublishedRow) -> float:
    """Cores per host; NaN if not stated."""
    cluster = nodes_of(row)
    return float("nan") if cluster is None or cluster.num_cores is None else float(cluster.num_cores)


SCALE_UP = Predictor(claims=_claims, begin=_begin)
