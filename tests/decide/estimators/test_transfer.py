"""The nearest chip with results, and times carried over to one without: by hand, and what ships."""

import numpy as np
import pytest

from equipoise.decide.combine import straight_between
from equipoise.decide.estimators.model import NearChip, TransferRecord, carried_over, nearest_chips
from equipoise.decide.evidence import DrawnCurves, Estimate, Estimates
from equipoise.intervals import with_log_sd
from equipoise.scaling.laws import Domain
from equipoise.spec.catalogue import catalogue
from equipoise.spec.hardware import accelerator
from equipoise.spec.mlperf import ScoredEntry

SIZES = (8, 16, 32)


def results(*rows):
    """Results as the best of their size, of whose times the choice does not depend."""
    return [
        ScoredEntry(
            entry_id=f"e{place}",
            campaign=campaign,
            workload="bert",
            accelerator=slug,
            num_accelerators=size,
            score_s=1.0,
        )
        for place, (campaign, slug, size) in enumerate(rows)
    ]


def nearest(*rows, asked="h200-nvl-141gb", sizes=SIZES):
    return next(iter(nearest_chips(results(*rows), "bert", accelerator(asked), sizes, catalogue())), None)


def test_the_same_chip_in_another_form_is_nearest():
    found = nearest(("v5.0", "b200-sxm6-180gb", 8), ("v4.1", "h200-sxm5-141gb", 8))
    assert (found.chip.slug, found.nearness) == ("h200-sxm5-141gb", "chip")


def test_else_a_chip_of_the_maker_whose_peak_is_nearest():
    found = nearest(("v5.0", "l40s-pcie-48gb", 8), ("v5.0", "h100-sxm5-80gb", 8))
    assert (found.chip.slug, found.nearness) == ("h100-sxm5-80gb", "maker")


def test_newer_results_and_nearer_sizes_come_first():
    old, new = ("v1.0", "a100-sxm4-80gb", 8), ("v4.0", "a100-sxm4-40gb", 8)
    rounds = [(name, "l4-pcie-24gb", 8) for name in ("v1.1", "v2.0", "v2.1", "v3.0", "v3.1")]
    assert nearest(old, new, *rounds, asked="a100-pcie-80gb").chip.slug == "a100-sxm4-40gb"
    far = ("v4.0", "a100-sxm4-80gb", 4096)
    assert nearest(far, new, asked="a100-pcie-80gb").chip.slug == "a100-sxm4-40gb"


def test_chips_of_other_makers_and_kinds_are_not_near():
    assert nearest(("v5.0", "mi300x-oam-192gb", 8)) is None
    assert nearest(("v3.1", "xeon-8480-cpu", 8), asked="gaudi2-oam-96gb") is None


RECORD = TransferRecord(
    nearness="chip",
    num_held_out=100,
    num_chips=5,
    log_sd=0.2,
    median=0.1,
    p90=0.3,
    coverage=0.9,
    modelled_median=0.25,
    modelled_p90=0.9,
)


def test_times_are_carried_over_by_the_ratio_of_modelled_ones():
    times_s = {8: 100.0, 16: 60.0, 32: 40.0}
    log_sds = {8: 0.1, 16: 0.1, 32: 0.3}
    published = Estimates(
        estimator="published",
        name="published results",
        by_size={
            size: Estimate(
                estimator="published", name="", time_s=with_log_sd(time_s, 0.1), log_sd=log_sds[size], why=""
            )
            for size, time_s in times_s.items()
        },
        grade=dict.fromkeys(times_s, "published"),
        curves=DrawnCurves(
            time_s=straight_between(SIZES, np.array([list(times_s.values())])),
            domain=Domain(smallest=8.0, largest=64.0),
        ),
    )
    near = NearChip(chip=accelerator("h200-sxm5-141gb"), nearness="chip", doublings=0.3)
    found = carried_over(
        published,
        near,
        here_s={8: 300.0, 32: 300.0, 64: 90.0},
        there_s={8: 100.0, 16: 70.0, 32: 50.0},
        record=RECORD,
    )
    times = {size: each.time_s.value for size, each in found.by_size.items()}
    assert times == pytest.approx({8: 300.0, 32: 240.0})
    # as wrong as chips held out, and no surer than the results themselves
    assert {size: each.log_sd for size, each in found.by_size.items()} == pytest.approx({8: 0.2, 32: 0.3})
    assert found.name == "results of NVIDIA H200 SXM5 141 GB, carried over"
    assert set(found.grade.values()) == {"carried"}
    # ratios of 3 and 6: their geometric mean half way
    assert found.curves.time_s(np.array([8.0, 16.0, 32.0]))[0] == pytest.approx(
        [300.0, 60.0 * 18.0**0.5, 240.0]
    )
    assert (found.curves.domain.smallest, found.curves.domain.largest) == (8.0, 32.0)
    assert carried_over(published, near, here_s={}, there_s={8: 1.0}, record=RECORD) is None


def test_a_chip_from_which_nothing_can_be_carried_gives_way_to_the_next():
    best = results(("v5.0", "h200-sxm5-141gb", 8), ("v5.0", "h100-sxm5-80gb", 8))
    _, second = nearest_chips(best, "bert", accelerator("h200-nvl-141gb"), SIZES, catalogue())
    assert second.chip.slug == "h100-sxm5-80gb"
