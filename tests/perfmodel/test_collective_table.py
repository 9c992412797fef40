"""Tables of measured collectives: parameters come back from synthetic times, and others' nccl-tests are foretold."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from equipoise.errors import DataError, EvidenceError
from equipoise.perfmodel.collective import Group, Wire, Wires, all_gather_s, all_reduce_s
from equipoise.perfmodel.collective_parameters import CollectiveParameters
from equipoise.perfmodel.collective_table import collective_table, fit_collectives, held_out, timings
from equipoise.stats import conformal_half_width

TRUTH = tomllib.loads((Path(__file__).parents[1] / "truth" / "collectives.toml").read_text())
MIB, GIB = 2**20, 2**30

A100 = Wires(intra=Wire(byte_per_s=300e9, latency_s=3.4e-6), inter=Wire(byte_per_s=25e9, latency_s=14e-6))
# 20 us: TUNER_NET_LATENCY of aws-ofi-nccl; its network delivers out of order.
B200 = Wires(
    intra=Wire(byte_per_s=900e9, latency_s=3.4e-6),
    inter=Wire(byte_per_s=50e9, latency_s=20e-6),
    switch_reduces=1.0,
    keeps_order=0.0,
)
SIZES = 2.0 ** np.arange(12, 34)


def a100(ranks):
    truth = TRUTH["a100"]
    payload = np.tile(np.array(truth["payload_mib"]) * MIB, len(ranks))
    measured_s = np.concatenate([truth[f"ranks_{each}_us"] for each in ranks]) / 1e6
    return timings(
        "all_reduce", payload, measured_s, ranks_per_node=np.repeat(ranks, len(truth["payload_mib"]))
    )


def b200(ranks):
    truth = TRUTH["b200"]
    payload = np.array(truth["payload_gib"]) * GIB
    measured_s = 2 * (ranks - 1) / ranks * payload / (np.array(truth[f"ranks_{ranks}_gb_per_s"]) * 1e9)
    return timings("all_reduce", payload, measured_s, ranks_per_node=8.0, num_nodes=ranks / 8)


def relative_errors(table, points):
    return np.abs(table.seconds(points.operation, points.payload_bytes, points.group) / points.seconds - 1)


def test_known_parameters_come_back_from_noisy_times():
    rng = np.random.default_rng(5)
    true = CollectiveParameters(
        launch_s=30e-6, intra_fraction=0.7, intra_latency_scale=1.5, inter_fraction=0.8
    )
    measured = []
    for name, timed in (("all_reduce", all_reduce_s), ("all_gather", all_gather_s)):
        for inside, nodes in ((2, 1), (8, 1), (8, 2), (8, 4)):
            group = Group(ranks_per_node=float(inside), num_nodes=float(nodes))
            noisy_s = timed(SIZES, group, A100, true) * np.exp(rng.normal(0, 0.03, SIZES.size))
            measured.append(timings(name, SIZES, noisy_s, ranks_per_node=inside, num_nodes=nodes))
    found = fit_collectives(tuple(measured), A100)
    assert found.launch_s == pytest.approx(30e-6, rel=0.1)
    assert found.intra_fraction == pytest.approx(0.7, rel=0.05)
    assert found.intra_latency_scale == pytest.approx(1.5, rel=0.1)
    # What the cards lose and what overlaps badly look alike: each is found less well than their sum.
    assert found.inter_fraction == pytest.approx(0.8, rel=0.06)
    unseen = Group(ranks_per_node=8.0, num_nodes=8.0)
    assert all_reduce_s(SIZES, unseen, A100, found) == pytest.approx(
        all_reduce_s(SIZES, unseen, A100, true), rel=0.05
    )


def test_what_is_not_measured_stays_at_its_prior():
    found = fit_collectives((a100([2, 4, 8]),), A100)
    assert found.inter_fraction == pytest.approx(CollectiveParameters().inter_fraction, rel=1e-3)
    assert found.switch_fraction == pytest.approx(CollectiveParameters().switch_fraction, rel=1e-3)


def test_one_wild_point_does_not_move_the_fit():
    points = a100([2, 4, 8])
    wild_s = points.seconds.copy()
    wild_s[5] *= 100
    wild = timings("all_reduce", points.payload_bytes, wild_s, ranks_per_node=points.ranks_per_node)
    before, after = (fit_collectives((each,), A100) for each in (points, wild))
    group = Group(ranks_per_node=8.0, num_nodes=1.0)
    assert np.asarray(all_reduce_s(SIZES, group, A100, after)) == pytest.approx(
        np.asarray(all_reduce_s(SIZES, group, A100, before)), rel=0.05
    )


@pytest.mark.truth
@pytest.mark.parametrize("ranks", range(2, 9))
def test_all_reduce_of_a_rank_count_left_out_is_foretold(ranks):
    others = [each for each in range(2, 9) if each != ranks]
    errors = relative_errors(collective_table((a100(others),), A100), a100([ranks]))
    assert np.median(errors) <= 0.10


@pytest.mark.truth
@pytest.mark.parametrize("kept", [0, 1])
def test_all_reduce_of_the_sizes_left_out_is_foretold(kept):
    points = a100(range(2, 9))
    place = np.arange(points.seconds.size) % len(TRUTH["a100"]["payload_mib"])
    seen = place % 2 == kept
    table = collective_table((points.where(seen),), A100)
    assert np.median(relative_errors(table, points.where(~seen))) <= 0.03


@pytest.mark.truth
def test_large_all_reduces_of_four_nodes_are_foretold_from_one():
    errors = relative_errors(collective_table((b200(8),), B200), b200(32))
    assert np.median(errors) <= 0.15


def test_measured_times_come_back_nearly_as_they_were():
    points = a100(range(2, 9))
    assert np.median(relative_errors(collective_table((points,), A100), points)) <= 0.02


def test_an_operation_never_measured_is_modelled():
    table = collective_table((a100([2, 4, 8]),), A100)
    group = Group(ranks_per_node=4.0, num_nodes=1.0)
    assert table.seconds("all_gather", SIZES, group) == pytest.approx(
        np.asarray(all_gather_s(SIZES, group, A100, table.parameters))
    )


def test_one_rank_takes_no_time_in_a_table_either():
    table = collective_table((a100([2, 4, 8]),), A100)
    assert not table.seconds("all_reduce", SIZES, Group(ranks_per_node=1.0, num_nodes=1.0)).any()


def test_a_point_that_rounding_leaves_open_hardly_counts():
    points = a100([8])
    rounded_s = points.seconds.copy()
    rounded_s[0] *= 2
    log_error = np.where(np.arange(rounded_s.size) == 0, np.log(2.0), 0.0)
    rounded = timings("all_reduce", points.payload_bytes, rounded_s, ranks_per_node=8.0, log_error=log_error)
    table = collective_table((rounded,), A100)
    assert relative_errors(table, points)[1:].max() < 0.15
    assert relative_errors(table, points)[0] < 0.3


@pytest.mark.truth
def test_intervals_from_sizes_left_out_hold_the_next_size():
    points = a100(range(2, 9))
    log_errors, clusters = held_out((points,), A100, by="size")
    assert np.unique(clusters).size == len(TRUTH["a100"]["payload_mib"])
    held = [
        np.abs(log_errors[clusters == each])
        <= conformal_half_width(log_errors[clusters != each], clusters[clusters != each], level=0.9)
        for each in np.unique(clusters)
    ]
    assert np.mean(np.concatenate(held)) >= 0.85


def test_too_few_rank_counts_for_an_interval_say_what_is_missing():
    log_errors, clusters = held_out((a100(range(2, 9)),), A100, by="ranks")
    with pytest.raises(EvidenceError, match="7 clusters were held out"):
        conformal_half_width(log_errors, clusters, level=0.9)


def test_too_few_sizes_are_refused_with_what_is_missing():
    points = timings("all_reduce", [1e6, 2e6], [1e-4, 2e-4], ranks_per_node=8.0)
    with pytest.raises(EvidenceError, match=r"measured at 2 sizes; .* at least 3") as caught:
        collective_table((points,), A100)
    assert caught.value.missing == ("1 more message sizes, from a few KiB to some GiB",)


@pytest.mark.parametrize(
    ("seconds", "operation", "ranks", "words"),
    [
        ([1e-4, 0.0], "all_reduce", 8.0, r"seconds\[1\]=0; expected a number above zero"),
        ([1e-4, np.nan], "all_reduce", 8.0, r"seconds\[1\]=nan; expected a number above zero"),
        ([1e-4, 1e-4], "all_sort", 8.0, "operation='all_sort'; expected one of all_reduce"),
        ([1e-4, 1e-4], "all_reduce", [8.0, 8.0, 8.0], "expected one shape"),
    ],
)
def test_what_is_no_measurement_is_refused(seconds, operation, ranks, words):
    with pytest.raises(DataError, match=words):
        timings(operation, [1e6, 2e6], seconds, ranks_per_node=ranks)


def test_a_collective_over_one_rank_is_refused():
    points = timings("all_reduce", [1e5, 1e6, 1e7], [1e-4, 2e-4, 3e-4], ranks_per_node=1.0)
    with pytest.raises(DataError, match="over one rank"):
        fit_collectives((points,), A100)


def test_an_operation_that_comes_twice_is_refused():
    with pytest.raises(DataError, match="expected each once"):
        collective_table((a100([2]), a100([4])), A100)


def test_far_from_what_was_measured_the_model_stands_alone():
    table = collective_table((a100([2, 4, 8]),), A100)
    far = Group(ranks_per_node=8.0, num_nodes=1024.0)
    assert table.seconds("all_reduce", SIZES, far) == pytest.approx(
        all_reduce_s(SIZES, far, A100, table.parameters), rel=0.01
    )
