"""Measured steps and collectives as arrays for the performance model: fits to rows, predictions of others."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.calibration import UNCALIBRATED_LOG_SD
from equipoise.calibration.accuracy import (
    Indices,
    PredictedRows,
    PredictionTask,
    Predictor,
    Seconds,
    cluster_weights,
    unpredicted,
)
from equipoise.calibration.profiles import EXPERTS_LOG_SD, Profile
from equipoise.calibration.published import PublishedRow, nodes_of
from equipoise.calibration.published.executions import campaign_of, software_of
from equipoise.calibration.published.quantities import WORDS, MemoryCounted
from equipoise.errors import EvidenceError, SpecError
from equipoise.intervals import DEVIATE
from equipoise.perfmodel import load as loads
from equipoise.perfmodel import machine as machines
from equipoise.perfmodel.calibrate import STRAY_LOG_SD, Calibration, calibrate, log_times
from equipoise.perfmodel.collectives import OPERATIONS, CollectiveTable, Timings, collective_table, timings
from equipoise.perfmodel.estimate import step_seconds
from equipoise.perfmodel.layouts import StrategyGrid, grid
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Group, Machine, Wire, Wires, machine
from equipoise.perfmodel.memory import memory
from equipoise.perfmodel.parameters import (
    COLLECTIVE_PRIORS,
    PRIORS,
    CollectiveParameters,
    Parameters,
    prior_log_sd,
)
from equipoise.runs.readers.cells import echo
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import PRECISIONS
from equipoise.stats import by_key
from equipoise.units import SI_PREFIXES

# The profile that predicts a row if nothing is fitted; None for the priors.
BasisOf: TypeAlias = Callable[[PublishedRow], Profile | None]


def machine_of(row: PublishedRow) -> Machine:
    """The rates of a row's accelerators. Raises SpecError if its catalogue does not have them."""
    return machine(_cluster(row))


def _cluster(row: PublishedRow) -> Cluster:
    """The accelerators of a row and their links. Raises SpecError as `machine_of`."""
    found = nodes_of(row)
    if found is None and not row.hardware:
        raise SpecError("no hardware: expected a column accelerator or hardware")
    if found is None:
        raise SpecError(
            f"hardware {echo(row.hardware)} names no known system or accelerator; add it with --hardware"
        )
    return found


_Arrays = TypeVar("_Arrays", Load, Machine, StrategyGrid)


class StepRows(Struct, frozen=True, kw_only=True):
    """Rows as arrays with a common index: loads, machines and strategies."""

    load: Load
    machine: Machine
    grid: StrategyGrid

    def taken(self, indices: Indices) -> "StepRows":
        """The rows at the given indices."""
        return StepRows(
            load=_taken(self.load, indices),
            machine=_taken(self.machine, indices),
            grid=_taken(self.grid, indices),
        )

    def memory_bytes(
        self, parameters: Parameters, counted: Sequence[MemoryCounted | None]
    ) -> NDArray[np.float64]:
        """Memory of the fullest accelerator of every row, as its source counts it; shape (n_rows,).

        counted: how each row counts memory; None means reserved, which most tools print.
        """
        found = memory(self.load, self.grid, parameters, peer_ranks=self.machine.peer_ranks)
        ways = {"allocated": found.allocated, "reserved": found.reserved, "device": found.needed}
        whole = {how: np.broadcast_to(each, np.shape(self.grid.dp)) for how, each in ways.items()}
        return np.array([whole[how or "reserved"][at] for at, how in enumerate(counted)], dtype=float)

    def step_s(self, parameters: Parameters) -> Seconds:
        """Seconds per step of every row: (n_rows,), or (n_draws, n_rows) for stacked parameters."""
        found, _ = step_seconds(self.load, self.machine, self.grid, parameters)
        return self._by_row(found)

    def compute_s(self, parameters: Parameters) -> Seconds:
        """Seconds that every row computes per step, on the busiest rank; shapes as for `step_s`."""
        _, found = step_seconds(self.load, self.machine, self.grid, parameters)
        return self._by_row(found.compute)

    def _by_row(self, seconds: Seconds) -> Seconds:
        return np.broadcast_to(seconds, np.broadcast_shapes(np.shape(seconds), np.shape(self.grid.dp)))


def _taken(arrays: _Arrays, indices: Indices) -> _Arrays:
    """A structure of arrays, indexed by `indices`."""

    def some(value: Any) -> Any:  # noqa: ANN401 - an array, or a tuple of arrays
        return tuple(some(each) for each in value) if isinstance(value, tuple) else value[indices]

    return type(arrays)(**{name: some(getattr(arrays, name)) for name in arrays.__struct_fields__})


def step_rows(rows: Sequence[PublishedRow]) -> StepRows:
    """Rows as arrays. rows: at least one, each with a `refusal` of None."""
    return StepRows(
        load=loads.stacked([_load(row) for row in rows]),
        machine=machines.stacked([machine_of(row) for row in rows]),
        grid=grid([row.strategy for row in rows if row.strategy is not None]),
    )


def refusal(row: PublishedRow) -> str | None:
    """Why the performance model cannot represent a row; None if it can."""
    if row.reason is not None:
        return row.reason
    if row.kind != "step" or row.strategy is None or row.model is None:
        return row.notes[0] if row.notes else "no time of a training step"
    try:
        _load(row)
        rates = machine_of(row)
    except SpecError as err:
        return str(err)
    if not np.isfinite(rates.peak_flop_per_s[PRECISIONS.index(row.strategy.precision)]):
        return f"hardware {echo(row.hardware)} has no known peak in {row.strategy.precision}"
    return None


# `with frozen ViT-bigG of 1.9B`: a frozen model next to the trained one.
_FROZEN_BESIDE = re.compile(r"\bfrozen [\w.-]+ of (?P<billions>\d{1,4}(?:\.\d{1,3})?) ?B\b")


def _load(row: PublishedRow) -> Load:
    """The load of a row's model. Raises SpecError if its sizes are unknown."""
    model = row.model
    if model is None:
        raise SpecError(f"workload {echo(row.workload)}: neither model sizes nor a name of the catalogue")
    if model.transformer is None and model.known is not None:
        load = _workload_load(model.known)
    elif model.transformer is None or model.sequence is None:
        raise SpecError(f"workload {echo(row.workload)}: tokens per sample are not stated")
    else:
        load = _transformer_load(model.transformer, sequence=model.sequence)
    if beside := _FROZEN_BESIDE.search(row.workload):
        load = replace(load, frozen_params=load.frozen_params + float(beside["billions"]) * SI_PREFIXES["G"])
    text = "; ".join(row.cells.get(name, "") for name in ("parallel_config", "precision"))
    return loads.held_by(load, software_of(row), _ways_held(text))


@lru_cache(maxsize=2**13)
def _ways_held(text: str) -> tuple[str, ...]:
    """The additional ways of holding a model that a text mentions."""
    return tuple(
        way for way, words in WORDS.held.items() if re.search(rf"\b(?:{words})\b", text, re.IGNORECASE)
    )


_transformer_load = cache(loads.transformer_load)
_workload_load = cache(loads.workload_load)


def _calibrated(
    seen: StepRows, measured_s: Seconds, clusters: NDArray[np.intp], campaigns: NDArray[np.intp]
) -> Calibration:
    """The calibration of every parameter to which any of the rows is sensitive.

    Assumes that steps say no more about links than collectives do: steps hardly separate them from other
    causes.
    """
    mine = [prior.name for prior in PRIORS if not prior.name.startswith("collective.")]
    slopes = time_slopes(seen, mine, Parameters())
    return calibrate(
        seen.step_s,
        measured_s,
        names=[name for name, slope in zip(mine, slopes, strict=True) if slope.any()],
        weights=cluster_weights(clusters),
        campaigns=campaigns,
    )


def _campaign_indices(stated: Sequence[Hashable]) -> NDArray[np.intp]:
    """The index of each row's campaign, numbered from 0 in order of appearance."""
    order = {each: at for at, each in enumerate(dict.fromkeys(stated))}
    return np.array([order[each] for each in stated], dtype=np.intp)


def _predict_with_profiles(arrays: StepRows, bases: Sequence[Profile | None]) -> tuple[Seconds, Seconds]:
    """Seconds predicted with given profiles (None: priors), and the standard deviation of their logarithm.

    Returns two arrays of shape (n_rows,).
    Assumes small changes of parameters. Source: first-order propagation of their covariance.
    """
    seconds, spread = arrays.step_s(Parameters()).copy(), np.empty(len(bases))
    by_priors = np.flatnonzero([each is None for each in bases])
    if len(by_priors):
        spread[by_priors] = _prior_spread(arrays.taken(by_priors))
    for basis in {id(each): each for each in bases if each is not None}.values():
        mine = np.flatnonzero([each is basis for each in bases])
        some = arrays.taken(mine)
        values = {each.name: basis.values[each.name] for each in basis.fitted}
        log_s, slopes = log_times(some.step_s, basis.parameters, values)
        local = np.hypot(basis.log_half_width / DEVIATE, EXPERTS_LOG_SD * (some.load.experts > 0))
        seconds[mine] = np.exp(log_s)
        spread[mine] = np.hypot(np.linalg.norm(slopes.T @ basis.log_factor, axis=1), local)
    return seconds, spread


def _prior_spread(arrays: StepRows) -> Seconds:
    """Standard deviation of the log of every prediction with the priors, including their observed errors."""
    of_parameters = prior_log_sd(lambda values: arrays.step_s(Parameters().changed(values)), PRIORS)
    local = np.hypot(UNCALIBRATED_LOG_SD, EXPERTS_LOG_SD * (arrays.load.experts > 0))
    return np.hypot(of_parameters, local)


def _begin(rows: Sequence[PublishedRow], basis_of: BasisOf) -> PredictionTask:
    """The task of predicting rows with the performance model. basis_of: profiles if nothing is fitted."""
    reasons = tuple(refusal(row) for row in rows)
    expressed = [index for index, reason in enumerate(reasons) if reason is None]
    if not expressed:
        return PredictionTask(by="step", rows=rows, reasons=reasons, predict=lambda _: unpredicted(len(rows)))
    place = {index: at for at, index in enumerate(expressed)}
    arrays = step_rows([rows[index] for index in expressed])
    measured_s = np.array([rows[index].seconds for index in expressed], dtype=float)
    clusters = np.array([rows[index].cluster for index in expressed], dtype=np.intp)

    def predict(fitted: Indices) -> PredictedRows:
        chosen = np.array([place[int(index)] for index in fitted if int(index) in place], dtype=np.intp)
        whole = unpredicted(len(rows))
        counted = [rows[index].memory_counted for index in expressed]
        whole.memory_bytes[expressed] = arrays.memory_bytes(Parameters(), counted)
        if not len(chosen):
            bases = [basis_of(rows[index]) for index in expressed]
            whole.seconds[expressed], whole.prior_log_sd[expressed] = _predict_with_profiles(arrays, bases)
            whole.bases[expressed] = bases
            return whole
        seen = arrays.taken(chosen)
        stated = [campaign_of(rows[index]) for index in expressed]
        campaigns = _campaign_indices([stated[at] for at in chosen])
        found = _calibrated(seen, measured_s[chosen], clusters[chosen], campaigns)
        home = {stated[at]: int(campaign) for at, campaign in zip(chosen, campaigns, strict=True)}
        mine = np.array([home.get(each, -1) for each in stated])
        by_row_s = arrays.step_s(found.parameters).copy()
        for campaign, parameters in enumerate(found.by_campaign):
            by_row_s[mine == campaign] = arrays.step_s(parameters)[mine == campaign]
        whole.seconds[expressed] = by_row_s
        whole.further_log_sd[expressed] = _further_log_sd(arrays, chosen, clusters, found, mine < 0)
        return whole

    return PredictionTask(by="step", rows=rows, reasons=reasons, predict=predict)


def _further_log_sd(
    arrays: StepRows,
    fitted: Indices,
    clusters: NDArray[np.intp],
    found: Calibration,
    is_elsewhere: NDArray[np.bool_],
) -> Seconds:
    """Standard deviation from parameters for every row, in excess of that of the median fitted row.

    is_elsewhere: (n_rows,), rows of campaigns that were not fitted, whose local parameters are unknown.
    Assumes errors of STRAY_LOG_SD per cluster, and small changes of parameters.
    Source: the posterior of a linear model around the fit (Bishop 2006, eq. 3.54).
    """
    slopes = time_slopes(arrays, [prior.name for prior in PRIORS], found.parameters).T
    moved = np.array([prior.name in found.moved for prior in PRIORS])
    is_local = np.array([prior.local for prior in PRIORS])
    log_sd = np.array([prior.log_sd for prior in PRIORS])
    seen = slopes[fitted] * moved * np.sqrt(cluster_weights(clusters[fitted]))[:, None] / STRAY_LOG_SD
    covariance = np.linalg.inv(seen.T @ seen + np.diag(log_sd**-2.0))
    variance = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    shared = slopes * ~is_local
    local_variance = ((slopes * is_local * log_sd) ** 2).sum(axis=1)
    away = np.einsum("ij,jk,ik->i", shared, covariance, shared) + local_variance
    variance = np.where(is_elsewhere, away, variance)
    return np.asarray(np.sqrt(np.maximum(variance - np.median(variance[fitted]), 0.0)))


def time_slopes(arrays: StepRows, names: Sequence[str], at: Parameters) -> NDArray[np.float64]:
    """Derivative of every predicted log time with respect to each log parameter: (n_names, n_rows)."""
    return log_times(arrays.step_s, at, {name: at.value(name) for name in names})[1]


def step_predictor(basis_of: BasisOf) -> Predictor:
    """The performance model as a predictor."""
    return Predictor(
        claims=lambda rows: [row.kind == "step" for row in rows],
        begin=lambda rows: _begin(rows, basis_of),
    )


def _begin_collectives(rows: Sequence[PublishedRow]) -> PredictionTask:
    """The task of predicting collectives, with a table fitted to each machine."""
    reasons = tuple(_refusal(row) for row in rows)
    expressed = (at for at, why in enumerate(reasons) if why is None)
    machines = by_key(((rows[at].hardware, _library(rows[at])), at) for at in expressed)

    def predict(fitted: Indices) -> PredictedRows:
        whole = unpredicted(len(rows))
        known = set(fitted.tolist())
        for members in machines.values():
            table = _table([rows[at] for at in members if at in known])
            some = [rows[at] for at in members]
            if table is None:
                whole.seconds[members] = _prior_s(some, {})
                whole.prior_log_sd[members] = prior_log_sd(partial(_prior_s, some), COLLECTIVE_PRIORS)
            else:
                whole.seconds[members] = _tabled_s(some, table)
        return whole

    return PredictionTask(by="collective", rows=rows, reasons=reasons, predict=predict)


def _refusal(row: PublishedRow) -> str | None:
    """Why a row of a collective cannot be represented; None if it can."""
    if row.operation not in OPERATIONS:
        return f"workload {echo(row.workload)} names no collective that is modelled"
    try:
        cluster = _cluster(row)
    except SpecError as err:
        return str(err)
    if row.num_accelerators > cluster.node_size and row.num_accelerators % cluster.node_size:
        return f"{row.num_accelerators} ranks do not fill nodes of {cluster.node_size}"
    return None


def _library(row: PublishedRow) -> str:
    """The library and algorithm of a row; rows with different ones are treated as different machines."""
    return row.cells.get("parallel_config", "").strip().lower()


def wires_of(row: PublishedRow) -> Wires:
    """The links of a row's machine. If the row names a ring algorithm, the switch does not reduce."""
    cluster, library = _cluster(row), _library(row)
    is_ring = "ring" in library or "nvls_enable=0" in library
    return Wires(
        intra=Wire(byte_per_s=cluster.intra.byte_per_s, latency_s=cluster.intra.latency_s),
        inter=Wire(byte_per_s=cluster.inter.byte_per_s, latency_s=cluster.inter.latency_s),
        switch_reduces=float(cluster.switch_reduces and not is_ring),
        keeps_order=float(cluster.keeps_order),
    )


def _num_nodes(row: PublishedRow) -> float:
    """Number of nodes that the ranks of a row fill; one if a node holds them all."""
    return row.num_accelerators / min(_cluster(row).node_size, row.num_accelerators)


def _group(row: PublishedRow) -> Group:
    nodes = _num_nodes(row)
    return Group(ranks_per_node=row.num_accelerators / nodes, num_nodes=nodes)


def _table(rows: Sequence[PublishedRow]) -> CollectiveTable | None:
    """The table of a machine, from its own rows; None if there are too few."""
    by_operation = by_key((str(row.operation), row) for row in rows)
    if not rows:
        return None
    try:
        return collective_table(
            tuple(_timings(name, some) for name, some in by_operation.items()), wires_of(rows[0])
        )
    except EvidenceError:
        return None


def _timings(operation: str, rows: Sequence[PublishedRow]) -> Timings:
    nodes = [_num_nodes(row) for row in rows]
    return timings(
        operation,
        [row.payload_bytes or np.nan for row in rows],
        [row.seconds or np.nan for row in rows],
        ranks_per_node=[row.num_accelerators / count for row, count in zip(rows, nodes, strict=True)],
        num_nodes=nodes,
        log_error=[row.resolution for row in rows],
    )


def _tabled_s(rows: Sequence[PublishedRow], table: CollectiveTable) -> Seconds:
    """Seconds of the rows of one machine, from its table."""
    return np.array(
        [float(table.seconds(str(row.operation), row.payload_bytes or np.nan, _group(row))) for row in rows]
    )


def _prior_s(rows: Sequence[PublishedRow], values: Mapping[str, float]) -> Seconds:
    """Seconds of the rows of one machine with the priors' medians, except for the given values."""
    changed: dict[str, Any] = dict(values)
    parameters = CollectiveParameters(**changed)
    timers = [OPERATIONS[str(row.operation)] for row in rows]
    return np.array(
        [
            float(timer(row.payload_bytes or np.nan, _group(row), wires_of(row), parameters))
            for timer, row in zip(timers, rows, strict=True)
        ]
    )


COLLECTIVE = Predictor(
    claims=lambda rows: [row.kind == "collective" for row in rows],
    begin=_begin_collectives,
)
