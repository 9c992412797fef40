"""Traced runs beside the model: a step, and what of it is exposed communication; what cannot be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from equipoise.decide.user_evidence.traces import UserTrace, named
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import Accelerator
from equipoise.spec.strategy import DTYPE_OF
from equipoise.spec.workload import Workload
from equipoise.units import MILLISECOND_S, format_count

# What the model calls what a trace shows as communication that nothing hides: waiting for a slower rank
# passes in the collective that it comes late to.
_EXPOSED = ("tp", "cp", "ep", "pp", "dp", "waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCheck:
    """A traced run beside the modelled step of its strategy; None where there is none."""

    trace: UserTrace
    modelled_step_s: float | None = None
    modelled_exposed_share: float | None = None


def possible(trace: UserTrace, workload: Workload, chip: Accelerator | None) -> UserTrace:
    """The trace; with what is wrong of it as missing where its step is faster than the chips' peak allows.

    chip: None where it is not known.
    """
    found = trace.strategy
    if chip is None or found is None or trace.step_s is None:
        return trace
    peak = chip.peak_flop_per_s(DTYPE_OF[found.precision])
    flop = replace(workload, trained=found.trained).train_flop_per_sample
    if peak is None or flop is None:
        return trace
    least_s = flop * found.global_batch_samples / (peak * found.num_accelerators)
    if trace.step_s >= least_s:
        return trace
    wrong = (
        f"a workload and a batch that the trace is of: {format_count(found.global_batch_samples)} samples of "
        f"{workload.title} take {least_s / MILLISECOND_S:.3g} ms at the peak of "
        f"{format_count(found.num_accelerators)} x {chip.title}"
    )
    return replace(trace, missing=(*trace.missing, wrong))


def checks(
    traces: Sequence[UserTrace], load: Load | None, nodes: Cluster, parameters: Parameters | None
) -> tuple[TraceCheck, ...]:
    """Traced runs on this kind of accelerator, beside the modelled steps of their strategies.

    load, parameters: None where there is no model.
    """
    return tuple(
        _check(each, load, nodes, parameters)
        for each in traces
        if each.accelerator in {None, nodes.accelerator.slug}
    )


def ran_elsewhere(traces: Sequence[UserTrace], accelerator: str, title: str) -> tuple[str, ...]:
    """A note of each trace of another accelerator than the one asked about."""
    return tuple(
        f"Not used for {title}: {named(each.files)} ran on {each.device}."
        for each in traces
        if each.accelerator not in {None, accelerator}
    )


def _check(trace: UserTrace, load: Load | None, nodes: Cluster, parameters: Parameters | None) -> TraceCheck:
    if load is None or parameters is None or trace.strategy is None or trace.is_other:
        return TraceCheck(trace=trace)
    size = trace.strategy.num_accelerators
    found = estimate(load, machine(replace(nodes, num_accelerators=size)), grid([trace.strategy]), parameters)
    step_s = float(np.ravel(found.step_s)[0])
    if not (math.isfinite(step_s) and step_s > 0):
        return TraceCheck(trace=trace)
    exposed_s = math.fsum(float(np.ravel(getattr(found.seconds, name))[0]) for name in _EXPOSED)
    return TraceCheck(trace=trace, modelled_step_s=step_s, modelled_exposed_share=exposed_s / step_s)
