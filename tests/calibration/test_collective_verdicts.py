import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.bench.collectives import CollectiveRun, CollectiveRuns, Timing, bus_fraction
from equipoise.bench.collectives.files import read_files
from equipoise.calibration.collective_runs import fit_curve
from equipoise.calibration.collective_verdicts import PUBLISHED_MARGIN, judged
from equipoise.calibration.user_collectives import TimedCollectives, timed_operations
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.runs import Tally
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import accelerators
from equipoise.spec.links import published_collectives

SIZES = [2.0**power for power in range(2, 34)]


def run_of(seconds, *, operation="all_reduce", num_ranks=8, num_nodes=1, device="NVIDIA A100-SXM4-80GB"):
    """A run whose message of each size took what `seconds` says."""
    timings = tuple(
        Timing(
            payload_bytes=int(size),
            out_of_place_s=seconds(size),
            in_place_s=None,
            num_wrong=0,
        )
        for size in SIZES
    )
    return CollectiveRun(
        file="log",
        number=1,
        operation=operation,
        num_ranks=num_ranks,
        num_nodes=num_nodes,
        device=device,
        timings=timings,
    )


def links_of(run, **options):
    return judged(CollectiveRuns(runs=(run,), rejected=Tally()), **options)


def at_bus_rate(byte_per_s, *, latency_s=30e-6, operation="all_reduce", num_ranks=8):
    factor = bus_fraction(operation, num_ranks)
    return lambda size: latency_s + size * factor / byte_per_s


def bandwidth(links):
    return next(each for each in links.verdicts if each.quantity == "bus_byte_per_s")


@settings(max_examples=40, deadline=None)
@given(latency_us=st.floats(1, 300), gb_per_s=st.floats(0.1, 900), seed=st.integers(0, 2**16))
@pytest.mark.law
def test_latency_and_rate_are_recovered_through_noise(latency_us, gb_per_s, seed):
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.02, 2 * len(SIZES)))
    sizes = np.repeat(SIZES, 2)
    found = fit_curve(sizes, (latency_us * 1e-6 + sizes / (gb_per_s * 1e9)) * noise)
    assert found.latency_s.value == pytest.approx(latency_us * 1e-6, rel=0.04)
    assert found.byte_per_s.value == pytest.approx(gb_per_s * 1e9, rel=0.04)
    assert found.log_sd < 0.04


def test_intervals_hold_the_truth_at_their_rate():
    rng = np.random.default_rng(0)
    sizes = np.repeat(SIZES, 2)
    held = []
    for _ in range(150):
        took = (30e-6 + sizes / 100e9) * np.exp(rng.normal(0, 0.03, sizes.size))
        found = fit_curve(sizes, took)
        held.append(
            [
                found.latency_s.low <= 30e-6 <= found.latency_s.high,
                found.byte_per_s.low <= 100e9 <= found.byte_per_s.high,
            ]
        )
    # 90 % is promised; 150 draws leave a standard error of 2.5 %, and cuts in the wrong place cost some.
    assert (np.mean(held, axis=0) > 0.82).all()


def test_a_change_of_protocol_makes_a_regime():
    took = [10e-6 + size / 20e9 if size < 2**20 else 60e-6 + size / 200e9 for size in SIZES]
    found = fit_curve(SIZES, took)
    assert [each.to_bytes for each in found.regimes] == [2**19, 2**33]
    assert [each.byte_per_s for each in found.regimes] == pytest.approx([20e9, 200e9], rel=0.01)
    assert found.latency_s.value == pytest.approx(10e-6, rel=0.01)
    assert found.byte_per_s.value == pytest.approx(200e9, rel=0.01)


def test_what_the_sizes_leave_open_is_none():
    small = fit_curve(SIZES[:8], [20e-6 + size / 100e9 for size in SIZES[:8]])
    large = fit_curve(SIZES[-5:], [20e-6 + size / 100e9 for size in SIZES[-5:]])
    assert (small.byte_per_s, large.latency_s) == (None, None)
    with pytest.raises(EvidenceError, match=r"\b2 message sizes; .*\b3(?:\n|$)"):
        fit_curve([8, 16, 8], [1e-5, 1e-5, 1e-5])


def test_many_sizes_are_thinned():
    sizes = np.arange(1, 3001) * 1e6
    found = fit_curve(sizes, 1e-5 + sizes / 10e9)
    assert found.num_points == 400
    assert found.byte_per_s.value == pytest.approx(10e9)


@pytest.mark.truth
def test_fits_of_the_samples_agree_with_what_they_print(data_dir):
    reading = read_files([data_dir / "nccl" / "superbench_allreduce_8gpu.txt"])
    fit = judged(reading).fits[0]
    assert fit.curve.num_points == 32
    # Up to 64 KiB the log prints 34.5 to 37.8 us, at 8 GiB 235.26 GB/s of bus.
    assert 34e-6 < fit.curve.latency_s.low < fit.curve.latency_s.high < 38e-6
    assert fit.bus_byte_per_s == pytest.approx(235.26e9, rel=0.02)


@pytest.mark.truth
@pytest.mark.parametrize(
    ("name", "accelerator"),
    [
        ("superbench_allreduce_8gpu.txt", None),
        ("superbench_broadcast_8gpu.txt", None),
        ("oracle_mlperf40_h100x8_run0.txt", None),
        ("coreweave_readme_0.txt", "dgx-h100"),
        ("coreweave_gb200_nvl72.txt", "gb200-nvl72"),
    ],
)
def test_machines_of_vendors_are_normal(name, accelerator, data_dir):
    links = judged(read_files([data_dir / "nccl" / name]), accelerator=accelerator)
    assert {each.verdict for each in links.verdicts} == {"normal"}
    assert "published" in bandwidth(links).evidence[0]


def test_one_size_gives_a_verdict_and_no_fit(data_dir):
    links = judged(read_files([data_dir / "nccl" / "oracle_mlperf40_h100x8_run0.txt"]))
    assert links.fits == ()
    assert links.unfitted[0][1].endswith(" 3")
    assert bandwidth(links).measured == pytest.approx(327e9, rel=1e-3)


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("rate", "options", "verdict", "words"),
    [
        (470e9, {"device": H100}, "normal", "one way"),
        (365e9, {"device": H100}, "slow", "NVLink SHARP"),
        (40e9, {"device": H100}, "slow", "host's PCIe"),
        (150e9, {}, "slow", "NVLink 3"),
        (500e9, {}, "fast", "ranks"),
    ],
)
def test_a_rate_is_judged_with_what_it_resembles(rate, options, verdict, words):
    found = bandwidth(links_of(run_of(at_bus_rate(rate), **options)))
    assert found.verdict == verdict
    assert words in found.because


def test_over_nodes_one_card_is_recognised():
    slow = run_of(at_bus_rate(45e9, num_ranks=16), device=H100, num_ranks=16, num_nodes=2)
    found = bandwidth(links_of(slow))
    assert found.verdict == "slow"
    assert "2 nodes" in found.link
    assert "network card" in found.because


@pytest.mark.parametrize(("ranks", "stated", "nodes"), [(16, 1, 1), (16, 2, 2), (8, 16, 8), (16, None, 2)])
def test_ranks_are_on_the_nodes_that_the_file_states(ranks, stated, nodes):
    """A host may have more accelerators than is usual; a node has a rank at least; a usual one has 8 H100."""
    timed = run_of(at_bus_rate(45e9, num_ranks=ranks), device=H100, num_ranks=ranks, num_nodes=stated)
    assert re.findall(r"(\d+) nodes", bandwidth(links_of(timed)).link) == [str(nodes)] * (nodes > 1)
    (operation,), _ = timed_operations(TimedCollectives(runs=(timed,)), cluster("h100-sxm5-80gb"))
    assert operation.group.num_nodes == nodes


def test_a_published_figure_decides_where_there_is_one():
    found = bandwidth(links_of(run_of(at_bus_rate(235e9))))
    assert found.expected == 235.26e9
    assert found.low == pytest.approx(235.26e9 * (1 - PUBLISHED_MARGIN))
    # None is published for 4 ranks: the model, not fitted.
    four = bandwidth(links_of(run_of(at_bus_rate(230e9, num_ranks=4), num_ranks=4)))
    assert four.verdict == "normal"
    assert ["performance model" in each for each in four.evidence] == [True]


@pytest.mark.parametrize(("rate", "verdict"), [(22e9, "normal"), (2e9, "slow"), (90e9, "fast")])
def test_a_class_of_link_is_enough_for_a_verdict(rate, verdict):
    pair = run_of(at_bus_rate(rate, num_ranks=2), num_ranks=2, device=None)
    assert bandwidth(links_of(pair, link="pix")).verdict == verdict


def test_cards_behind_the_host_are_judged_by_it():
    pair = run_of(at_bus_rate(9e9, num_ranks=2), num_ranks=2, device="NVIDIA GeForce RTX 3090")
    found = bandwidth(links_of(pair, link="PHB"))
    assert (found.verdict, found.link) == ("normal", "PHB")


def test_latency_is_judged_where_its_steps_are_known():
    quick = links_of(run_of(at_bus_rate(235e9, latency_s=35e-6)))
    slow = links_of(run_of(at_bus_rate(235e9, latency_s=500e-6)))
    verdicts = [next(e.verdict for e in each.verdicts if e.quantity == "latency_s") for each in (quick, slow)]
    assert verdicts == ["normal", "slow"]
    exchange = run_of(at_bus_rate(200e9, operation="all_to_all"), operation="all_to_all")
    assert [each.quantity for each in links_of(exchange).verdicts] == ["bus_byte_per_s"]


def test_what_nothing_is_known_of_is_unknown_and_says_what_to_give():
    unknown = bandwidth(links_of(run_of(at_bus_rate(1e9), device=None)))
    assert unknown.verdict == "unknown"
    assert "--accelerator" in unknown.because
    assert "Mill 9000" in bandwidth(links_of(run_of(at_bus_rate(1e9), device="Mill 9000"))).because
    reduced = bandwidth(links_of(run_of(at_bus_rate(1e9, operation="reduce"), operation="reduce")))
    assert (reduced.verdict, "reduce" in reduced.because) == ("unknown", True)


def test_wrong_names_are_refused():
    run = run_of(at_bus_rate(235e9))
    with pytest.raises(SpecError, match="'mill-9000'"):
        links_of(run, accelerator="mill-9000")
    with pytest.raises(UsageError, match=r"'USB'.* NV#, XGMI, PIX"):
        links_of(run, link="USB")
    with pytest.raises(EvidenceError, match="no row"):
        judged(CollectiveRuns(runs=(), rejected=Tally()))


def test_every_published_figure_is_below_what_its_link_could_carry():
    known = {chip.slug for chip in accelerators()}
    assert published_collectives()
    for each in published_collectives():
        assert each.source.startswith("https://")
        assert math.isfinite(each.bus_byte_per_s)
        assert each.bus_byte_per_s < 1e12
        assert each.accelerator in known
