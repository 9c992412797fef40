import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.scaling.metrics import curves, spots, with_metrics

ACCELERATORS = ("h100-sxm5-80gb", "h200-sxm5-141gb", None)
ENTRY = st.fixed_dictionaries(
    {
        "num_accelerators": st.one_of(st.none(), st.integers(0, 4096)),
        "score_s": st.one_of(st.none(), st.floats(1e-2, 1e6)),
        "accelerator": st.sampled_from(ACCELERATORS),
        "division": st.sampled_from(("closed", "open", None)),
        "workload": st.sampled_from(("bert", "retinanet")),
    }
)


def _row(frame, entry_id):
    return frame.row(by_predicate=pl.col("entry_id") == entry_id, named=True)


def test_three_entries_by_hand(table):
    # T_ref = 100 s on 2. At 8: S = 100/20 = 5, E' = 5 / (8/2) = 1.25. At 32: S = 12.5, E' = 12.5 / 16.
    frame = with_metrics(
        table(
            [
                {"num_accelerators": 2, "score_s": 100.0},
                {"num_accelerators": 8, "score_s": 20.0},
                {"num_accelerators": 32, "score_s": 8.0},
            ]
        )
    )
    assert frame["speedup"].to_list() == [1.0, 5.0, 12.5]
    assert frame["relative_efficiency"].to_list() == [1.0, 1.25, 0.78125]


def test_reference_is_the_slowest_of_the_fewest(table):
    frame = with_metrics(
        table(
            [
                {"num_accelerators": 8, "score_s": 900.0},
                {"num_accelerators": 2, "score_s": 100.0},
                {"num_accelerators": 2, "score_s": 110.0},
            ]
        )
    )
    assert frame["is_reference"].to_list() == [False, False, True]
    assert frame["speedup"][1] == pytest.approx(1.1)


def test_baseline_is_the_fastest_of_the_smallest_of_the_same_accelerator(table):
    frame = with_metrics(
        table(
            [
                {"num_accelerators": 2, "score_s": 500.0, "accelerator": "a100-sxm4-80gb"},
                {"num_accelerators": 4, "score_s": 110.0, "system": "slow"},
                {"num_accelerators": 4, "score_s": 100.0, "system": "fast"},
                {"num_accelerators": 16, "score_s": 50.0},
            ]
        )
    )
    assert frame["like_for_like_baseline"].to_list() == ["lab/s0", "lab/fast", "lab/fast", "lab/fast"]
    assert frame["like_for_like_efficiency"].to_list() == pytest.approx([1.0, 100 / 110, 1.0, 0.5])


def test_memory_and_form_make_another_accelerator(table):
    frame = with_metrics(
        table(
            [
                {"num_accelerators": 4, "score_s": 100.0, "accelerator": "h100-sxm5-80gb"},
                {"num_accelerators": 8, "score_s": 60.0, "accelerator": "h100-nvl-94gb"},
            ]
        )
    )
    assert frame["like_for_like_efficiency"].to_list() == [1.0, 1.0]


def test_rounds_workloads_and_divisions_are_apart(table):
    frame = with_metrics(
        table(
            [
                {"num_accelerators": 2, "score_s": 100.0},
                {"num_accelerators": 4, "score_s": 10.0, "division": "open"},
                {"num_accelerators": 4, "score_s": 10.0, "campaign": "v1.0"},
                {"num_accelerators": 4, "score_s": 10.0, "workload": "retinanet"},
            ]
        )
    )
    assert frame["relative_efficiency"].to_list() == [1.0] * 4
    assert frame["like_for_like_efficiency"].to_list() == [1.0] * 4


@pytest.mark.parametrize(
    "lacking", [{"score_s": None}, {"num_accelerators": None}, {"num_accelerators": 0}, {"score_s": 0.0}]
)
def test_an_entry_without_score_or_accelerators_gets_no_number_and_is_no_reference(table, lacking):
    frame = with_metrics(
        table([{"num_accelerators": 1, "score_s": 5.0} | lacking, {"num_accelerators": 4, "score_s": 10.0}])
    )
    first, second = frame.to_dicts()
    assert first["speedup"] is None
    assert first["relative_efficiency"] is None
    assert first["like_for_like_efficiency"] is None
    assert first["like_for_like_baseline"] is None
    assert not first["is_reference"]
    assert second["is_reference"]


def test_an_unnamed_accelerator_has_no_like_for_like(table):
    frame = with_metrics(
        table(
            [
                {"num_accelerators": 2, "score_s": 100.0, "accelerator": None},
                {"num_accelerators": 4, "score_s": 50.0, "accelerator": None},
            ]
        )
    )
    assert frame["relative_efficiency"].to_list() == [1.0, 1.0]
    assert frame["like_for_like_efficiency"].null_count() == 2


def test_energy_and_throughput_are_per_unit(table):
    frame = with_metrics(
        table([{"num_accelerators": 8, "score_s": 100.0, "samples_to_target": 4000.0, "energy_j": 2e6}])
    )
    assert frame["energy_j_per_sample"].to_list() == [500.0]
    assert frame["samples_per_s_per_accelerator"].to_list() == [5.0]


def test_curve_keeps_the_best_entry_of_each_size(table):
    frame = with_metrics(
        table(
            [
                {"num_accelerators": 16, "score_s": 30.0},
                {"num_accelerators": 4, "score_s": 100.0},
                {"num_accelerators": 16, "score_s": 25.0},
                {"num_accelerators": 4, "score_s": 100.0, "accelerator": "a100-sxm4-80gb"},
                {"num_accelerators": 64, "score_s": None},
            ]
        )
    )
    assert curves(frame).select("accelerator", "num_accelerators", "score_s").rows() == [
        ("a100-sxm4-80gb", 4, 100.0),
        ("h100-sxm5-80gb", 4, 100.0),
        ("h100-sxm5-80gb", 16, 25.0),
    ]


def test_spots_count_the_systems_that_share_one(table):
    frame = with_metrics(
        table(
            [
                {"num_accelerators": 8, "score_s": 30.0, "system": "b"},
                {"num_accelerators": 8, "score_s": 31.0, "system": "a"},
                {"num_accelerators": 16, "score_s": 20.0, "system": "c"},
                {"num_accelerators": 8, "score_s": None, "system": "d"},
            ]
        )
    ).with_columns(cluster=pl.lit(1, pl.Int64))
    assert spots(frame).select("num_accelerators", "num_systems", "systems").rows() == [
        (8, 2, ["lab/a", "lab/b"]),
        (16, 1, ["lab/c"]),
    ]


@pytest.mark.law
@settings(deadline=None)
@given(st.lists(ENTRY, min_size=1, max_size=12), st.floats(1e-3, 1e3))
def test_metrics_do_not_depend_on_the_unit_of_time(table, rows, factor):
    scaled = [row | {"score_s": row["score_s"] and row["score_s"] * factor} for row in rows]
    columns = ["speedup", "relative_efficiency", "like_for_like_efficiency"]
    before, after = with_metrics(table(rows)), with_metrics(table(scaled))
    for column in columns:
        assert after[column].to_list() == [
            value if value is None else pytest.approx(value, rel=1e-9) for value in before[column]
        ]


@pytest.mark.law
@settings(deadline=None)
@given(st.lists(ENTRY, min_size=1, max_size=12))
def test_every_reference_and_baseline_has_efficiency_one(table, rows):
    frame = with_metrics(table(rows))
    references = frame.filter("is_reference")
    assert references["relative_efficiency"].to_list() == pytest.approx([1.0] * references.height)
    baselines = frame.filter(pl.col("entry_id") == pl.col("like_for_like_baseline_id"))
    assert baselines["like_for_like_efficiency"].to_list() == pytest.approx([1.0] * baselines.height)
    kinds = frame.filter(pl.col("like_for_like_efficiency").is_not_null())
    assert baselines.height == kinds.select("workload", "division", "accelerator").n_unique()


@pytest.mark.law
@settings(deadline=None)
@given(st.lists(ENTRY, min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_metrics_do_not_depend_on_the_order_of_rows(table, rows, random):
    frame = table(rows)
    order = list(range(frame.height))
    random.shuffle(order)
    straight = with_metrics(frame)
    shuffled = with_metrics(frame[order])
    assert shuffled["entry_id"].to_list() == [f"e{place}" for place in order]
    assert shuffled.sort("entry_id").equals(straight.sort("entry_id"))


@pytest.mark.law
@settings(deadline=None)
@given(
    st.integers(1, 64),
    st.floats(1.0, 1e5),
    st.lists(st.integers(1, 100), min_size=1, max_size=8, unique=True),
)
def test_perfect_scaling_has_efficiency_one_everywhere(table, smallest, accelerator_s, multiples):
    sizes = [smallest, *(smallest * multiple for multiple in multiples)]
    frame = with_metrics(table({"num_accelerators": n, "score_s": accelerator_s / n} for n in sizes))
    assert frame["relative_efficiency"].to_list() == pytest.approx([1.0] * len(sizes))
    assert frame["like_for_like_efficiency"].to_list() == pytest.approx([1.0] * len(sizes))


@pytest.mark.law
@settings(deadline=None)
@given(st.lists(ENTRY, min_size=1, max_size=12))
def test_an_entry_is_always_counted_against_its_own_kind(table, rows):
    frame = with_metrics(table(rows))
    accelerator = dict(frame.select("entry_id", "accelerator").iter_rows())
    size = dict(frame.select("entry_id", "num_accelerators").iter_rows())
    compared = frame.filter(pl.col("like_for_like_baseline_id").is_not_null())
    assume(len(compared))
    baselines = compared["like_for_like_baseline_id"]
    assert [accelerator[each] for each in baselines] == compared["accelerator"].to_list()
    assert (compared["num_accelerators"] >= [size[each] for each in baselines]).all()
