"""Collectives against hand calculation, laws that hold for any machine, nccl-tests run by others, and fits to them."""

import importlib.util
import sys
import tomllib
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.errors import DataError, EvidenceError
from equipoise.perfmodel.collectives import (
    OPERATIONS,
    all_gather_s,
    all_reduce_s,
    collective_table,
    fitted,
    timings,
)
from equipoise.perfmodel.machine import Group, Wire, Wires
from equipoise.perfmodel.parameters import COLLECTIVE_PRIORS, CollectiveParameters
from equipoise.stats import conformal_half_width

# How far a table is off where it was not measured is worked out by a benchmark.
_spec = importlib.util.spec_from_file_location(
    "collectives_benchmark", Path(__file__).parents[2] / "benchmarks" / "collectives.py"
)
_benchmark = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _benchmark
_spec.loader.exec_module(_benchmark)
held_out = _benchmark.held_out

TRUTH = tomllib.loads((Path(__file__).parents[1] / "truth" / "collectives.toml").read_text())
MIB, GIB = 2**20, 2**30

# Rates as stated, no latency, nothing lost: what is left is the traffic of the algorithm.
IDEAL = CollectiveParameters(
    launch_s=0.0,
    intra_fraction=1.0,
    inter_fraction=1.0,
    switch_fraction=1.0,
    quick_rate=1.0,
    local_share=0.0,
    fill_s=1e-30,
    serial_share=0.0,
)

payloads = st.floats(1.0, 1e12)
rates = st.floats(1e8, 1e12)
latencies = st.floats(0.0, 1e-3)
sizes = st.integers(1, 72)
nodes = st.integers(1, 64)
flags = st.sampled_from([0.0, 1.0])
operations = st.sampled_from(sorted(OPERATIONS))


def wires(intra=100e9, inter=10e9, latency_s=0.0, *, switch_reduces=0.0, keeps_order=1.0):
    return Wires(
        intra=Wire(byte_per_s=intra, latency_s=latency_s),
        inter=Wire(byte_per_s=inter, latency_s=latency_s),
        switch_reduces=switch_reduces,
        keeps_order=keeps_order,
    )


drawn_wires = st.builds(wires, rates, rates, latencies, switch_reduces=flags, keeps_order=flags)
groups = st.builds(Group, ranks_per_node=sizes, num_nodes=nodes)


def seconds(operation, payload_bytes, group, links, parameters=IDEAL):
    return float(OPERATIONS[operation](payload_bytes, group, links, parameters))


@pytest.mark.parametrize(
    ("operation", "expected_s"),
    [
        # 8 GB over 4 ranks at 100 GB/s: 2 * 3/4, 3/4, 3/4, 3/4, 1 and 1 payloads of 80 ms.
        ("all_reduce", 0.120),
        ("all_gather", 0.060),
        ("reduce_scatter", 0.060),
        ("all_to_all", 0.060),
        ("broadcast", 0.080),
        ("send", 0.080),
    ],
)
def test_traffic_inside_a_node_by_hand(operation, expected_s):
    four = Group(ranks_per_node=4, num_nodes=1)
    assert seconds(operation, 8e9, four, wires()) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("operation", "expected_s"),
    [
        # 8 GB over 2 nodes of 4 ranks, each with a card of 10 GB/s: a node sends and receives its sums once
        # (8 GB over 4 cards); a ring carries 7/8; an accelerator sends half its payload to the other node.
        ("all_reduce", 0.200),
        ("all_gather", 0.175),
        ("all_to_all", 0.400),
        ("broadcast", 0.200),
        ("send", 0.800),
    ],
)
def test_traffic_between_nodes_by_hand(operation, expected_s):
    eight = Group(ranks_per_node=4, num_nodes=2)
    assert seconds(operation, 8e9, eight, wires()) == pytest.approx(expected_s)


def test_groups_that_share_the_cards_wait_for_each_other():
    pair = Group(ranks_per_node=1, num_nodes=2)
    crowd = replace(pair, num_sharing=4.0)
    assert seconds("all_gather", 1e9, crowd, wires()) == pytest.approx(
        4 * seconds("all_gather", 1e9, pair, wires())
    )


def test_steps_of_a_small_all_reduce_by_hand():
    # 8 ranks in a ring: 14 steps of 3.4 us under the ordinary protocol, as NCCL counts them.
    links = wires(latency_s=3.4e-6)
    slow = replace(IDEAL, quick_step=1.0)
    assert seconds("all_reduce", 0.0, Group(ranks_per_node=8, num_nodes=1), links, slow) == pytest.approx(
        47.6e-6
    )
    # 4 nodes without order: the ring of 32 ranks takes 56 + 6 steps.
    unordered = replace(links, keeps_order=0.0)
    everybody = Group(ranks_per_node=8, num_nodes=4)
    assert seconds("all_reduce", 0.0, everybody, unordered, slow) == pytest.approx(62 * 3.4e-6)
    # With order, trees: 7 steps up each node's chain, 2 up the tree of nodes, and down again.
    assert seconds("all_reduce", 0.0, everybody, links, slow) == pytest.approx(18 * 3.4e-6)


@pytest.mark.truth
def test_a_reducing_switch_wins_from_the_rank_count_where_nccl_chooses_it():
    # Fractions from the ring and the switch at 8 ranks alone.
    truth = TRUTH["h200"]
    ring, chosen = (np.array(truth[name]) * 1e9 for name in ("ring_gb_per_s", "chosen_gb_per_s"))
    ranks = np.array(truth["ranks"], dtype=float)
    fitted = replace(IDEAL, intra_fraction=ring[-1] / 450e9, switch_fraction=chosen[-1] / (2 * 7 / 9) / 450e9)
    group = Group(ranks_per_node=ranks, num_nodes=1.0)
    without = OPERATIONS["all_reduce"](8.0 * GIB, group, wires(450e9), fitted)
    with_switch = OPERATIONS["all_reduce"](8.0 * GIB, group, wires(450e9, switch_reduces=1.0), fitted)
    payloads_twice = 2 * (ranks - 1) / ranks * 8.0 * GIB
    assert payloads_twice / without == pytest.approx(ring, rel=0.01)
    assert payloads_twice / with_switch == pytest.approx(chosen, rel=0.025)
    assert (with_switch[1:] < without[1:]).all()


@pytest.mark.law
@given(operations, payloads, drawn_wires)
def test_one_rank_never_talks(operation, payload_bytes, links):
    alone = Group(ranks_per_node=1, num_nodes=1)
    assert seconds(operation, payload_bytes, alone, links, CollectiveParameters()) == 0.0


@pytest.mark.law
@settings(deadline=None)
@given(
    operations,
    payloads,
    groups,
    drawn_wires,
    st.tuples(st.sampled_from(["intra", "inter"]), st.floats(1.0, 100.0)),
)
def test_more_bandwidth_is_never_slower(operation, payload_bytes, group, links, widened):
    side, factor = widened
    wire = getattr(links, side)
    faster = replace(links, **{side: replace(wire, byte_per_s=wire.byte_per_s * factor)})
    parameters = CollectiveParameters()
    before = seconds(operation, payload_bytes, group, links, parameters)
    assert seconds(operation, payload_bytes, group, faster, parameters) <= before * (1 + 1e-12)


@pytest.mark.law
@settings(deadline=None)
@given(operations, payloads, st.floats(1.0, 100.0), groups, drawn_wires)
def test_more_bytes_are_never_faster(operation, payload_bytes, factor, group, links):
    parameters = CollectiveParameters()
    more = seconds(operation, payload_bytes * factor, group, links, parameters)
    assert more >= seconds(operation, payload_bytes, group, links, parameters) * (1 - 1e-12)


@pytest.mark.law
@settings(deadline=None)
@given(payloads, sizes, drawn_wires)
def test_no_all_reduce_without_a_reducing_switch_beats_the_bound_on_traffic(payload_bytes, ranks, links):
    # Every rank has to send and receive 2 (p - 1) / p of the payload (Patarasuk and Yuan 2009).
    links = replace(links, switch_reduces=0.0)
    bound_s = 2 * (ranks - 1) / ranks * payload_bytes / links.intra.byte_per_s
    group = Group(ranks_per_node=ranks, num_nodes=1)
    for parameters in (IDEAL, CollectiveParameters(intra_fraction=1.0)):
        assert seconds("all_reduce", payload_bytes, group, links, parameters) >= bound_s * (1 - 1e-12)


@pytest.mark.law
@settings(deadline=None)
@given(payloads, groups, drawn_wires)
def test_scattered_sums_and_a_gather_are_never_faster_than_the_bound_of_an_all_reduce(
    payload_bytes, group, links
):
    together = sum(seconds(name, payload_bytes, group, links) for name in ("reduce_scatter", "all_gather"))
    inside, num_nodes = group.ranks_per_node, group.num_nodes
    # All that the other nodes know has to enter a node once, and its sums to leave it: over all of its cards.
    between_s = 2 * (num_nodes - 1) / num_nodes * payload_bytes / inside / links.inter.byte_per_s
    inside_s = 2 * (inside - 1) / inside * payload_bytes / links.intra.byte_per_s
    assert together >= max(between_s, inside_s) * (1 - 1e-12)


@pytest.mark.law
@settings(deadline=None)
@given(
    payloads,
    st.integers(2, 64),
    rates,
    latencies,
    st.sampled_from(["all_gather", "reduce_scatter", "broadcast"]),
)
def test_nodes_of_one_rank_are_a_flat_ring_when_all_links_are_equal(
    payload_bytes, ranks, rate, latency_s, operation
):
    links = wires(rate, rate, latency_s)
    flat = seconds(operation, payload_bytes, Group(ranks_per_node=ranks, num_nodes=1), links)
    spread = seconds(operation, payload_bytes, Group(ranks_per_node=1, num_nodes=ranks), links)
    assert spread == pytest.approx(flat, rel=1e-9)


@pytest.mark.law
@settings(deadline=None)
@given(payloads, groups, st.booleans())
def test_arrays_give_what_their_elements_give(payload_bytes, group, many_links):
    inter = np.array([1e9, 25e9, 50e9]) if many_links else 25e9
    group = Group(
        ranks_per_node=np.array([[group.ranks_per_node], [2]]), num_nodes=np.array([[group.num_nodes], [1]])
    )
    parameters = CollectiveParameters()
    assert OPERATIONS
    for timed in OPERATIONS.values():
        table = np.broadcast_to(timed(payload_bytes, group, wires(inter=inter), parameters), (2, 3))
        for row, column in product(range(2), range(3)):
            one = Group(
                ranks_per_node=float(group.ranks_per_node[row, 0]), num_nodes=float(group.num_nodes[row, 0])
            )
            link = float(np.broadcast_to(inter, 3)[column])
            alone = timed(payload_bytes, one, wires(inter=link), parameters)
            assert table[row, column] == pytest.approx(float(alone), rel=1e-12)


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
    found = fitted(tuple(measured), A100).parameters
    assert found.launch_s == pytest.approx(30e-6, rel=0.1)
    assert found.intra_fraction == pytest.approx(0.7, rel=0.05)
    assert found.intra_latency_scale == pytest.approx(1.5, rel=0.1)
    # What the cards lose and what overlaps badly look the same: each is found less well than their sum.
    assert found.inter_fraction == pytest.approx(0.8, rel=0.06)
    unseen = Group(ranks_per_node=8.0, num_nodes=8.0)
    assert all_reduce_s(SIZES, unseen, A100, found) == pytest.approx(
        all_reduce_s(SIZES, unseen, A100, true), rel=0.05
    )


def test_what_is_not_measured_stays_at_its_prior():
    found = fitted((a100([2, 4, 8]),), A100).parameters
    assert found.inter_fraction == pytest.approx(CollectiveParameters().inter_fraction, rel=1e-3)
    assert found.switch_fraction == pytest.approx(CollectiveParameters().switch_fraction, rel=1e-3)


@pytest.mark.parametrize("latency_s", [1e-6, 1e-5, 3e-5, 1e-3])
def test_measuring_leaves_no_parameter_less_sure_than_its_prior(latency_s):
    sizes = 2.0 ** np.arange(13, 33, 2)
    points = timings(
        "all_reduce", sizes, latency_s + sizes * 15 / 8 / 100e9, ranks_per_node=8.0, num_nodes=2.0
    )
    found = fitted((points,), A100)
    priors = {each.name: each.log_sd for each in COLLECTIVE_PRIORS}
    spread = np.sqrt(np.diag(found.log_covariance))
    assert found.names
    assert all(sd <= priors[name] * (1 + 1e-9) for name, sd in zip(found.names, spread, strict=True))


def test_one_wild_point_does_not_move_the_fit():
    points = a100([2, 4, 8])
    wild_s = points.seconds.copy()
    wild_s[5] *= 100
    wild = timings("all_reduce", points.payload_bytes, wild_s, ranks_per_node=points.ranks_per_node)
    before, after = (fitted((each,), A100).parameters for each in (points, wild))
    group = Group(ranks_per_node=8.0, num_nodes=1.0)
    assert np.asarray(all_reduce_s(SIZES, group, A100, after)) == pytest.approx(
        np.asarray(all_reduce_s(SIZES, group, A100, before)), rel=0.05
    )


@pytest.mark.truth
@pytest.mark.parametrize("ranks", range(2, 9))
def test_all_reduce_of_a_rank_count_left_out_is_predicted(ranks):
    others = [each for each in range(2, 9) if each != ranks]
    errors = relative_errors(collective_table((a100(others),), A100), a100([ranks]))
    assert np.median(errors) <= 0.10


@pytest.mark.truth
@pytest.mark.parametrize("kept", [0, 1])
def test_all_reduce_of_the_sizes_left_out_is_predicted(kept):
    points = a100(range(2, 9))
    place = np.arange(points.seconds.size) % len(TRUTH["a100"]["payload_mib"])
    seen = place % 2 == kept
    table = collective_table((points.where(seen),), A100)
    assert np.median(relative_errors(table, points.where(~seen))) <= 0.03


@pytest.mark.truth
def test_large_all_reduces_of_four_nodes_are_predicted_from_one():
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
    with pytest.raises(EvidenceError, match="7 clusters"):
        conformal_half_width(log_errors, clusters, level=0.9)


def test_too_few_sizes_are_refused_with_what_is_missing():
    points = timings("all_reduce", [1e6, 2e6], [1e-4, 2e-4], ranks_per_node=8.0)
    with pytest.raises(EvidenceError, match=r"measured at 2 sizes; .* at least 3") as caught:
        collective_table((points,), A100)
    (missing,) = caught.value.missing
    assert missing.startswith("1 more message")


@pytest.mark.parametrize(
    ("seconds", "operation", "ranks", "words"),
    [
        ([1e-4, 0.0], "all_reduce", 8.0, r"seconds\[1\]=0; .*zero"),
        ([1e-4, np.nan], "all_reduce", 8.0, r"seconds\[1\]=nan; .*zero"),
        ([1e-4, 1e-4], "all_sort", 8.0, "operation='all_sort'; .*all_reduce"),
        ([1e-4, 1e-4], "all_reduce", [8.0, 8.0, 8.0], "one shape"),
    ],
)
def test_what_is_no_measurement_is_refused(seconds, operation, ranks, words):
    with pytest.raises(DataError, match=words):
        timings(operation, [1e6, 2e6], seconds, ranks_per_node=ranks)


def test_a_collective_over_one_rank_is_refused():
    points = timings("all_reduce", [1e5, 1e6, 1e7], [1e-4, 2e-4, 3e-4], ranks_per_node=1.0)
    with pytest.raises(DataError, match="one rank"):
        collective_table((points,), A100)


def test_an_operation_that_comes_twice_is_refused():
    with pytest.raises(DataError, match=r"all_reduce.*all_reduce"):
        collective_table((a100([2]), a100([4])), A100)


def test_far_from_what_was_measured_the_model_stands_alone():
    table = collective_table((a100([2, 4, 8]),), A100)
    far = Group(ranks_per_node=8.0, num_nodes=1024.0)
    assert table.seconds("all_reduce", SIZES, far) == pytest.approx(
        all_reduce_s(SIZES, far, A100, table.parameters), rel=0.01
    )
