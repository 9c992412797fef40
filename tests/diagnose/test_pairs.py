"""One accelerator or two: laws of the speed-up, and one card alone against published rates."""

import numpy as np
import pytest

from equipoise.diagnose.links import Pair, cases, seconds, speedups
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import accelerator
from equipoise.spec.links import reach
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

MODELS = ("small_cnn", "mobilenet_v2", "resnet50", "vit_large")
# timm, results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv, and -nhwc: images per second at a batch, where
# images lie in memory by channel and, of convolutions, by pixel.
PUBLISHED_3090 = {
    "mobilenet_v2": (512, (1832.14, 2313.1)),
    "resnet50": (512, (826.06, 1218.01)),
    "vit_large": (64, (117.08,)),
}


@pytest.fixture(scope="module")
def middle():
    card = accelerator("rtx-2080-ti-pcie-11gb")
    pairs = [Pair(accelerator=card, link=reach(name, card)) for name in ("PHB", "NV2")]
    loads = [workload_load(workload(name)) for name in MODELS]
    return np.median(speedups(cases(pairs, loads, (8, 64))), axis=0)


def test_two_never_double_and_a_better_link_never_slows(middle):
    assert middle.shape == (2, len(MODELS), 2)
    assert middle.max() < 2
    assert (np.diff(middle, axis=0) >= -1e-9).all()


def test_a_larger_batch_gains_more(middle):
    assert (middle[..., 1] > middle[..., 0]).all()


def test_causes_sum_to_the_step():
    card = accelerator("rtx-3090-pcie-24gb")
    found = seconds(
        cases(
            [Pair(accelerator=card, link=reach("PHB", card))],
            [workload_load(workload("resnet50"))],
            (32,),
        )
    )
    parts = (found.share, found.launching, found.copying, found.buffers, found.exposed, found.waiting)
    assert sum(np.broadcast_to(part, found.step.shape) for part in parts) == pytest.approx(found.step)
    assert found.exposed.ravel()[0] == 0


@pytest.mark.truth
@pytest.mark.parametrize("name", PUBLISHED_3090)
def test_one_card_alone_trains_as_fast_as_published(name):
    batch, published_per_s = PUBLISHED_3090[name]
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
    per_s = batch / float(np.squeeze(found.step_s))
    assert per_s == pytest.approx(np.clip(per_s, min(published_per_s), max(published_per_s)), rel=0.15)
