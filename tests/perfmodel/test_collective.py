"""Collectives against hand calculation, laws that hold for any machine, and nccl-tests run by others."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.perfmodel.collective import Group, Wire, Wires
from equipoise.perfmodel.collective_parameters import COLLECTIVE_PRIORS, CollectiveParameters
from equipoise.perfmodel.collective_table import OPERATIONS

TRUTH = tomllib.loads((Path(__file__).parents[1] / "truth" / "collectives.toml").read_text())
GIB = 2**30

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
    for timed in OPERATIONS.values():
        table = np.broadcast_to(timed(payload_bytes, group, wires(inter=inter), parameters), (2, 3))
        for row, column in np.ndindex(2, 3):
            one = Group(
                ranks_per_node=float(group.ranks_per_node[row, 0]), num_nodes=float(group.num_nodes[row, 0])
            )
            link = float(np.broadcast_to(inter, 3)[column])
            alone = timed(payload_bytes, one, wires(inter=link), parameters)
            assert table[row, column] == pytest.approx(float(alone), rel=1e-12)


def test_every_parameter_has_a_prior_with_meaning_and_source():
    calibrated = set(CollectiveParameters.__dataclass_fields__) - {"measured"}
    assert {prior.name for prior in COLLECTIVE_PRIORS} == calibrated
    for prior in COLLECTIVE_PRIORS:
        assert 0 < prior.median <= prior.largest
        assert prior.log_sd > 0
        assert prior.meaning
        assert prior.source
