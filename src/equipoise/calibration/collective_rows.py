"""Measured collectives and their prediction: each machine's own table where rows of it are known, else
beliefs.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from equipoise.calibration.held_out import Indices, PredictedRows, PredictionTask, Predictor, Seconds
from equipoise.calibration.published.rows import PublishedRow, nodes_of
from equipoise.errors import EvidenceError, SpecError
from equipoise.perfmodel.collectives import OPERATIONS, CollectiveTable, Timings, collective_table, timings
from equipoise.perfmodel.machine import Group, Wire, Wires
from equipoise.perfmodel.parameters import COLLECTIVE_PRIORS, CollectiveParameters, prior_log_sd
from equipoise.runs.readers.cells import echo


def _begin(rows: Sequence[PublishedRow]) -> PredictionTask:
    """Rows by machine: a table is fitted to each."""
    reasons = tuple(_refusal(row) for row in rows)
    machines: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(rows):
        if reasons[index] is None:
            machines.setdefault((row.hardware, _library(row)), []).append(index)

    def predict(fitted: Indices) -> PredictedRows:
        seconds, log_sd = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        known = set(fitted.tolist())
        for members in machines.values():
            table = _table([rows[at] for at in members if at in known])
            some = [rows[at] for at in members]
            if table is None:
                seconds[members] = _believed_s(some, {})
                log_sd[members] = prior_log_sd(partial(_believed_s, some), COLLECTIVE_PRIORS)
            else:
                seconds[members] = _tabled_s(some, table)
        return PredictedRows(seconds=seconds, prior_log_sd=log_sd)

    return PredictionTask(reasons=reasons, predict=predict)


def _refusal(row: PublishedRow) -> str | None:
    """Why a row of a collective is not expressed; None where it is."""
    if row.operation not in OPERATIONS:
        return f"workload {echo(row.workload)} names no collective that is modelled"
    try:
        cluster = nodes_of(row)
    except SpecError as err:
        return str(err)
    if cluster is None:
        return f"hardware {echo(row.hardware)} names no known system or accelerator; add it with --hardware"
    if row.num_accelerators > cluster.node_size and row.num_accelerators % cluster.node_size:
        return f"{row.num_accelerators} ranks do not fill nodes of {cluster.node_size}"
    return None


def _library(row: PublishedRow) -> str:
    """The library and algorithm that ran: another one is as good as another machine."""
    return row.cells.get("parallel_config", "").strip().lower()


def wires_of(row: PublishedRow) -> Wires:
    """The links of a row's machine; a ring chosen by name keeps the switch from reducing."""
    cluster = nodes_of(row)
    if cluster is None:
        raise SpecError(f"hardware {echo(row.hardware)} names no known system or accelerator")
    library = _library(row)
    is_ring = "ring" in library or "nvls_enable=0" in library
    return Wires(
        intra=Wire(byte_per_s=cluster.intra.byte_per_s, latency_s=cluster.intra.latency_s),
        inter=Wire(byte_per_s=cluster.inter.byte_per_s, latency_s=cluster.inter.latency_s),
        switch_reduces=float(cluster.switch_reduces and not is_ring),
        keeps_order=float(cluster.keeps_order),
    )


def _num_nodes(row: PublishedRow) -> float:
    """Nodes that the ranks of a row fill, or the one that holds them all."""
    cluster = nodes_of(row)
    size = row.num_accelerators if cluster is None else min(cluster.node_size, row.num_accelerators)
    return row.num_accelerators / size


def _group(row: PublishedRow) -> Group:
    nodes = _num_nodes(row)
    return Group(ranks_per_node=row.num_accelerators / nodes, num_nodes=nodes)


def _table(rows: Sequence[PublishedRow]) -> CollectiveTable | None:
    """The table of a machine from its own rows; None where they are too few."""
    by_operation: dict[str, list[PublishedRow]] = {}
    for row in rows:
        by_operation.setdefault(str(row.operation), []).append(row)
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
    """Seconds of rows of one machine by its table."""
    return np.array(
        [float(table.seconds(str(row.operation), row.payload_bytes or np.nan, _group(row))) for row in rows]
    )


def _believed_s(rows: Sequence[PublishedRow], values: Mapping[str, float]) -> Seconds:
    """Seconds of rows of one machine under the priors' medians and other values of some parameters."""
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
    name="collective", claims=lambda rows: [row.kind == "collective" for row in rows], begin=_begin
)
