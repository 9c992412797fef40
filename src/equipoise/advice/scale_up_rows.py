"""Rows on many accelerators foretold from the row of the same set-up on the fewest."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from equipoise.advice.predictor import Foretold, Indices, Predictor, Seconds, Task, cluster_weights
from equipoise.advice.set_ups import Partner, batch_of, is_data_parallel, partners, rate_of, words_of
from equipoise.errors import SpecError
from equipoise.perfmodel import machine as machines
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.scale_up import (
    SCALE_UP_PRIORS,
    Measured,
    ScaleUpParameters,
    fit_scale_up,
    scaled_up,
)
from equipoise.runs.readers.cells import echo
from equipoise.runs.readers.published.models import known_workload
from equipoise.runs.readers.published.rows import PublishedRow
from equipoise.spec.cluster_text import cluster_in_text
from equipoise.spec.strategy import DTYPE_OF
from equipoise.spec.workload import Workload

# Gradients travel in 4 bytes where weights are kept in 4, mixed precision included, as Horovod and DDP do.
_GRADIENT_BYTES = 4.0
# A micro-batch takes no less than its launches and no more than anybody waits for; else what the row counts
# are no samples (frames, millions).
_SHORTEST_S, _LONGEST_S = 3e-3, 1e3
# Nor does it need more FLOP than a chip has, by more than what sequences are shorter than in the catalogue,
# or next to none.
_MOST_OF_PEAK, _LEAST_OF_PEAK = 10.0, 1e-5
_IMAGES = re.compile(r"\b(?:imgs?|images?)\b", re.IGNORECASE)
_RAGGED = re.compile(r"\b(?:utterances?|sentences?|clips?)\b", re.IGNORECASE)
_RAGGED_SAMPLES = frozenset({"utterance", "sentence pair"})
# What no parameter explains: 90 % of workloads left out lie within 1.64 of it (docs/experiments/0009).
_UNEXPLAINED_LOG_SD = 0.16
_NUDGE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A row with the rows of its set-up on fewer accelerators."""

    row: PublishedRow
    first: PublishedRow
    partner: Partner

    @property
    def microbatch_ratio(self) -> float:
        """Samples of a micro-batch here over those of the first row; 1 where they are not stated."""
        here, there = batch_of(self.row).microbatch, batch_of(self.first).microbatch
        return here / there if here and there else 1.0

    def seconds(self, slowdown: float) -> float:
        """What the row takes in its own unit of work, if a micro-batch takes so much longer."""
        more = self.row.num_accelerators / self.first.num_accelerators
        rate = self.partner.rate * more * self.microbatch_ratio / slowdown
        return rate_of(self.row) / rate * (self.row.seconds or np.nan)


def _claims(rows: Sequence[PublishedRow]) -> list[bool]:
    """Rows of data parallelism that are foretold from others, and those others.

    Not steps of transformers in times and tokens: those are what the model of steps is held against.
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


def _begin(rows: Sequence[PublishedRow]) -> Task:
    """Rows in pairs: each with its set-up on the fewest accelerators."""
    found = partners(rows)
    given = frozenset(at for partner in found if partner is not None for at in partner.rows)
    reasons: list[str | None] = []
    pairs: dict[int, _Pair] = {}
    for index, (row, partner) in enumerate(zip(rows, found, strict=True)):
        reasons.append(None if index in given else _refusal(row, partner))
        if partner is not None and reasons[index] is None:
            pairs[index] = _Pair(row=row, first=rows[partner.rows[0]], partner=partner)
    return Task(reasons=tuple(reasons), foretell=_Foreteller(len(rows), pairs).foretold, given=given)


def _refusal(row: PublishedRow, partner: Partner | None) -> str | None:
    """Why a row cannot be foretold from another; None where it can."""
    if partner is None:
        return "no row of the same set-up on fewer accelerators"
    try:
        _machine(row.hardware, row.num_accelerators)
    except SpecError as err:
        return str(err)
    return None


class _Foreteller:
    """Pairs of rows as arrays, and what is foretold of them."""

    def __init__(self, num_rows: int, pairs: dict[int, _Pair]) -> None:
        self._num_rows = num_rows
        self._places = np.array(list(pairs), dtype=np.intp)
        self._pairs = list(pairs.values())
        self._at = {place: at for at, place in enumerate(pairs)}
        if pairs:
            self._measured = _measured(self._pairs)
            self._num = np.array([pair.row.num_accelerators for pair in self._pairs], dtype=float)
            self._ratio = np.array([pair.microbatch_ratio for pair in self._pairs])
            self._accumulated = np.array([_accumulated(pair.row) for pair in self._pairs])
            per_unit = np.array([pair.seconds(1.0) for pair in self._pairs])
            self._slowdowns = np.array([pair.row.seconds or np.nan for pair in self._pairs]) / per_unit
            self._per_unit_s = per_unit
            names = [known.slug if (known := _known(pair.row)) else pair.row.workload for pair in self._pairs]
            self._workloads = np.unique(names, return_inverse=True)[1]

    def foretold(self, fitted: Indices) -> Foretold:
        """Seconds of all rows by a law fitted to the pairs of some, or to none."""
        seconds = np.full(self._num_rows, np.nan)
        if not self._pairs:
            return Foretold(seconds=seconds)
        chosen = np.array([self._at[int(each)] for each in fitted if int(each) in self._at], dtype=np.intp)
        parameters = ScaleUpParameters()
        if len(chosen):
            parameters = fit_scale_up(
                lambda values: self._slowdown(values)[chosen],
                self._slowdowns[chosen],
                weights=cluster_weights(self._workloads[chosen]),
            )
        seconds[self._places] = self._per_unit_s * self._slowdown(parameters)
        if len(chosen):
            return Foretold(seconds=seconds)
        spread = np.full(self._num_rows, np.nan)
        spread[self._places] = self._prior_log_sd()
        return Foretold(seconds=seconds, prior_log_sd=spread)

    def _slowdown(self, parameters: ScaleUpParameters) -> Seconds:
        return scaled_up(
            self._measured,
            self._num,
            parameters,
            microbatch_ratio=self._ratio,
            num_accumulated=self._accumulated,
        ).slowdown

    def _prior_log_sd(self) -> Seconds:
        """Standard deviation of the logarithm under the priors alone, by first-order propagation."""
        centre = self._slowdown(ScaleUpParameters())
        variance = np.full(len(self._pairs), _UNEXPLAINED_LOG_SD**2)
        for prior in SCALE_UP_PRIORS:
            moved = ScaleUpParameters(**{prior.name: prior.median * (1 + _NUDGE)})
            slope = np.log(self._slowdown(moved) / centre) / np.log1p(_NUDGE)
            variance += (slope * prior.log_sd) ** 2
        return np.asarray(np.sqrt(variance))


def _measured(pairs: Sequence[_Pair]) -> Measured:
    """The first rows of pairs as arrays."""
    rates = machines.stacked([_machine(pair.row.hardware, pair.row.num_accelerators) for pair in pairs])
    first = [pair.first for pair in pairs]
    each_rate = np.array([pair.partner.rate / pair.first.num_accelerators for pair in pairs])
    return Measured(
        microbatch_s=np.array(
            [_microbatch_s(pair, rate) for pair, rate in zip(pairs, each_rate, strict=True)]
        ),
        num_accelerators=np.array([row.num_accelerators for row in first], dtype=float),
        gradient_bytes=np.array([_gradient_bytes(row) for row in first]),
        node_size=rates.node_size,
        wires=rates.wires,
        num_accumulated=np.array([_accumulated(row) for row in first]),
        decoded_per_s=each_rate * np.array([_is_decoded(row) for row in first], dtype=float),
        is_ragged=np.array([_is_ragged(row) for row in first], dtype=float),
    )


def _microbatch_s(pair: _Pair, each_rate: float) -> float:
    """Seconds of a first row's micro-batch, each accelerator taking so many samples; NaN if implausible."""
    row, samples = pair.first, batch_of(pair.first).microbatch
    if samples is None:
        return float("nan")
    seconds = samples / each_rate
    share = _share_of_peak(row, each_rate)
    is_plausible = _SHORTEST_S <= seconds <= _LONGEST_S and _LEAST_OF_PEAK <= share <= _MOST_OF_PEAK
    return seconds if is_plausible else float("nan")


def _share_of_peak(row: PublishedRow, each_rate: float) -> float:
    """FLOP/s that a rate of samples implies, over the accelerator's peak; 1 where either is not known."""
    known, words = _known(row), words_of(row)
    flop = known.train_flop_per_sample if known else None
    cluster = cluster_in_text(row.hardware, num_accelerators=row.num_accelerators)
    if flop is None or cluster is None or words is None or words.precision is None:
        return 1.0
    peak = cluster.accelerator.peak_flop_per_s(DTYPE_OF[words.precision])
    return each_rate * flop / peak if peak else 1.0


def _gradient_bytes(row: PublishedRow) -> float:
    """Bytes of gradients; NaN where the workload is not known."""
    known = _known(row)
    trained = known.trained_params if known else None
    return float("nan") if trained is None else trained * _GRADIENT_BYTES


def _is_decoded(row: PublishedRow) -> bool:
    """Whether a host decodes what the row counts: the workload's samples are images, or its unit says so."""
    known = _known(row)
    return known.sample == "image" if known else _IMAGES.search(row.unit) is not None


def _is_ragged(row: PublishedRow) -> bool:
    """Whether samples have unequal lengths."""
    known = _known(row)
    return known.sample in _RAGGED_SAMPLES if known else _RAGGED.search(row.unit) is not None


def _accumulated(row: PublishedRow) -> float:
    return float(batch_of(row).num_accumulated or 1)


def _known(row: PublishedRow) -> Workload | None:
    """The workload of the catalogue that a row trains."""
    return row.model.known if row.model is not None else known_workload(row.workload)


@cache
def _machine(hardware: str, num_accelerators: int) -> Machine:
    cluster = cluster_in_text(hardware, num_accelerators=num_accelerators)
    if cluster is None:
        raise SpecError(
            f"hardware {echo(hardware)} names no known system or accelerator; add it with --hardware"
        )
    return machines.machine(cluster)


SCALE_UP = Predictor(name="scale_up", claims=_claims, begin=_begin)
