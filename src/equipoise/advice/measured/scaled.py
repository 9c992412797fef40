"""Steps on many accelerators from a step that a user measured on few: seconds, interval and causes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.errors import UsageError
from equipoise.perfmodel import machine as machines
from equipoise.perfmodel.scale_up import (
    GRADIENT_BYTES,
    RAGGED_SAMPLES,
    Measured,
    ScaleUpParameters,
    scaled_up,
)
from equipoise.spec.cluster import Cluster
from equipoise.spec.workload import Workload

# Half of the interval, of the logarithm: 90 % of workloads that a fit had not seen (docs/experiments/0009).
HALF_WIDTH_LOG = 0.38
# What was measured to be faster than perfect scaling was so by 3 % at most, misprints left out (likewise).
_LEAST_SLOWDOWN = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallRun:
    """A training step as a user measured it: its seconds, on how many accelerators, samples of a micro-batch.

    num_accumulated: micro-batches that gradients are gathered over before they are exchanged.
    gradient_bytes: of one parameter, as it travels.
    """

    step_s: float
    microbatch_samples: int
    num_accelerators: int = 1
    num_accumulated: int = 1
    gradient_bytes: float = GRADIENT_BYTES

    def __post_init__(self) -> None:
        """Refuse what no run is."""
        for name in ("step_s", "microbatch_samples", "num_accelerators", "num_accumulated", "gradient_bytes"):
            value = getattr(self, name)
            if not 0 < value < np.inf:
                raise UsageError(f"measured step: {name} = {value}; expected a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSteps:
    """Steps of the same set-up on other numbers of accelerators; every field of shape (n_sizes,).

    step_s, low_s, high_s: seconds and 90 % bounds. samples_per_s: over all. efficiency: that over perfect
    scaling. waiting, exchange, input: seconds over those of the accelerator's own work, by cause.
    """

    num_accelerators: NDArray[np.intp]
    step_s: NDArray[np.float64]
    low_s: NDArray[np.float64]
    high_s: NDArray[np.float64]
    samples_per_s: NDArray[np.float64]
    efficiency: NDArray[np.float64]
    waiting: NDArray[np.float64]
    exchange: NDArray[np.float64]
    input: NDArray[np.float64]


def scaled(
    run: SmallRun,
    num_accelerators: ArrayLike,
    *,
    cluster: Cluster,
    workload: Workload | None = None,
    parameters: ScaleUpParameters | None = None,
) -> ScaledSteps:
    """Seconds of a step on so many accelerators, each keeping its micro-batch, by data parallelism.

    cluster: of the accelerator measured on; its links and hosts. workload: None where the catalogue lacks it:
    then it has as many parameters as usual, and samples of equal length. parameters: fitted, or the priors'.
    Raises UsageError for fewer accelerators than measured, SpecError where the cluster lacks a rate.
    Assumes as `scaled_up` does. The interval holds no faster step than the one measured, but for 3 %.
    Source: `perfmodel/scale_up.py`; how wrong it was: docs/experiments/0009.
    """
    sizes = np.atleast_1d(np.asarray(num_accelerators, dtype=np.intp))
    if (sizes < run.num_accelerators).any():
        raise UsageError(
            f"{int(sizes.min())} accelerators asked for, {run.num_accelerators} measured; "
            "expected at least as many"
        )
    found = scaled_up(
        _measured(run, cluster, workload), sizes.astype(float), parameters or ScaleUpParameters()
    )
    step_s = run.step_s * found.slowdown
    spread = np.where(sizes > run.num_accelerators, np.exp(HALF_WIDTH_LOG), 1.0)
    least_s = np.where(sizes > run.num_accelerators, _LEAST_SLOWDOWN, 1.0) * run.step_s
    return ScaledSteps(
        num_accelerators=sizes,
        step_s=step_s,
        low_s=np.maximum(step_s / spread, least_s),
        high_s=step_s * spread,
        samples_per_s=sizes * run.microbatch_samples * run.num_accumulated / step_s,
        efficiency=1.0 / found.slowdown,
        waiting=found.waiting,
        exchange=found.exchange,
        input=found.input,
    )


def _measured(run: SmallRun, cluster: Cluster, workload: Workload | None) -> Measured:
    rates = machines.machine(cluster)
    microbatch_s = run.step_s / run.num_accumulated
    trained = workload.trained_params if workload else None
    takes_images = workload is not None and workload.sample == "image"
    return Measured(
        microbatch_s=microbatch_s,
        num_accelerators=run.num_accelerators,
        gradient_bytes=np.nan if trained is None else trained * run.gradient_bytes,
        node_size=rates.node_size,
        wires=rates.wires,
        num_accumulated=run.num_accumulated,
        decoded_per_s=run.microbatch_samples / microbatch_s if takes_images else 0.0,
        num_cores=np.nan if cluster.num_cores is None else cluster.num_cores,
        is_ragged=float(workload is not None and workload.sample in RAGGED_SAMPLES),
    )
