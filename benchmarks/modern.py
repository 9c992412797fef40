"""Accuracy of the performance model on torchtitan and Megatron-Bridge, groups held out, and beyond them.

    python benchmarks/modern.py [--data DIR]

DIR holds torchtitan.csv and megatron_bridge_nemo.csv (default: `measured` below $EQUIPOISE_DATA). Groups are
wider than `equipoise validate --split` cuts them: all rows of one technique, long sequences together whatever
their axes. docs/experiments/0007-modern-systems.md tells what was learnt.
"""

import argparse
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.calibration.accuracy import cluster_weights
from equipoise.calibration.published import PublishedRow
from equipoise.calibration.published.executions import read_executions
from equipoise.calibration.step_rows import StepRows, step_rows
from equipoise.perfmodel.calibrate import calibrate
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import transformer_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.memory import memory
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.spec.catalogue import cluster_in_text
from equipoise.spec.strategy import strategy
from equipoise.spec.workload import workload
from equipoise.units import GIB

TRUTH = Path(__file__).parents[1] / "tests" / "truth" / "large_steps.toml"
# No row here moves these: collectives are as nccl-tests leave them, scores are fused, memory has no time.
_STILL = (
    "collective.",
    "score_traffic",
    "fixed_bytes",
    "communicator_bytes",
    "activation_slack",
    "reserved_slack",
)
NAMES = tuple(each.name for each in PRIORS if not each.name.startswith(_STILL))
LONG = 8192  # tokens of a sequence from which attention decides

Numbers = NDArray[np.float64]


def technique(row: PublishedRow) -> str:
    """What a torchtitan row tries out: the group it is left out with."""
    how, model = row.strategy, row.model
    assert how is not None
    assert model is not None
    if "H200" in row.hardware:
        return "H200"
    if how.tp > 1:
        return f"tensor parallel{', asynchronous' if how.tp_overlap else ''}, {how.precision}"
    if (model.sequence or 0) > LONG:
        return "long sequences"
    return f"sharded, {how.implementation}, {how.precision}"


def _weights(rows: Sequence[PublishedRow]) -> Numbers:
    """Weights with which every configuration counts once, however often it was run."""
    return cluster_weights(np.array([row.cluster for row in rows]))


def fitted(rows: StepRows, measured_s: Numbers, weights: Numbers) -> Parameters:
    """The parameters under which rows come closest."""
    return calibrate(rows.step_s, measured_s, names=NAMES, weights=weights).parameters


def held_out(rows: Sequence[PublishedRow], groups: Sequence[str]) -> None:
    """Print the error of every group, predicted from the others."""
    known = step_rows(rows)
    measured_s = np.array([row.seconds for row in rows], dtype=float)
    weights = _weights(rows)
    error = np.empty(len(rows))
    for name in dict.fromkeys(groups):
        out = np.array([each == name for each in groups])
        inside, outside = np.flatnonzero(~out), np.flatnonzero(out)
        parameters = fitted(known.taken(inside), measured_s[inside], weights[inside])
        error[outside] = known.taken(outside).step_s(parameters) / measured_s[outside] - 1
        print(
            f"  {name[:44]:44} n {out.sum():3} {np.mean(np.abs(error[out])):6.1%} {np.mean(error[out]):+7.1%}"
        )
    print(f"  all: mean {np.mean(np.abs(error)):.1%}, median {np.median(np.abs(error)):.1%}")


def reserved(rows: Sequence[PublishedRow]) -> None:
    """Print the error of memory, nothing fitted."""
    told = [row for row in rows if row.memory_bytes]
    known = step_rows(told)
    stated = np.array([row.memory_bytes for row in told], dtype=float)
    error = np.abs(memory(known.load, known.grid, Parameters()).reserved / stated - 1)
    print(f"memory of {len(told)} rows, priors only: mean {np.mean(error):.1%}, largest {np.max(error):.1%}")


def beyond(parameters: Parameters) -> None:
    """Print predictions of steps that no file holds."""
    truth = tomllib.loads(TRUTH.read_text())
    errors = []
    for step in truth["step"]:
        load = transformer_load(workload(step["model"]).transformer, sequence=step["sequence"])
        cluster = cluster_in_text(truth["hardware"], num_accelerators=step["num_accelerators"])
        how = strategy(step["strategy"])
        found = estimate(load, machine(cluster), grid([how]), parameters)
        tokens = how.global_batch_samples * step["sequence"]
        measured_s = tokens / (step["tokens_per_s_per_accelerator"] * step["num_accelerators"])
        errors.append(
            (found.step_s[0] / measured_s - 1, found.memory.reserved[0] / GIB / step["reserved_gib"] - 1)
        )
        print(f"  {step['name']:44} time {errors[-1][0]:+6.1%} memory {errors[-1][1]:+6.1%}")
    time_error, memory_error = np.mean(np.abs(errors), axis=0)
    print(f"  all: time {time_error:.1%}, memory {memory_error:.1%}")


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    usual = Path(os.environ.get("EQUIPOISE_DATA", "../shared/data")) / "measured"
    parser.add_argument("--data", type=Path, default=usual)
    data = parser.parse_args().data
    titan = read_executions([data / "torchtitan.csv"])
    print("torchtitan, one technique left out")
    held_out(titan, [technique(row) for row in titan])
    reserved(titan)
    print("Llama 3.1 70B and 405B, calibrated on the 18 rows of 8B")
    every = step_rows(titan)
    beyond(fitted(every, np.array([row.seconds for row in titan], dtype=float), _weights(titan)))
    print("Megatron-Bridge, one model left out")
    bridge = read_executions([data / "megatron_bridge_nemo.csv"])
    held_out(bridge, [row.workload for row in bridge])


if __name__ == "__main__":
    main()
