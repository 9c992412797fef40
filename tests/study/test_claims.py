import numpy as np
import polars as pl
import pytest

from equipoise.runs import embedded
from equipoise.scaling.metrics import with_factors, with_metrics
from equipoise.study.claims import claims_about

FOUR = ("bert", "llama2_70b_lora", "retinanet", "stable_diffusion")


def _curve(entries, workload, points, **columns):
    return entries(
        {
            "workload": workload,
            "entry_id": f"{workload}{size}",
            "num_accelerators": size,
            "score_s": 1000.0 / size / efficiency,
            "samples_to_target": 1000.0,
        }
        | columns
        for size, efficiency in points
    )


def _by_workload(scores, round_="v4.1", workloads=FOUR):
    closed = scores.filter((pl.col("campaign") == round_) & (pl.col("division") == "closed"))
    frame = with_factors(with_metrics(closed))
    return {workload: frame.filter(pl.col("workload") == workload) for workload in workloads}


def _verdicts(claims):
    return {claim.number: (claim.study_method.verdict, claim.like_for_like.verdict) for claim in claims}


def test_a_claim_holds_when_every_part_does(entries):
    bert = _curve(entries, "bert", [(4, 1.0), (8, 1.2), (16, 0.9), (64, 0.8)])
    claim = claims_about({"bert": bert}, label="v9.9")[0]
    assert claim.number == 1
    assert [part.like_for_like.verdict for part in claim.parts] == ["holds"] * 3
    assert claim.verdict == "holds"


def test_a_claim_reverses_when_any_part_does(entries):
    bert = _curve(entries, "bert", [(4, 1.0), (8, 1.2), (16, 0.9), (3472, 0.1)])
    claim = claims_about({"bert": bert}, label="v9.9")[0]
    assert [part.like_for_like.verdict for part in claim.parts] == ["holds", "holds", "reverses"]
    assert claim.verdict == "reverses"


def test_the_verdict_is_the_studys_way_where_nothing_is_comparable(entries):
    kinds = [(4, 1.0, "a100-sxm4-80gb"), (8, 1.5, "h100-sxm5-80gb"), (64, 0.9, "tpu-v5p")]
    bert = entries(
        {"num_accelerators": size, "score_s": 1000.0 / size / efficiency, "accelerator": accelerator}
        for size, efficiency, accelerator in kinds
    )
    claim = claims_about({"bert": bert}, label="v9.9")[0]
    assert claim.like_for_like.verdict == "not enough evidence"
    assert claim.verdict == claim.study_method.verdict == "holds"


def test_claims_about_absent_workloads_state_what_is_absent(entries):
    bert = _curve(entries, "bert", [(4, 1.0), (8, 1.2), (64, 0.8)])
    claims = {claim.number: claim for claim in claims_about({"bert": bert}, label="v2.0, closed")}
    assert claims.keys() == {1, 2, 3, 4, 5, 6}
    for number, name in ((2, "Llama 2"), (3, "RetinaNet and Llama 2"), (4, "Stable Diffusion")):
        assert claims[number].verdict == "not enough evidence"
        assert claims[number].study_method.words.startswith(f"v2.0, closed: {name}")


def test_workloads_the_study_does_not_cover_get_the_first_claim(entries):
    resnet = _curve(entries, "resnet50", [(4, 1.0), (8, 1.2), (64, 0.8)])
    claims = [
        claim
        for claim in claims_about({"resnet50": resnet}, label="v1.0")
        if claim.workloads == ("resnet50",) and claim.stated_for
    ]
    (claim,) = claims
    assert (claim.number, claim.stated_for, claim.verdict) == (1, ("bert",), "holds")


@pytest.mark.parametrize(
    ("retinanet", "verdict"), [(0.9, "holds"), (0.5, "not supported"), (0.3, "reverses")]
)
def test_linearity_is_compared_over_the_same_sizes(entries, retinanet, verdict):
    both = {
        # RetinaNet's 2528 has no partner and must not count.
        "retinanet": _curve(entries, "retinanet", [(8, 1.0), (64, retinanet), (2528, 0.01)]),
        "llama2_70b_lora": _curve(entries, "llama2_70b_lora", [(8, 1.0), (64, 0.5), (1024, 0.2)]),
    }
    claim = next(claim for claim in claims_about(both, label="v9.9") if claim.number == 3)
    linearity = claim.parts[0].like_for_like
    assert linearity.verdict == verdict
    assert linearity.figures[0].value == pytest.approx(retinanet / 0.5)
    # The family of the one submitter, 8 to 64, is printed besides.
    assert [figure.value for figure in linearity.figures[1:]] == pytest.approx([0.5, retinanet])


def test_linearity_uses_the_accelerator_with_the_most_common_sizes(entries):
    def both_kinds(workload, large):
        return entries(
            {
                "workload": workload,
                "entry_id": f"{workload}{kind}{size}",
                "num_accelerators": size,
                "score_s": 1000.0 / size / efficiency,
                "accelerator": kind,
            }
            for kind, points in (
                ("a100-sxm4-80gb", [(8, 1.0), (16, 1.0), (64, large)]),
                (
                    "h100-sxm5-80gb",
                    [(size, 1.0) for size in (8, 512) + ((4, 16, 32, 128) if large > 0.5 else ())],
                ),
            )
            for size, efficiency in points
        )

    both = {"retinanet": both_kinds("retinanet", 0.9), "llama2_70b_lora": both_kinds("llama2_70b_lora", 0.3)}
    claim = next(claim for claim in claims_about(both, label="v9.9") if claim.number == 3)
    # a100: ratios 1 at 16 and 3 at 64: geometric mean sqrt(3). h100 has two common sizes only.
    assert claim.parts[0].like_for_like.figures[0].value == pytest.approx(3**0.5)


def test_slope_of_perfect_scaling_is_nearer_to_one(entries):
    both = {
        "retinanet": _curve(entries, "retinanet", [(4, 1.0), (16, 1.0), (64, 1.0)]),
        "llama2_70b_lora": _curve(entries, "llama2_70b_lora", [(4, 1.0), (16, 0.5), (64, 0.25)]),
    }
    claim = next(claim for claim in claims_about(both, label="v9.9") if claim.number == 3)
    # By hand: efficiency halves with each quadrupling, so speedup doubles: slope 1/2.
    assert [figure.value for figure in claim.parts[0].study_method.figures] == pytest.approx([1.0, 0.5])
    assert claim.parts[0].study_method.verdict == "holds"


def test_balance_that_differs_between_workloads(entries):
    inside_at_16 = _curve(entries, "bert", [(4, 1.0), (16, 0.9), (64, 0.2)])
    inside_at_64 = _curve(entries, "retinanet", [(4, 1.0), (64, 0.9), (512, 0.1)])
    claims = claims_about({"bert": inside_at_16, "retinanet": inside_at_64}, label="v9.9")
    balance = next(claim for claim in claims if claim.number == 5)
    assert balance.verdict == "holds"
    assert [figure.value for figure in balance.parts[-1].like_for_like.figures] == [16, 64]
    same = next(claim for claim in claims_about({"bert": inside_at_16}, label="v9.9") if claim.number == 5)
    assert same.parts[-1].like_for_like.verdict == "not enough evidence"


@pytest.mark.truth
def test_verdicts_on_v41_are_the_known_ones(truth):
    claims = claims_about(_by_workload(embedded.load().scores), label="v4.1")
    verdicts = {f"claim_{claim.number}": claim.verdict for claim in claims}
    assert len(claims) == 6
    assert truth["verdicts"]
    for number, verdict in truth["verdicts"].items():
        assert verdicts[number] == verdict


@pytest.mark.truth
def test_permuting_the_scores_changes_verdicts():
    """Which system took which time is all that the claims are about: shuffled, most verdicts cannot stay."""
    scores = embedded.load().scores.filter(pl.col("campaign") == "v4.1")
    straight = _verdicts(claims_about(_by_workload(scores), label="v4.1"))
    rng = np.random.default_rng(41)
    num_changed = []
    for _ in range(5):
        order = pl.Series(rng.permutation(scores.height), dtype=pl.UInt32)
        shuffled = scores.with_columns(_order=order).with_columns(
            pl.col("score_s", "unscaled_s", "samples_to_target").sort_by("_order").over("workload")
        )
        found = _verdicts(claims_about(_by_workload(shuffled), label="v4.1"))
        num_changed.append(sum(found[number] != straight[number] for number in straight))
    assert min(num_changed) >= 2, num_changed


@pytest.mark.truth
def test_every_round_and_workload_with_three_entries_gets_six_claims():
    scores = embedded.load().scores.filter(pl.col("division") == "closed")
    counts = scores.group_by("campaign", "workload").agg(pl.col("score_s").count())
    groups = counts.filter(pl.col("score_s") >= 3).select("campaign", "workload").rows()
    assert groups
    for round_, workload in groups:
        claims = claims_about(_by_workload(scores, round_, (workload,)), label=round_)
        assert {claim.number for claim in claims} == {1, 2, 3, 4, 5, 6}
        for claim in claims:
            for reading in (claim.study_method, claim.like_for_like):
                assert reading.words
                assert np.isfinite([figure.value for figure in reading.figures]).all()
