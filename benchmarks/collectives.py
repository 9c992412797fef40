"""Accuracy of perfmodel/collectives.py on published nccl-tests, against plain ways to predict the same.

    python benchmarks/collectives.py [--data DIR]

DIR holds nccl_vtrain_allreduce.csv and nccl_published.csv (default: `measured` below $EQUIPOISE_DATA). Errors
are of time, on points held out of the fit by the split named; one execution counts once, whatever units it is
printed in. docs/experiments/0005-collectives.md has the results.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy.optimize import least_squares

from equipoise.errors import EvidenceError
from equipoise.perfmodel.collectives import Timings, all_reduce_s, collective_table, timings
from equipoise.perfmodel.machine import Wire, Wires
from equipoise.perfmodel.parameters import CollectiveParameters
from equipoise.stats import conformal_half_width
from equipoise.units import MICROSECOND_S

Numbers = NDArray[np.float64]
Prediction = Callable[[Timings, Timings, Wires], Numbers]  # known, asked, wires -> seconds

GB = 1000.0**3
LEVEL = 0.9
# Steps of a ring: NCCL src/graph/tuning.cc (NVLink 3.4 us, InfiniBand 14 us); over EFA aws-ofi-nccl
# include/nccl_ofi_tuner.h (TUNER_NET_LATENCY, 20 us), whose network delivers out of order.
NVLINK_STEP_S, NETWORK_STEP_S, EFA_STEP_S = 3.4e-6, 14e-6, 20e-6


def machine(intra_gb_per_s: float, *, switch_reduces: bool = False) -> Wires:
    """One node, or nodes joined by InfiniBand of 25 GB/s an accelerator."""
    return Wires(
        intra=Wire(byte_per_s=intra_gb_per_s * GB, latency_s=NVLINK_STEP_S),
        inter=Wire(byte_per_s=25 * GB, latency_s=NETWORK_STEP_S),
        switch_reduces=float(switch_reduces),
    )


A100, RTX_2080TI = machine(300), machine(50)
H200, H200_RING = machine(450, switch_reduces=True), machine(450)
P6_B200 = replace(
    machine(900, switch_reduces=True),
    inter=Wire(byte_per_s=50 * GB, latency_s=EFA_STEP_S),
    keeps_order=0.0,
)


def from_bus_rate(rows: pl.DataFrame) -> Timings:
    """Timings of all-reduce rows that state GB/s of the bus, with what their rounding leaves open."""
    ranks, payload, rate = (
        rows[name].to_numpy().astype(float) for name in ("n_gpus", "global_batch", "measured")
    )
    inside = np.minimum(ranks, 8)
    return timings(
        "all_reduce",
        payload,
        2 * (ranks - 1) / ranks * payload / (rate * GB),
        ranks_per_node=inside,
        num_nodes=ranks / inside,
        log_error=np.arctanh(np.minimum(0.005 / rate, 0.999)),
    )


def table_way(known: Timings, asked: Timings, wires: Wires) -> Numbers:
    """The way under test."""
    return collective_table((known,), wires).seconds(asked.operation, asked.payload_bytes, asked.group)


def ring_way(known: Timings, asked: Timings, wires: Wires) -> Numbers:  # noqa: ARG001 - one shape for all ways
    """Latency and rate of a plain ring, by least squares on log time."""

    def ring_s(logs: Numbers, points: Timings) -> Numbers:
        ranks = np.asarray(points.group.num_ranks)
        bytes_s = 2 * (ranks - 1) / ranks * points.payload_bytes / np.exp(logs[1])
        return 2 * (ranks - 1) * np.exp(logs[0]) + bytes_s

    start = np.log([5e-6, 100 * GB])
    found = least_squares(lambda logs: np.log(ring_s(logs, known) / known.seconds), start)
    return ring_s(found.x, asked)


def line_way(known: Timings, asked: Timings, wires: Wires) -> Numbers:  # noqa: ARG001 - one shape for all ways
    """Straight lines through log time over log bytes, then over log ranks; the outermost line goes on."""

    def along(x: float, xs: Numbers, ys: Numbers) -> float:
        if len(xs) == 1:
            return float(ys[0])
        right = int(np.clip(np.searchsorted(xs, x), 1, len(xs) - 1))
        share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
        return float(ys[right - 1] + share * (ys[right] - ys[right - 1]))

    known_ranks, asked_ranks = (np.asarray(points.group.num_ranks) for points in (known, asked))
    predicted = []
    for ranks, payload in zip(asked_ranks, asked.payload_bytes, strict=True):
        counts = np.array([ranks]) if ranks in known_ranks else np.unique(known_ranks)
        at_count = []
        for count in counts:
            points = known.where(known_ranks == count)
            order = np.argsort(points.payload_bytes)
            xs, ys = np.log(points.payload_bytes[order]), np.log(points.seconds[order])
            at_count.append(along(np.log(payload), xs, ys))
        predicted.append(along(np.log(ranks), np.log(counts), np.array(at_count)))
    return np.exp(predicted)


WAYS: tuple[tuple[str, Prediction], ...] = (
    ("table", table_way),
    ("plain ring", ring_way),
    ("log-log lines", line_way),
)


class Split(Struct, frozen=True, kw_only=True):
    """What is known and what is asked, and how the pair is called."""

    name: str
    wires: Wires
    pairs: tuple[tuple[Timings, Timings], ...]


def half_of_sizes(name: str, points: Timings, wires: Wires) -> Split:
    """Every second size held out, then the others."""
    place = np.zeros(points.seconds.size, dtype=int)
    for ranks in np.unique(np.asarray(points.group.num_ranks)):
        chosen = np.asarray(points.group.num_ranks) == ranks
        place[chosen] = np.argsort(np.argsort(points.payload_bytes[chosen]))
    odd = place % 2 == 1
    pairs = tuple((points.where(kept), points.where(~kept)) for kept in (~odd, odd))
    return Split(name=f"{name}: half of the sizes", wires=wires, pairs=pairs)


def rank_count_out(name: str, points: Timings, wires: Wires) -> Split:
    """Each rank count held out in turn."""
    ranks = np.asarray(points.group.num_ranks)
    pairs = tuple((points.where(ranks != each), points.where(ranks == each)) for each in np.unique(ranks))
    return Split(name=f"{name}: one rank count out", wires=wires, pairs=pairs)


def report(*splits: Split) -> None:
    """One line a way: median, mean, 90th percentile, the worst fold's median; several splits are pooled."""
    name = splits[0].name if len(splits) == 1 else "all of them: half of the sizes"
    for way, predicted in WAYS:
        folds = [
            np.abs(predicted(known, asked, split.wires) / asked.seconds - 1)
            for split in splits
            for known, asked in split.pairs
        ]
        errors = 100 * np.concatenate(folds)
        worst = 100 * max(float(np.median(fold)) for fold in folds)
        print(
            f"{name:42s} {way:14s} {np.median(errors):6.2f} {errors.mean():7.2f} "
            f"{np.quantile(errors, 0.9):7.1f} {worst:7.2f} {errors.size:5d}"
        )


def report_untouched(name: str, points: Timings, wires: Wires) -> None:
    """The error of stated links and priors, nothing measured."""
    modelled_s = all_reduce_s(points.payload_bytes, points.group, wires, CollectiveParameters())
    errors = 100 * np.abs(modelled_s / points.seconds - 1)
    print(f"{name}: from stated links alone, median {np.median(errors):.1f} %, n {errors.size}")


def held_out(
    measured: tuple[Timings, ...], wires: Wires, *, by: Literal["size", "ranks"]
) -> tuple[Numbers, Numbers]:
    """What a table is wrong by where it was not measured: (log errors, their clusters), both (n_points,).

    by: what is left out at a time and is a cluster: the points of one size, or of one group of ranks.
    Returns log(predicted / measured) of tables that saw all but the cluster, for stats.conformal_half_width.
    Raises EvidenceError if too little is left to fit.
    Assumes each cluster is as unlike the rest as the next unmeasured one will be.
    """
    marks = [
        points.payload_bytes if by == "size" else points.ranks_per_node + 1j * points.num_nodes
        for points in measured
    ]
    kinds, clusters = np.unique(np.concatenate(marks), return_inverse=True)
    errors = [np.zeros_like(points.seconds) for points in measured]
    for kind in kinds:
        kept = tuple(points.where(mark != kind) for points, mark in zip(measured, marks, strict=True))
        table = collective_table(tuple(points for points in kept if points.seconds.size), wires)
        for points, mark, error in zip(measured, marks, errors, strict=True):
            predicted_s = table.seconds(points.operation, points.payload_bytes, points.group)
            error[mark == kind] = np.log(predicted_s / points.seconds)[mark == kind]
    return np.concatenate(errors), clusters.astype(float)


def report_coverage(name: str, points: Timings, wires: Wires) -> None:
    """How often the interval made without a size, from other held-out sizes, holds that size's times."""
    log_errors, clusters = held_out((points,), wires, by="size")
    kinds = np.unique(clusters)
    try:
        widths = [
            conformal_half_width(log_errors[clusters != each], clusters[clusters != each], level=LEVEL)
            for each in kinds
        ]
    except EvidenceError as err:
        print(f"{name}: no interval: {err}")
        return
    held = [np.abs(log_errors[clusters == each]) <= width for each, width in zip(kinds, widths, strict=True)]
    print(
        f"{name}: {LEVEL:.0%} intervals over sizes held out: {np.mean(np.concatenate(held)):.1%} held, "
        f"factor {np.exp(np.median(widths)):.3f}, {kinds.size} clusters"
    )


def main() -> None:
    """Read the files, print every split."""
    root = Path(__file__).resolve().parents[1]
    default = Path(os.environ.get("EQUIPOISE_DATA", root.parent / "shared" / "data")) / "measured"
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--data", type=Path, default=default)
    data: Path = options.parse_args().data
    if not (data / "nccl_published.csv").is_file():
        print(f"skipped: no nccl_published.csv in {data}; set EQUIPOISE_DATA")
        return
    one_unit = pl.read_csv(data / "nccl_vtrain_allreduce.csv").filter(pl.col("unit") == "us")
    vtrain = timings(
        "all_reduce",
        one_unit["global_batch"].to_numpy(),
        one_unit["measured"].to_numpy() * MICROSECOND_S,
        ranks_per_node=one_unit["n_gpus"].to_numpy(),
    )
    published = pl.read_csv(data / "nccl_published.csv")
    sized = published.filter(pl.col("global_batch").is_not_null())
    p6, turing, h200 = (
        sized.filter(pl.col("hardware").str.contains(text)) for text in ("P6-B200", "2080 Ti", "8xH200")
    )
    by_choice = h200.filter(pl.col("parallel_config").str.starts_with("algo"))
    by_ring = h200.filter(~pl.col("parallel_config").str.starts_with("algo"))
    b200 = from_bus_rate(p6)
    one_node = np.less_equal(b200.num_nodes, 1)
    print(
        f"expressed: vTrain {vtrain.seconds.size} of {one_unit.height} executions, "
        f"published {sized.height} of {published.height} (the others state a peak without its size)"
    )
    print(f"{'split':42s} {'way':14s} {'median':>6s} {'mean':>7s} {'p90':>7s} {'worst':>7s} {'n':>5s}   (%)")
    halves = (
        half_of_sizes("vTrain A100", vtrain, A100),
        half_of_sizes("P6-B200", b200, P6_B200),
        half_of_sizes("2 x RTX 2080 Ti", from_bus_rate(turing), RTX_2080TI),
    )
    report(*halves)
    for each in halves:
        report(each)
    report(rank_count_out("vTrain A100", vtrain, A100))
    apart = ((b200.where(one_node), b200.where(~one_node)),)
    report(Split(name="P6-B200: 8 to 32 ranks", wires=P6_B200, pairs=apart))
    usual = replace(P6_B200, inter=Wire(byte_per_s=50 * GB, latency_s=NETWORK_STEP_S))
    report(Split(name="P6-B200: 8 to 32, steps of 14 us", wires=usual, pairs=apart))
    report(
        Split(name="P6-B200: 8 to 32, as if in order", wires=replace(P6_B200, keeps_order=1.0), pairs=apart)
    )
    for name, rows, wires in (("chosen", by_choice, H200), ("ring", by_ring, H200_RING)):
        report_untouched(f"H200, 8 GiB, {name}", from_bus_rate(rows), wires)
    report_untouched("vTrain A100", vtrain, A100)
    report_untouched("P6-B200", b200, P6_B200)
    report_untouched("2 x RTX 2080 Ti", from_bus_rate(turing), RTX_2080TI)
    report_coverage("vTrain A100", vtrain, A100)
    report_coverage("P6-B200", b200, P6_B200)


if __name__ == "__main__":
    main()
