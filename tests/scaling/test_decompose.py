import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.runs import embedded
from equipoise.scaling.metrics import LOSSES, log_loss_shares, losses, with_factors, with_metrics

POSITIVE = st.floats(1e-2, 1e6)
ENTRY = st.fixed_dictionaries(
    {
        "num_accelerators": st.integers(1, 4096),
        "score_s": POSITIVE,
        "convergence_scaling": st.floats(1.0, 1.3),
        "samples_to_target": st.one_of(st.none(), st.just(0.0), POSITIVE),
        "accelerator": st.sampled_from(("h100-sxm5-80gb", "b200-sxm-180gb")),
        "eval_s": st.one_of(st.none(), st.just(0.0), st.just(10.0)),
        "eval_outside_s": st.one_of(st.none(), st.just(0.0), st.just(10.0)),
        "train_block_s": st.one_of(st.none(), st.just(0.0), POSITIVE),
    }
)


def test_factors_by_hand(entries):
    # Baseline: 4 accelerators, 100 s unscaled x 1.1, 1000 samples. Here: 16, 40 s x 1.0, 2000 samples, other reference.
    frame = entries(
        [
            {"num_accelerators": 2, "score_s": 1100.0, "accelerator": "a100-sxm4-80gb"},
            {"num_accelerators": 4, "score_s": 110.0, "convergence_scaling": 1.1, "samples_to_target": 1e3},
            {"num_accelerators": 16, "score_s": 40.0, "samples_to_target": 2e3},
        ]
    )
    row = frame.row(2, named=True)
    assert row["generation"] == pytest.approx(10 / 2)
    assert row["statistical"] == pytest.approx(0.5)
    # 2000 / 40 / 16 = 3.125 samples per second per accelerator against 1000 / 100 / 4 = 2.5
    assert row["throughput"] == pytest.approx(1.25)
    assert row["rules"] == pytest.approx(1.1)
    assert row["like_for_like_efficiency"] == pytest.approx(0.5 * 1.25 * 1.1)


def test_training_and_overhead_by_hand(entries):
    # Baseline trains 90 of 100 s, here 30 of 40 s; both evaluate between the blocks.
    outside = {"eval_s": 5.0, "eval_outside_s": 5.0}
    frame = entries(
        [
            {"num_accelerators": 4, "score_s": 100.0, "samples_to_target": 900.0, "train_block_s": 90.0}
            | outside,
            {"num_accelerators": 8, "score_s": 40.0, "samples_to_target": 900.0, "train_block_s": 30.0}
            | outside,
        ]
    )
    row = frame.row(1, named=True)
    assert row["training"] == pytest.approx((900 / 30 / 8) / (900 / 90 / 4))
    assert row["overhead"] == pytest.approx((30 / 40) / (90 / 100))
    assert row["factors_missing"] is None


def test_evaluation_inside_the_blocks_is_not_split_and_says_so(entries):
    inside = {"eval_s": 5.0, "eval_outside_s": 0.0, "samples_to_target": 900.0, "train_block_s": 90.0}
    frame = entries(
        [
            {"num_accelerators": 4, "score_s": 100.0} | inside,
            {"num_accelerators": 8, "score_s": 60.0} | inside,
        ]
    )
    assert frame["training"].null_count() == 2
    assert "evaluation" in frame["factors_missing"][1]
    assert frame["throughput"].null_count() == 0


def test_unknown_samples_leave_throughput_unknown_and_say_so(entries):
    frame = entries(
        [
            {"num_accelerators": 4, "score_s": 100.0},
            {"num_accelerators": 8, "score_s": 60.0, "samples_to_target": 900.0},
        ]
    )
    assert frame["statistical"].null_count() == 2
    assert frame["throughput"].null_count() == 2
    assert "samples" in frame["factors_missing"][1]


def test_an_unscored_entry_has_no_factors_and_no_excuse(entries):
    frame = entries([{"num_accelerators": 4, "score_s": 10.0}, {"num_accelerators": 8, "score_s": None}])
    row = frame.row(1, named=True)
    assert row["generation"] is None
    assert row["rules"] is None
    assert row["factors_missing"] is None


def test_shares_of_loss_by_hand(entries):
    # E = 0.25 = 0.5 x 0.5: either factor has half of the logarithmic loss.
    frame = entries(
        [
            {"num_accelerators": 4, "score_s": 100.0, "samples_to_target": 1e3},
            {"num_accelerators": 16, "score_s": 100.0, "samples_to_target": 2e3},
        ]
    )
    (row,) = log_loss_shares(frame).to_dicts()
    assert row["entry_id"] == "e1"
    assert row["statistical_fraction"] == pytest.approx(0.5)
    assert row["throughput_fraction"] == pytest.approx(0.5)
    assert row["rules_fraction"] == pytest.approx(0.0)


@pytest.mark.law
@settings(deadline=None)
@given(st.lists(ENTRY, min_size=1, max_size=10))
def test_factors_multiply_to_the_efficiencies(entries, rows):
    frame = entries(rows)
    products = frame.select(
        whole=pl.col("generation") * pl.col("like_for_like_efficiency") / pl.col("relative_efficiency"),
        like_for_like=pl.col("statistical") * pl.col("throughput") * pl.col("rules")
        / pl.col("like_for_like_efficiency"),
        throughput=pl.col("training") * pl.col("overhead") / pl.col("throughput"),
    )  # fmt: skip
    for column in products:
        assert column.drop_nulls().to_list() == pytest.approx([1.0] * column.count(), rel=1e-9)
    assert products["whole"].null_count() == 0


@pytest.mark.law
@settings(deadline=None)
@given(st.lists(ENTRY, min_size=1, max_size=10))
def test_shares_of_loss_sum_to_one(entries, rows):
    shares = log_loss_shares(entries(rows))
    total = shares["statistical_fraction"] + shares["throughput_fraction"] + shares["rules_fraction"]
    assert total.to_list() == pytest.approx([1.0] * shares.height, rel=1e-6)


@pytest.mark.law
@settings(deadline=None)
@given(st.lists(ENTRY, min_size=1, max_size=10))
def test_losses_sum_to_that_of_the_entry_whatever_the_log_tells(entries, rows):
    found = losses(entries(rows))
    total = found.select(total=pl.sum_horizontal(LOSSES))["total"]
    assert total.to_list() == pytest.approx(found["lost_doublings"].to_list(), abs=1e-9)


@pytest.mark.truth
def test_embedded_entries_keep_the_identity():
    frame = with_factors(with_metrics(embedded.load().scores))
    assert frame["statistical"].count() > 1500
    product = frame["statistical"] * frame["throughput"] * frame["rules"] / frame["like_for_like_efficiency"]
    assert (product - 1).abs().max() < 1e-9
    whole = frame["generation"] * frame["like_for_like_efficiency"] / frame["relative_efficiency"]
    assert (whole - 1).abs().max() < 1e-9


@pytest.mark.truth
def test_factors_equal_those_of_another_program(data_dir):
    """decomposition_v41_h100_sxm.csv, each entry against the file's own `baseline`.

    The file names entries by org/system and broke ties for the baseline by the unscaled score, so its baseline is put in
    place of ours. stat_eff_vs_baseline is our statistical, thr_eff_per_acc our throughput, rcp_scaling_eff our rules and
    total_eff_official their product.
    """
    theirs = pl.read_csv(data_dir / "mlperf" / "decomposition_v41_h100_sxm.csv", infer_schema_length=None)
    ours = with_metrics(embedded.load().scores.filter(pl.col("campaign") == "v4.1"))
    name = pl.concat_str("workload", pl.lit(" "), "submitter", pl.lit("/"), "system")
    entry_ids = dict(ours.select(name, "entry_id").iter_rows())
    baselines = theirs.select(
        pl.concat_str("benchmark", pl.lit(" "), "org", pl.lit("/"), "system")
        .replace_strict(entry_ids)
        .alias("entry_id"),
        pl.concat_str("benchmark", pl.lit(" "), "baseline").replace_strict(entry_ids).alias("_baseline"),
        "stat_eff_vs_baseline", "thr_eff_per_acc", "rcp_scaling_eff", "total_eff_official",
    )  # fmt: skip
    compared = with_factors(
        ours.join(baselines, on="entry_id", how="left").with_columns(
            like_for_like_baseline_id=pl.coalesce("_baseline", "like_for_like_baseline_id")
        )
    ).filter(pl.col("_baseline").is_not_null())
    assert compared.height == theirs.height == 61
    product = pl.col("statistical") * pl.col("throughput") * pl.col("rules")
    error = compared.select(
        (pl.col("statistical") / pl.col("stat_eff_vs_baseline") - 1).abs().max().alias("statistical"),
        (pl.col("throughput") / pl.col("thr_eff_per_acc") - 1).abs().max().alias("throughput"),
        (pl.col("rules") / pl.col("rcp_scaling_eff") - 1).abs().max().alias("rules"),
        (product / pl.col("total_eff_official") - 1).abs().max().alias("product"),
    )
    assert max(error.row(0)) < 1e-3, error


def test_losses_by_cause_sum_to_the_whole_loss():
    # E = 0.4 x 0.5 x 2: log2 of 2.5, 2 and 1/2 are 1.322, 1 and -1; training x overhead = 0.8 x 0.625.
    rows = pl.DataFrame(
        {
            "accelerator": ["a"] * 4,
            "num_accelerators": [8, 64, 64, 64],
            "entry_id": list("bcde"),
            "like_for_like_efficiency": [1.0, 0.4, 0.4, 0.4],
            "generation": [1.0] * 4,
            "statistical": [1.0, 0.4, 0.4, None],
            "throughput": [1.0, 0.5, 0.5, None],
            "training": [None, None, 0.8, None],
            "overhead": [None, None, 0.625, None],
            "rules": [1.0, 2.0, 2.0, 2.0],
            "factors_missing": ["x", "x", None, "y"],
        }
    )
    found = losses(rows)
    whole, split, unattributed = (found.row(place, named=True) for place in (1, 2, 3))
    assert whole["lost_doublings"] == pytest.approx(1.3219, abs=1e-4)
    assert (whole["statistical"], whole["throughput"], whole["rules"]) == pytest.approx(
        (1.3219, 1, -1), abs=1e-4
    )
    assert (whole["training"], whole["overhead"], whole["unattributed"]) == (None, None, None)
    # log2 1.25 and log2 1.6
    assert (split["training"], split["overhead"]) == pytest.approx((0.3219, 0.6781), abs=1e-4)
    assert split["throughput"] is None
    # What no log shows is the rest, not a guess: 1.322 + 1.
    assert unattributed["unattributed"] == pytest.approx(2.3219, abs=1e-4)
    assert unattributed["statistical"] is None
    sums = found.select(total=pl.sum_horizontal(LOSSES))["total"]
    assert sums.to_list() == pytest.approx(found["lost_doublings"].to_list(), abs=1e-9)
