"""The record of transfer between chips: its arithmetic by hand, what is held out, and what ships."""

import math

import pytest
from transfer import HeldOutChip, held_out_chips, records

from equipoise.decide.estimators.model import transfer_records
from equipoise.runs import embedded
from equipoise.spec.mlperf import Scores


def held_out(chip, carried_s, modelled_s, nearness="maker"):
    return HeldOutChip(nearness=nearness, chip=chip, actual_s=1.0, carried_s=carried_s, modelled_s=modelled_s)


def test_the_record_by_hand():
    # off by a factor of two, ten times; the model alone by one of four
    (found,) = records([held_out(f"c{at % 2}", 2.0, 0.25) for at in range(10)])
    assert (found.nearness, found.num_held_out, found.num_chips) == ("maker", 10, 2)
    assert found.log_sd == pytest.approx(math.log(2.0) / 1.6448536)
    assert (found.median, found.modelled_median) == pytest.approx((1.0, 0.75))
    assert found.coverage == 1.0


def test_the_width_of_an_interval_comes_from_the_other_chips():
    # a is off by a factor of 1.1, b by 1.5: a lies within the width from b, b beyond the one from a
    (found,) = records([held_out("a", 1.1, 1.0), held_out("b", 1.5, 1.0)])
    assert found.coverage == 0.5


def test_the_model_alone_is_judged_only_where_the_samples_are_known():
    (found,) = records([held_out("a", 1.2, 1.4), held_out("b", 1.4, None)])
    assert found.num_held_out == 2
    assert found.median == pytest.approx(0.3)
    assert found.modelled_median == pytest.approx(0.4)


def test_each_nearness_has_its_own_record():
    found = records([held_out("a", 1.1, 1.0), held_out("a", 1.1, 1.0, nearness="chip")])
    assert [each.nearness for each in found] == ["chip", "maker"]


def test_a_chip_is_held_out_whole_and_sizes_below_its_neighbours_are_carried_too():
    some = tuple(each for each in embedded.scores().of("retinanet") if each.campaign <= "v3.1")
    found = [each for each in held_out_chips(Scores(some)) if each.chip == "l4-pcie-24gb"]
    # 6 x L4 in v3.1, where A30 has results at 8 and 10 alone
    assert found
    assert {each.nearness for each in found} == {"maker"}
    assert all(0.3 < each.carried_s / each.actual_s < 3.0 for each in found)


def test_what_ships_is_better_than_the_model_alone():
    assert transfer_records()
    for each in transfer_records():
        assert each.median < each.modelled_median, each.nearness
        assert each.p90 < each.modelled_p90, each.nearness
        assert each.num_chips >= 7
