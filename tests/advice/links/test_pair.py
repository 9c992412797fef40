"""One accelerator or two: laws of the speed-up, and one card alone against published rates."""

import numpy as np
import pytest

from equipoise.advice.links.pair import (
    Subjects,
    cases,
    crossover,
    pair,
    seconds,
    speedups,
)
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import accelerator
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

MODELS = ("small_cnn", "mobilenet_v2", "resnet50", "vit_large")
# timm, results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv: images per second at a batch.
PUBLISHED_3090 = {"mobilenet_v2": (512, 1832.14), "resnet50": (512, 826.06), "vit_large": (64, 117.08)}


@pytest.fixture(scope="module")
def middle():
    card = accelerator("rtx-2080-ti-pcie-11gb")
    pairs = [pair(card, name) for name in ("PHB", "NV2")]
    subjects = Subjects.of([workload(name) for name in MODELS])
    return np.median(speedups(cases(pairs, subjects, (8, 64))), axis=0)


def test_two_never_double_and_a_better_link_never_slows(middle):
    assert middle.shape == (2, len(MODELS), 2)
    assert middle.max() < 2
    assert (np.diff(middle, axis=0) >= -1e-9).all()


def test_a_larger_batch_gains_more(middle):
    assert (middle[..., 1] > middle[..., 0]).all()


def test_causes_sum_to_the_step():
    found = seconds(
        cases([pair(accelerator("rtx-3090-pcie-24gb"))], Subjects.of([workload("resnet50")]), (32,))
    )
    parts = (found.share, found.launching, found.copying, found.buffers, found.exposed, found.waiting)
    assert sum(np.broadcast_to(part, found.step.shape) for part in parts) == pytest.approx(found.step)
    assert found.exposed.ravel()[0] == 0


@pytest.mark.truth
@pytest.mark.parametrize("name", PUBLISHED_3090)
def test_one_card_alone_trains_as_fast_as_published(name):
    batch, per_s = PUBLISHED_3090[name]
    alone = grid(
        [
            Strategy(
                microbatch_samples=batch, global_batch_samples=batch, implementation="eager", optimizer="sgd"
            )
        ]
    )
    found = estimate(
        workload_load(workload(name)),
        machine(cluster("rtx-3090-pcie-24gb", num_accelerators=1)),
        alone,
        Parameters(),
    )
    assert batch / float(np.squeeze(found.step_s)) == pytest.approx(per_s, rel=0.15)


def test_crossovers_are_interpolated_on_logarithms():
    # By hand: half-way between 1 M and 100 M in logarithms is 10 M.
    assert crossover([1e6, 1e8], np.array([0.95, 1.15])) == pytest.approx(1e7)
    assert crossover([1e6, 1e8], np.array([0.9, 1.0])) is None
    assert crossover([1e6, 1e8], np.array([1.2, 1.3])) == pytest.approx(1e6)
    # One that falls back counts from where it stays above.
    assert crossover([1e6, 1e7, 1e8], np.array([1.2, 0.95, 1.15])) > 1e7
