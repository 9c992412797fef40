import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.scaling.metrics import pointers, with_metrics


def test_three_purposes_by_hand(table):
    # Time, accelerator-time: (100, 800), (20, 1280), (18, 4608 beaten by none), (10, 10240); (30, 1920) is beaten.
    frame = with_metrics(
        table(
            [
                {"num_accelerators": 8, "score_s": 100.0, "system": "frugal"},
                {"num_accelerators": 64, "score_s": 20.0, "system": "middle"},
                {"num_accelerators": 64, "score_s": 30.0, "system": "beaten"},
                {"num_accelerators": 256, "score_s": 18.0, "system": "dear"},
                {"num_accelerators": 1024, "score_s": 10.0, "system": "fast"},
            ]
        )
    )
    found = pointers(frame, "bert")
    assert [(pointer.purpose, pointer.system) for pointer in found] == [
        ("speed", "fast"),
        ("between", "middle"),
        ("efficiency", "frugal"),
    ]
    assert re.findall(r"\d[\d.]*\d|\d", " ".join(each.words for each in found)) == [
        "2",
        "0.12",
        "10",
        "0.078",
    ]
    assert ["shortest" in found[0].words, "least" in found[1].words, "least" in found[2].words] == [
        True,
        False,
        True,
    ]


def test_one_entry_may_be_best_at_everything(table):
    frame = with_metrics(
        table([{"num_accelerators": 8, "score_s": 10.0}, {"num_accelerators": 16, "score_s": 10.0}])
    )
    (only,) = pointers(frame, "bert")
    assert only.num_accelerators == 8
    assert re.search("shortest .*, .*least accelerator-time", only.words)


def test_nothing_scored_points_nowhere(table):
    assert pointers(with_metrics(table([{"num_accelerators": 8, "score_s": None}])), "bert") == ()


@pytest.mark.law
@settings(deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({"num_accelerators": st.integers(1, 4096), "score_s": st.floats(1.0, 1e5)}),
        min_size=1,
        max_size=12,
    )
)
def test_no_entry_beats_a_pointer_in_both_time_and_accelerator_time(table, rows):
    found = pointers(with_metrics(table(rows)), "bert")
    assert found[0].score_s == min(row["score_s"] for row in rows)
    for pointer in found:
        cost = pointer.num_accelerators * pointer.score_s
        assert not any(
            row["score_s"] < pointer.score_s and row["num_accelerators"] * row["score_s"] < cost
            for row in rows
        )
    least = min(row["num_accelerators"] * row["score_s"] for row in rows)
    assert found[-1].num_accelerators * found[-1].score_s == pytest.approx(least)
