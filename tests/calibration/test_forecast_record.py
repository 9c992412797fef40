"""What ships with the package is of this dataset, loads, and is that record."""

import re

import pytest
from msgspec.structs import replace

from equipoise.calibration.curves import shipped_forecasts
from equipoise.calibration.forecasts import fingerprint, kept_fits, published_growth, results_of
from equipoise.runs import embedded
from equipoise.scaling.convergence import batch_growth
from equipoise.scaling.pooled import Question, fit


def test_what_ships_is_of_the_embedded_dataset():
    assert shipped_forecasts().dataset == embedded.version(), "make dataset rewrites both"


@pytest.mark.parametrize("given_batch", [False, True])
def test_settings_that_ship_are_those_of_the_law(given_batch):
    law = fit((), given_batch=given_batch, settings=shipped_forecasts().settings(given_batch=given_batch))
    assert law.settings() == {
        part: list(each) for part, each in shipped_forecasts().settings(given_batch=given_batch).items()
    }


@pytest.mark.parametrize("given_batch", [False, True])
def test_trends_ship_for_every_law_of_the_embedded_dataset(given_batch):
    results, settings = results_of(embedded.scores()), shipped_forecasts().settings(given_batch=given_batch)
    rounds = sorted({each.campaign for each in results.best})[1:]
    assert rounds
    for round_ in (*rounds, None):
        hashed = fingerprint(results.before(round_), settings, given_batch=given_batch)
        assert hashed in kept_fits().trends, f"{round_}: python records/calibrations.py trends"


@pytest.mark.parametrize("given_batch", [False, True])
def test_a_law_of_kept_trends_is_the_law_fitted_to_all(given_batch):
    results, settings = results_of(embedded.scores()), shipped_forecasts().settings(given_batch=given_batch)
    workload, accelerator = "llama2_70b_lora", "h100-sxm5-80gb"
    quick = results.law_before("v5.0", workload, given_batch=given_batch)
    assert set(quick.parts["time"].blocks) == {workload}
    fitted = fit(results.before("v5.0"), given_batch=given_batch, settings=settings)
    asked = [
        Question(
            workload=workload,
            accelerator=accelerator,
            num_accelerators=size,
            global_batch_samples=8.0 if given_batch else None,
        )
        for size in (8, 64, 1024)
    ]
    own = [each for each in results.best if each.group == ("v5.0", workload, accelerator)]
    assert own
    pairs = list(zip(quick.predict_all(own, asked), fitted.predict_all(own, asked), strict=True))
    assert pairs
    for one, other in pairs:
        for name in ("value", "low", "high"):
            assert getattr(one.time_s, name) == pytest.approx(getattr(other.time_s, name), rel=1e-8)
        assert [each.entry_id for each in one.evidence] == [each.entry_id for each in other.evidence]


def test_other_results_chips_or_settings_take_no_kept_trends():
    results, settings = results_of(embedded.scores()), shipped_forecasts().settings(given_batch=False)
    hashed = fingerprint(results.best, settings, given_batch=False)
    slower = [replace(each, score_s=each.score_s * 1.001) for each in results.best]
    assert fingerprint(slower, settings, given_batch=False) != hashed
    assert fingerprint(results.best, {**settings, "time": [0.0]}, given_batch=False) != hashed
    assert fingerprint(results.best, settings, given_batch=True) != hashed


@pytest.mark.parametrize("workload", ["bert", "gpt3", "llama2_70b_lora", "llama31_8b", "retinanet"])
def test_growth_from_what_ships_is_that_of_the_whole_fit(workload):
    entries = embedded.scores().of(workload)
    quick, whole = published_growth(entries), batch_growth(entries)
    assert quick.stretch.tolist() in [list(each) for each in kept_fits().stretches.values()], "make dataset"
    assert len(quick.curve) == len(whole.curve)
    for name in ("samples_min", "batch_critical", "growth"):
        one, other = getattr(quick, name), getattr(whole, name)
        assert [one.value, one.low, one.high] == pytest.approx([other.value, other.low, other.high], rel=1e-7)
    assert quick.weight == pytest.approx(whole.weight, rel=1e-7)
    assert [each.high for each in quick.curve] == pytest.approx([each.high for each in whole.curve], rel=1e-7)


def test_other_results_are_fitted_anew():
    entries = embedded.scores().of("llama31_8b")
    more = [replace(each, samples_to_target=(each.samples_to_target or 0.0) * 1.1) for each in entries[:5]]
    changed = (*more, *entries[5:])
    assert published_growth(changed).stretch.tolist() == batch_growth(changed).stretch.tolist()
    assert published_growth(changed).samples_min != published_growth(entries).samples_min


@pytest.mark.parametrize(
    ("protocol", "given_batch"), [("largest", False), ("largest", True), ("new_round", False)]
)
def test_jumps_hold_every_result_of_the_summary(protocol, given_batch):
    summary = shipped_forecasts().summary(protocol, given_batch=given_batch)
    by_jump = summary.pooled_law.by_jump
    near, far = by_jump["up to 4x"], by_jump["beyond 4x"]
    assert near.num_groups + far.num_groups == summary.pooled_law.num_groups
    held = sum(each.coverage * each.num_groups for each in (near, far)) / summary.pooled_law.num_groups
    assert held == pytest.approx(summary.pooled_law.coverage, abs=1e-4)
    assert "perfect" in summary.baselines


def test_each_jump_has_the_record_of_its_bin():
    records = [
        shipped_forecasts().record("largest", jump=jump, given_batch=False) for jump in (0.5, 2.0, 4.0, 64.0)
    ]
    assert [re.search(r"(up to|more than) (\d) times", record.of).groups() for record in records] == [
        ("up to", "2"),
        ("up to", "2"),
        ("up to", "4"),
        ("more than", "4"),
    ]
    # None was held out with its batch given: those of batches that the law did not know serve.
    of_any_batch = shipped_forecasts().record("new_round", jump=2.0, given_batch=False)
    assert shipped_forecasts().record("new_round", jump=2.0, given_batch=True) == of_any_batch
