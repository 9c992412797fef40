"""From a step measured on few accelerators to the step on many that hold the same weights: law and fit.

Only what more ranks add is modelled. Every argument is a float or an array; arrays broadcast.
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import FitError
from equipoise.perfmodel.collectives import all_reduce_s
from equipoise.perfmodel.load import Floats, Numbers
from equipoise.perfmodel.machine import Group, Wires
from equipoise.perfmodel.parameters import CollectiveParameters, priors_in
from equipoise.stats import deviations_of_slowest

# What workloads call samples that have unequal lengths, and are not cut to one.
RAGGED_SAMPLES = frozenset({"utterance", "sentence pair"})
# Whatever more ranks add, this share of a measured step is the accelerator's own work.
_LEAST_OWN_SHARE = 0.3
# Of a host whose cores are not stated, for each accelerator: servers have 5 to 16, workstations 8 to 24.
_USUAL_CORES = 12.0
# Errors count by their size, not its square: tables have misprints, and pipelines that nothing here knows of.
# Scale: what workloads left out err by in the mean; below the second number an error is noise of measurement.
_ERROR_LOG_SCALE, _NOISE_LOG_SCALE = 0.08, 0.01


SCALE_UP_PRIORS = priors_in("scale_up")
_MEDIANS = {each.name: each.median for each in SCALE_UP_PRIORS}


class ScaleUpParameters(Struct, frozen=True, kw_only=True):
    """One calibration of the law; as built without arguments, the medians of the priors."""

    rank_jitter: float = _MEDIANS["rank_jitter"]
    length_jitter: float = _MEDIANS["length_jitter"]
    exchange_s: float = _MEDIANS["exchange_s"]
    exchange_share: float = _MEDIANS["exchange_share"]
    decode_core_s: float = _MEDIANS["decode_core_s"]
    batch_floor: float = _MEDIANS["batch_floor"]
    usual_step_s: float = _MEDIANS["usual_step_s"]
    usual_gradient_bytes: float = _MEDIANS["usual_gradient_bytes"]


class MeasuredSteps(Struct, frozen=True, kw_only=True):
    """Steps of training with data parallelism, as measured on few accelerators.

    microbatch_s: seconds from one micro-batch to the next; NaN where not known. num_accelerators: it was
    measured on. gradient_bytes: that are exchanged; NaN where not known. node_size: accelerators of one host.
    num_accumulated: micro-batches an exchange of gradients. decoded_per_s: images an accelerator took a
    second, which a host decodes; 0 where there are none. num_cores: of that host; NaN where not known.
    is_ragged: 1 where samples have unequal lengths.
    """

    microbatch_s: Floats
    num_accelerators: Floats
    gradient_bytes: Floats
    node_size: Floats
    wires: Wires
    num_accumulated: Floats = 1.0
    decoded_per_s: Floats = 0.0
    num_cores: Floats = float("nan")
    is_ragged: Floats = 0.0


def slowdown(
    measured: MeasuredSteps,
    num_accelerators: Floats,
    parameters: ScaleUpParameters,
    *,
    microbatch_ratio: Floats = 1.0,
    num_accumulated: Floats | None = None,
) -> Numbers:
    """How many times as long a micro-batch takes on so many accelerators of the same kind; elementwise.

    microbatch_ratio: samples of a micro-batch there over those measured. num_accumulated: there, where it
    differs.
    Assumes that each rank has the whole model, hosts and links are equal, and ranks wait for each other at
    every exchange. Errs where an input pipeline starves accelerators: it knows of images, not of the code
    that reads them.
    Source: slowest of n normal times, sd sqrt(2 ln n) above their mean (extreme values); all-reduce of
    `collectives.py`; time of a micro-batch affine in its samples. Which parts hold: docs/experiments/0009.
    """
    step_s = np.where(np.isnan(measured.microbatch_s), parameters.usual_step_s, measured.microbatch_s)
    before = _added(measured, measured.num_accelerators, parameters, measured.num_accumulated)
    share = (1.0 - before.fixed_s / step_s - before.input) / (1.0 + before.waiting)
    alone_s = step_s * np.maximum(share, _LEAST_OWN_SHARE)
    accumulated = measured.num_accumulated if num_accumulated is None else num_accumulated
    after = _added(measured, num_accelerators, parameters, accumulated)
    shrunk = parameters.batch_floor + (1.0 - parameters.batch_floor) * np.asarray(microbatch_ratio)
    there_s = alone_s * shrunk
    input_s = after.input * step_s * microbatch_ratio
    whole_s = there_s * (1.0 + after.waiting) + after.fixed_s + input_s
    return np.asarray(whole_s / step_s)


class _Added(Struct, frozen=True, kw_only=True):
    """What ranks add to a micro-batch: shares of its own work, seconds, and shares of its measured time."""

    waiting: Floats
    fixed_s: Floats
    input: Floats


def _added(
    measured: MeasuredSteps, num_ranks: Floats, parameters: ScaleUpParameters, accumulated: Floats
) -> _Added:
    ranks = np.asarray(num_ranks, dtype=float)
    num_in_node = np.minimum(ranks, measured.node_size)
    group = Group(ranks_per_node=num_in_node, num_nodes=ranks / num_in_node)
    unknown = np.isnan(measured.gradient_bytes)
    payload = np.where(unknown, parameters.usual_gradient_bytes, measured.gradient_bytes)
    reduce_s = all_reduce_s(payload, group, measured.wires, CollectiveParameters())
    exchange_s = np.where(ranks > 1, parameters.exchange_s + parameters.exchange_share * reduce_s, 0.0)
    # A slow chip is slow in every micro-batch; unequal lengths even out over those between two exchanges.
    jitter = parameters.rank_jitter + parameters.length_jitter * measured.is_ragged / np.sqrt(accumulated)
    unstated = np.isnan(measured.num_cores)
    cores = np.where(unstated, _USUAL_CORES * np.asarray(measured.node_size), measured.num_cores)
    return _Added(
        waiting=jitter * deviations_of_slowest(ranks),
        fixed_s=exchange_s / accumulated,
        input=measured.decoded_per_s * (num_in_node - 1.0) * parameters.decode_core_s / cores,
    )


def fit_scale_up(
    predict: Callable[[ScaleUpParameters], Numbers],
    slowdowns: Numbers,
    *,
    weights: Numbers,
) -> ScaleUpParameters:
    """The parameters under which `predict` comes closest to measured slowdowns, as far as their priors allow.

    predict: slowdowns under some parameters; these, `slowdowns` and `weights` have shape (n_cases,). weights:
    shares of independent observations; the cases of one workload share one, being tuned and fed by one team.
    Raises FitError without cases, or if a prediction is no positive number.
    Assumes errors of the logarithm have a Laplace distribution: many small, some huge.
    Source: maximum a posteriori; least absolute deviations, smoothed below the noise of measurement.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - loading it takes as long as a plan

    if not len(slowdowns):
        raise FitError("no pair of sizes to calibrate on", missing=("rows of one set-up at two sizes",))
    medians = np.log([prior.median for prior in SCALE_UP_PRIORS])
    spreads = np.array([prior.log_sd for prior in SCALE_UP_PRIORS])
    target = np.log(slowdowns)

    def loss(units: Numbers) -> Numbers:
        errors = target - np.log(predict(_parameters(medians + units * spreads)))
        # Squares to this are 2 |error| / scale, where errors are not noise.
        smooth = np.sqrt(errors**2 + _NOISE_LOG_SCALE**2) - _NOISE_LOG_SCALE
        return np.concatenate([np.sign(errors) * np.sqrt(2.0 * weights * smooth / _ERROR_LOG_SCALE), units])

    begin = np.zeros(len(medians))
    if not np.isfinite(loss(begin)).all():
        raise FitError(
            "a measured slowdown has no positive prediction under the priors; reject its row first"
        )
    found = least_squares(loss, begin)
    return _parameters(medians + found.x * spreads)


def _parameters(logs: Numbers) -> ScaleUpParameters:
    values = np.exp(logs).tolist()
    names = [prior.name for prior in SCALE_UP_PRIORS]
    return replace(ScaleUpParameters(), **dict(zip(names, values, strict=True)))
