"""Priors, and corrections by measured collectives: what was measured comes back, and fades with the distance."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from equipoise.perfmodel.collectives import all_gather_s, all_reduce_s
from equipoise.perfmodel.machine import Group, Wire, Wires
from equipoise.perfmodel.parameters import (
    COLLECTIVE_PRIORS,
    PRIORS,
    SIZES,
    CollectiveParameters,
    Correction,
    Parameters,
    stacked,
)

A100 = Wires(intra=Wire(byte_per_s=300e9, latency_s=3.4e-6), inter=Wire(byte_per_s=25e9, latency_s=14e-6))
NODE = Group(ranks_per_node=8.0, num_nodes=1.0)
# Half as long again over 8 ranks of one node, at every size.
LONGER = math.log(1.5)


def table(groups=((8, 1),), log_factor=LONGER, **stated):
    inside, nodes = zip(*groups, strict=True)
    return Correction(
        log_factor=np.full((len(groups), len(SIZES)), log_factor),
        log_inside=np.log2(inside),
        log_nodes=np.log2(nodes),
        **stated,
    )


def with_table(one):
    return replace(CollectiveParameters(), measured={"all_reduce": one})


@pytest.mark.parametrize("size", [0.0, 1.0, 1000.0, 3e6, 2.0**33, 2.0**45])
def test_the_measured_group_takes_what_was_measured_at_every_size(size):
    plain = all_reduce_s(size, NODE, A100, CollectiveParameters())
    assert all_reduce_s(size, NODE, A100, with_table(table())) == pytest.approx(1.5 * plain)


def test_other_operations_and_groups_of_other_links_stay_as_they_are():
    own, plain = with_table(table()), CollectiveParameters()
    assert all_gather_s(1e6, NODE, A100, own) == all_gather_s(1e6, NODE, A100, plain)
    across = Group(ranks_per_node=8.0, num_nodes=2.0)
    assert all_reduce_s(1e6, across, A100, own) == all_reduce_s(1e6, across, A100, plain)


def test_a_factor_fades_with_octaves_of_ranks():
    two_octaves = Group(ranks_per_node=2.0, num_nodes=1.0)
    ratio = all_reduce_s(1e6, two_octaves, A100, with_table(table())) / all_reduce_s(
        1e6, two_octaves, A100, CollectiveParameters()
    )
    assert ratio == pytest.approx(math.exp(LONGER * math.exp(-1.0)))


def test_between_two_groups_the_nearer_counts_more():
    both = Correction(
        log_factor=np.array([np.zeros(len(SIZES)), np.full(len(SIZES), LONGER)]),
        log_inside=np.log2([2, 8]),
        log_nodes=np.zeros(2),
    )
    at = [float(both.at(1e6, Group(ranks_per_node=float(ranks), num_nodes=1.0))) for ranks in (2, 3, 6, 8)]
    assert at[0] == pytest.approx(0.0, abs=1e-5)
    assert at[3] == pytest.approx(LONGER, rel=1e-5)
    assert at == sorted(at)


def test_what_draws_differ_by_grows_with_the_distance_and_broadcasts():
    draws = [
        replace(Parameters(), collective=with_table(table(log_octave=octave))) for octave in (-0.1, 0.0, 0.1)
    ]
    many = stacked(draws).collective
    groups = Group(ranks_per_node=np.array([8.0, 4.0, 2.0]), num_nodes=np.ones(3))
    log_s = np.log(all_reduce_s(np.full(3, 1e6), groups, A100, many))
    assert log_s.shape == (3, 3)
    assert np.ptp(log_s, axis=0) == pytest.approx([0.0, 0.2, 0.4], abs=1e-5)
    single = all_reduce_s(np.full(3, 1e6), groups, A100, draws[0].collective)
    assert log_s[0] == pytest.approx(np.log(single))


def test_every_parameter_has_a_prior_with_meaning_and_source():
    calibrated = set(CollectiveParameters.__struct_fields__) - {"measured"}
    assert {prior.name for prior in COLLECTIVE_PRIORS} == calibrated
    of_steps = set(Parameters.__struct_fields__) - {"collective"}
    assert {prior.name for prior in PRIORS if "." not in prior.name} == of_steps
    for prior in PRIORS:
        assert 0 < prior.median <= prior.largest
        assert prior.log_sd > 0
        assert prior.meaning
        assert prior.source
