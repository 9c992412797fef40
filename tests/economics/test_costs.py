"""Returns forward and backward: by hand, and the field report's table."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

_spec = importlib.util.spec_from_file_location(
    "costs", Path(__file__).parents[2] / "experiments" / "costs.py"
)
script = importlib.util.module_from_spec(_spec)
sys.modules["costs"] = script  # dataclasses look their module up
_spec.loader.exec_module(script)
Range, consistent = script.Range, script.consistent


def _exact(value):
    return Range(low=value, high=value)


def test_two_returns_determine_value_and_cost_by_hand():
    # 10 v - c = 50 and 2 v - c = 10: v = 5, c = 0; 4 v - c = 20 agrees, 25 does not.
    found = consistent(
        {"a": _exact(50.0), "b": _exact(10.0), "d": _exact(20.0)},
        {"a": _exact(10.0), "b": _exact(2.0), "d": _exact(4.0)},
    )
    assert found.corners == ((0.0, 5.0),)
    assert (
        consistent(
            {"a": _exact(50.0), "b": _exact(10.0), "d": _exact(25.0)},
            {"a": _exact(10.0), "b": _exact(2.0), "d": _exact(4.0)},
        )
        is None
    )


@pytest.mark.law
@given(st.floats(0.1, 100.0), st.floats(0.1, 500.0), st.lists(st.floats(-5.0, 20.0), min_size=2, max_size=4))
def test_what_returns_were_made_with_lies_in_the_set(value, cost, saved):
    names = [str(index) for index in range(len(saved))]
    returns = {name: _around(hours * value - cost, 1.0) for name, hours in zip(names, saved, strict=True)}
    found = consistent(
        returns, {name: _around(hours, 0.01) for name, hours in zip(names, saved, strict=True)}
    )
    assert found is not None
    assert found.usd_per_unit.low - 1e-6 <= value <= found.usd_per_unit.high + 1e-6 or not _closed(saved)
    assert found.costs_usd.low - 1e-6 <= cost or not _closed(saved)


def _around(value, half):
    return Range(low=value - half, high=value + half)


def _closed(saved):
    """Whether savings differ enough for the set to have an end."""
    return max(saved) - min(saved) > 0.1


def test_what_each_size_needs_alone_by_hand():
    # Field report: 45 to 68 min; 4.5 to 3.8 h; 48 to 28 h; returns -180, 35, 420 and 45 USD of power.
    # (-180 + 45) / (-23/60) = 352.2; (35 + 45) / 0.7 = 114.3; (420 + 45) / 20 = 23.25.
    assert script.worth_usd("small CNN", "small", times=1) == pytest.approx(352.17, abs=0.01)
    assert script.worth_usd("ResNet-50", "medium", times=1) == pytest.approx(114.29, abs=0.01)
    assert script.worth_usd("ViT-Large", "large", times=1) == pytest.approx(23.25)


def test_only_the_same_busy_hours_with_two_gpus_allow_all_three_returns():
    able = {each.models: each.same[-8:] for each in script.readings() if script.allowed(each) is not None}
    assert able == {
        ("MobileNetV2", "ResNet-50", "ResNet-152"): "two GPUs",
        ("MobileNetV2", "ResNet-50", "ViT-Large"): "two GPUs",
    }


def test_a_value_and_cost_of_the_set_reproduce_the_returns_within_their_rounding():
    reading = next(
        each
        for each in script.readings()
        if each.models == ("MobileNetV2", "ResNet-50", "ViT-Large") and each.same.endswith("two GPUs")
    )
    found = script.allowed(reading)
    cost = sum(corner[0] for corner in found.corners) / len(found.corners)
    value = sum(corner[1] for corner in found.corners) / len(found.corners)
    assert reading.saved()
    for size, saved in reading.saved().items():
        low, high = (end * value - cost for end in (saved.low, saved.high))
        assert low <= script.RETURNS_USD[size] + script.ROUNDED_USD
        assert high >= script.RETURNS_USD[size] - script.ROUNDED_USD
    # 45 USD are neither all costs once, nor a third of them.
    assert not found.holds(45.0)
    assert not found.holds(135.0)


def test_the_page_shows_the_tables_that_the_script_prints():
    assert script.tables() in script.PAGE.read_text()
