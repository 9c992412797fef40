"""Extrapolates a measured step to more data-parallel accelerators: the law and its fit.

Only the overhead of more ranks is modelled. Arguments are floats or arrays that broadcast.
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

# Names of samples in workloads that have unequal lengths and are not cut to one length.
RAGGED_SAMPLES = frozenset({"utterance", "sentence pair"})
# At least this share of a measured step is the accelerator's own work.
_MIN_OWN_SHARE = 0.3
# Host cores per accelerator where not stated: servers have 5 to 16, workstations 8 to 24.
_USUAL_CORES = 12.0
# The loss is the absolute error rather than its square, because published tables have misprints and unknown
# input pipelines. First: mean error of held-out workloads; second: errors below it are measurement noise.
_ERROR_LOG_SCALE, _NOISE_LOG_SCALE = 0.08, 0.01


SCALE_UP_PRIORS = priors_in("scale_up")
_MEDIANS = {each.name: each.median for each in SCALE_UP_PRIORS}


class ScaleUpParameters(Struct, frozen=True, kw_only=True):
    """One calibration of the law; by default, the medians of the priors."""

    rank_jitter: float = _MEDIANS["rank_jitter"]
    length_jitter: float = _MEDIANS["length_jitter"]
    exchange_s: float = _MEDIANS["exchange_s"]
    exchange_share: float = _MEDIANS["exchange_share"]
    decode_core_s: float = _MEDIANS["decode_core_s"]
    batch_floor: float = _MEDIANS["batch_floor"]
    usual_step_s: float = _MEDIANS["usual_step_s"]
    usual_gradient_bytes: float = _MEDIANS["usual_gradient_bytes"]


class MeasuredSteps(Struct, frozen=True, kw_only=True):
    """Steps of data-parallel training, as measured on few accelerators.

    microbatch_s: seconds per micro-batch; NaN where unknown. num_accelerators: on which it was measured.
    gradient_bytes: exchanged; NaN where unknown. node_size: accelerators per host. num_accumulated:
    micro-batches per exchange of gradients. decoded_per_s: images per second and accelerator that the host
    decodes; 0 without images. num_cores: of a host; NaN where unknown. is_ragged: 1 where samples have
    unequal lengths.
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
    """Time of a micro-batch on `num_accelerators` of the same kind, over the measured time; elementwise.

    microbatch_ratio: samples per micro-batch over those measured. num_accumulated: where it differs from the
    measured one.
    Assumes each rank has the whole model, hosts and links are equal, and ranks wait for each other at every
    exchange. Inaccurate where an input pipeline starves accelerators: only image decoding is modelled, not
    the code that reads samples.
    Source: slowest of n normal times, sd sqrt(2 ln n) above their mean (extreme values); all-reduce of
    `collectives.py`; time of a micro-batch affine in its samples. Which parts hold: docs/experiments/0009.
    """
    step_s = np.where(np.isnan(measured.microbatch_s), parameters.usual_step_s, measured.microbatch_s)
    before = _rank_overhead(measured, measured.num_accelerators, parameters, measured.num_accumulated)
    share = (1.0 - before.fixed_s / step_s - before.input) / (1.0 + before.waiting)
    alone_s = step_s * np.maximum(share, _MIN_OWN_SHARE)
    accumulated = measured.num_accumulated if num_accumulated is None else num_accumulated
    after = _rank_overhead(measured, num_accelerators, parameters, accumulated)
    shrunk = parameters.batch_floor + (1.0 - parameters.batch_floor) * np.asarray(microbatch_ratio)
    there_s = alone_s * shrunk
    input_s = after.input * step_s * microbatch_ratio
    whole_s = there_s * (1.0 + after.waiting) + after.fixed_s + input_s
    return np.asarray(whole_s / step_s)


class _RankOverhead(Struct, frozen=True, kw_only=True):
    """Overhead of ranks per micro-batch: shares of its own work, seconds, and shares of its measured time."""

    waiting: Floats
    fixed_s: Floats
    input: Floats


def _rank_overhead(
    measured: MeasuredSteps, num_ranks: Floats, parameters: ScaleUpParameters, accumulated: Floats
) -> _RankOverhead:
    ranks = np.asarray(num_ranks, dtype=float)
    num_in_node = np.minimum(ranks, measured.node_size)
    group = Group(ranks_per_node=num_in_node, num_nodes=ranks / num_in_node)
    unknown = np.isnan(measured.gradient_bytes)
    payload = np.where(unknown, parameters.usual_gradient_bytes, measured.gradient_bytes)
    reduce_s = all_reduce_s(payload, group, measured.wires, CollectiveParameters())
    exchange_s = np.where(ranks > 1, parameters.exchange_s + parameters.exchange_share * reduce_s, 0.0)
    # A slow chip is slow in every micro-batch; unequal lengths average out between two exchanges.
    jitter = parameters.rank_jitter + parameters.length_jitter * measured.is_ragged / np.sqrt(accumulated)
    unstated = np.isnan(measured.num_cores)
    cores = np.where(unstated, _USUAL_CORES * np.asarray(measured.node_size), measured.num_cores)
    return _RankOverhead(
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
    """The most probable parameters given measured slowdowns and priors.

    predict: returns slowdowns, (n_cases,), like `slowdowns` and `weights`. weights: shares of independent
    observations; the cases of one workload share one, because one team tuned it.
    Raises FitError without cases, or if a prediction is not a positive number.
    Assumes errors of the logarithm have a Laplace distribution: many small, some huge.
    Source: maximum a posteriori; least absolute deviations, smoothed below measurement noise.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - loading it takes as long as a plan

    if not len(slowdowns):
        raise FitError("no pair of sizes to calibrate on", missing=("rows of one set-up at two sizes",))
    medians = np.log([prior.median for prior in SCALE_UP_PRIORS])
    spreads = np.array([prior.log_sd for prior in SCALE_UP_PRIORS])
    target = np.log(slowdowns)

    def loss(units: Numbers) -> Numbers:
        errors = target - np.log(predict(_parameters(medians + units * spreads)))
        # The square of this term is 2 |error| / scale, for errors above noise.
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
