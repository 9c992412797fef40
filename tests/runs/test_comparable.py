"""Which results count: closed, scored, with accelerators."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.runs import embedded
from equipoise.runs.store import SCORES, closed, comparable, polars_schema, scores_of
from equipoise.scaling.metrics import with_metrics
from equipoise.spec.mlperf import accelerators_of, best_per_size, newest_first, read_scores, written_scores


def table(*rows):
    usual = {
        "division": "closed",
        "campaign": "v4.1",
        "workload": "bert",
        "accelerator": "h100-sxm5-80gb",
        "num_accelerators": 8,
        "score_s": 300.0,
    }
    whole = [{**usual, "entry_id": f"e{place}", **row} for place, row in enumerate(rows)]
    return pl.DataFrame(whole, schema=polars_schema(SCORES))


def names(rows):
    return rows["entry_id"].to_list()


def test_what_is_open_unscored_or_without_accelerators_is_not_comparable():
    rows = table(
        {},
        {"division": "open"},
        {"division": None},
        {"score_s": None},
        {"score_s": 0.0},
        {"score_s": float("inf")},
        {"num_accelerators": 0},
        {"num_accelerators": None},
        {"accelerator": None},
    )
    assert names(comparable(rows)) == ["e0", "e8"]
    assert names(closed(rows)) == ["e0", *(f"e{place}" for place in range(3, 9))]


def test_entries_are_the_comparable_rows_with_what_is_not_stated():
    rows = table(
        {"energy_j": 5.0}, {"division": "open"}, {"accelerator": None, "submitter": None}, {"workload": "ssd"}
    )
    scores = scores_of(rows)
    assert [each.entry_id for each in scores.entries] == ["e0", "e2", "e3"]
    assert [(each.accelerator, each.energy_j) for each in scores.of("bert")] == [
        ("h100-sxm5-80gb", 5.0),
        ("", None),
    ]
    assert accelerators_of(scores.entries) == ["h100-sxm5-80gb"]
    assert read_scores(written_scores(scores)).entries == scores.entries


def test_published_results_are_in_order_of_rounds_then_of_time():
    rows = table(
        {"campaign": "v4.1", "score_s": 200.0},
        {"campaign": "v4.1", "score_s": 100.0},
        {"campaign": "v10.0", "score_s": 300.0},
        {"campaign": "mine", "score_s": 1.0},
        {"campaign": "v10.0", "score_s": 2.0, "division": "open"},
        {"campaign": "v10.0", "num_accelerators": 16},
    )
    assert [each.entry_id for each in newest_first(scores_of(rows).entries)] == ["e2", "e5", "e1", "e0"]


def test_the_best_of_a_size_is_taken_once_more_without_change():
    rows = table({"score_s": 2.0}, {"score_s": 1.0}, {"num_accelerators": 4}, {"accelerator": None})
    best = best_per_size(scores_of(rows).entries)
    assert [each.entry_id for each in best] == ["e2", "e1"]
    assert best_per_size(best) == best


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "division": st.sampled_from(["closed", "open", None]),
                "score_s": st.sampled_from([None, -1.0, 0.0, 1.0, float("inf"), float("nan")]),
                "num_accelerators": st.sampled_from([None, 0, 1, 8]),
            }
        ),
        min_size=1,
    )
)
def test_a_closed_row_has_a_speedup_exactly_where_it_is_comparable(rows):
    # scaling may not import runs: it tells rows with a score by themselves, and this holds the two together.
    frame = table(*rows)
    measured = with_metrics(frame).filter(pl.col("speedup").is_not_null(), division="closed")
    assert names(measured) == names(comparable(frame))


@pytest.mark.truth
def test_no_open_result_of_the_embedded_data_counts_as_published():
    scores = embedded.load().scores
    opened = set(scores.filter(division="open")["entry_id"])
    assert not opened & {each.entry_id for each in embedded.scores().entries}
    same = scores.filter(workload="bert", accelerator="a100-sxm4-80gb", num_accelerators=1024)
    assert "open" in set(same["division"]), "the open entry that was once named as published"
