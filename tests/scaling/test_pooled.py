import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.errors import DataError, EvidenceError, UsageError
from equipoise.scaling.backtest import backtest
from equipoise.scaling.pooled import Question, fit
from equipoise.spec.mlperf import ScoredEntry, best_per_size, round_key

ROUNDS = ("v1.0", "v1.1", "v2.0", "v2.1")
SPEED = {"a100-sxm4-80gb": 1.0, "h100-sxm5-80gb": 2.5, "tpu-v4": 1.1}
SIZES = (8, 16, 64, 256)


def _scores(*, noise=0.0, seed=0, unit_s=1.0, loss_per_doubling=0.1):
    """Entries whose accelerator-seconds grow by the same factor at every doubling, on every chip and in every round."""
    rng = np.random.default_rng(seed)
    rows = []
    for campaign in ROUNDS:
        for accelerator, speed in SPEED.items():
            for size in SIZES:
                log_loss = loss_per_doubling * np.log2(size / 8) + noise * rng.standard_normal()
                rows.append(
                    ScoredEntry(
                        entry_id=f"{campaign}/x/{accelerator}-{size}/bert",
                        campaign=campaign,
                        workload="bert",
                        accelerator=accelerator,
                        num_accelerators=size,
                        score_s=unit_s * 1e5 / speed / size * float(np.exp(log_loss)),
                        samples_to_target=3e6 * (size / 8) ** 0.05,
                        global_batch_samples=48 * size,
                    )
                )
    return best_per_size(rows)


def _split(scores, campaign="v2.1", accelerator="h100-sxm5-80gb", num_known=2):
    earlier = [each for each in scores if each.campaign != campaign]
    own = [each for each in scores if (each.campaign, each.accelerator) == (campaign, accelerator)]
    return earlier, own[:num_known], own


def _with(entries, **changes):
    return [replace(each, **changes) for each in entries]


def _ask(size, accelerator="h100-sxm5-80gb", batch=None):
    return Question(
        workload="bert", accelerator=accelerator, num_accelerators=size, global_batch_samples=batch
    )


@pytest.mark.law
def test_a_shape_shared_by_all_is_carried_to_an_unseen_size():
    earlier, own, rows = _split(_scores(noise=0.01))
    found = fit(earlier).predict(own, _ask(256))
    assert found.time_s.value == pytest.approx(rows[3].score_s, rel=0.05)
    assert found.time_s.low < rows[3].score_s < found.time_s.high


@pytest.mark.law
@settings(max_examples=4, deadline=None)
@given(unit_s=st.floats(1e-3, 1e4))
def test_the_unit_of_time_changes_nothing_but_the_unit(unit_s):
    here, there = _split(_scores(noise=0.05)), _split(_scores(noise=0.05, unit_s=unit_s))
    one, other = (fit(earlier).predict(own, _ask(256)).time_s for earlier, own, _ in (here, there))
    assert other.value == pytest.approx(unit_s * one.value, rel=1e-3)
    assert other.high / other.low == pytest.approx(one.high / one.low, rel=1e-2)


@pytest.mark.law
def test_the_interval_widens_with_the_jump():
    earlier, own, _ = _split(_scores(noise=0.05))
    law = fit(earlier)
    widths = [
        (found := law.predict(own, _ask(size)).time_s).high / found.low for size in (16, 32, 128, 1024, 8192)
    ]
    assert widths == sorted(widths)


@pytest.mark.law
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_an_only_own_point_is_believed_however_far_it_lies(factor):
    earlier, own, _ = _split(_scores(noise=0.05), num_known=1)
    measured_s = factor * own[0].score_s
    found = fit(earlier).predict(_with(own, score_s=measured_s), _ask(own[0].num_accelerators))
    assert found.time_s.low < measured_s < found.time_s.high


@pytest.mark.law
def test_own_points_narrow_the_interval():
    earlier, own, _ = _split(_scores(noise=0.05), num_known=3)
    law = fit(earlier)
    none, one, three = (law.predict(own[:count], _ask(256)).time_s for count in (0, 1, 3))
    assert none.high / none.low > one.high / one.low > three.high / three.low


def test_one_slow_outlier_of_the_past_moves_the_answer_little():
    scores = _scores(noise=0.02)
    earlier, own, _ = _split(scores)
    slow = [
        replace(each, score_s=4.0 * each.score_s)
        if each.entry_id == "v2.0/x/h100-sxm5-80gb-256/bert"
        else each
        for each in earlier
    ]
    clean = fit(earlier).predict(own, _ask(256)).time_s.value
    spoilt = fit(slow).predict(own, _ask(256)).time_s.value
    assert abs(np.log(spoilt / clean)) < np.log(4) / 5


def test_parts_make_the_time():
    earlier, own, rows = _split(_scores(noise=0.01))
    found = fit(earlier).predict(own, _ask(256))
    assert found.samples_to_target == pytest.approx(rows[3].samples_to_target, rel=0.03)
    assert found.samples_to_target / found.samples_per_s == pytest.approx(found.time_s.value)


def test_without_convergence_only_the_time_is_predicted():
    earlier, own, _ = _split(_with(_scores(noise=0.01), samples_to_target=None))
    found = fit(earlier).predict(own, _ask(256))
    assert found.samples_to_target is None
    assert found.samples_per_s is None
    assert found.time_s.value > 0


def test_the_heaviest_evidence_is_the_groups_own():
    earlier, own, _ = _split(_scores(noise=0.05), num_known=3)
    evidence = fit(earlier).predict(own, _ask(128)).evidence
    assert evidence[0].is_same_group
    assert [one.weight for one in evidence] == sorted((one.weight for one in evidence), reverse=True)
    assert sum(one.weight for one in evidence) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("size", "num_known", "words"),
    [
        (64, 2, None),
        (65, 2, "more than 4 times"),
        (64, 0, "no measurement"),
        (1, 2, "fewer than 1/4"),
    ],
)
def test_the_domain_ends_four_times_beyond_the_own_sizes(size, num_known, words):
    earlier, own, _ = _split(_scores(noise=0.05), num_known=num_known)
    found = fit(earlier).predict(own, _ask(size))
    assert (found.outside is None) if words is None else words in found.outside


def test_a_workload_never_seen_is_predicted_from_its_own_points_with_doubt():
    earlier, own, rows = _split(_scores(noise=0.01))
    found = fit(earlier).predict(
        _with(own, workload="mine"),
        Question(workload="mine", accelerator="h100-sxm5-80gb", num_accelerators=64),
    )
    assert found.time_s.low < rows[2].score_s < found.time_s.high
    assert found.outside is not None


@pytest.mark.parametrize(("size", "is_between"), [(12, True), (4, False), (24, False)])
def test_a_size_between_a_groups_own_is_no_extrapolation(size, is_between):
    earlier, own, _ = _split(_scores(noise=0.01))
    own = _with(own, workload="mine")
    assert [each.num_accelerators for each in own] == [8, 16]
    question = Question(workload="mine", accelerator="h100-sxm5-80gb", num_accelerators=size)
    assert (fit(earlier).predict(own, question).outside is None) == is_between


def test_no_evidence_is_no_number():
    earlier, own, _ = _split(_scores())
    with pytest.raises(EvidenceError, match="'mine'"):
        fit(earlier).predict(
            own[:0], Question(workload="mine", accelerator="h100-sxm5-80gb", num_accelerators=8)
        )


def test_a_law_with_batches_wants_the_batch():
    earlier, own, rows = _split(_scores(noise=0.01))
    law = fit(earlier, given_batch=True)
    with pytest.raises(UsageError, match="expected global_batch_samples"):
        law.predict(own, _ask(256))
    found = law.predict(own, _ask(256, batch=48.0 * 256))
    assert found.time_s.value == pytest.approx(rows[3].score_s, rel=0.1)


@pytest.mark.parametrize(("size", "batch"), [(0, None), (8, 0.0), (8, float("nan"))])
def test_impossible_questions_are_refused(size, batch):
    with pytest.raises(UsageError, match="expected"):
        _ask(size, batch=batch)


def test_campaigns_that_are_no_rounds_are_refused():
    with pytest.raises(DataError, match="'sweep-1'"):
        round_key("sweep-1")
    assert sorted(["v10.0", "v4.1", "v4.0"], key=round_key) == ["v4.0", "v4.1", "v10.0"]


@pytest.mark.law
def test_later_rounds_change_nothing_of_the_record_of_earlier_ones():
    scores = _scores(noise=0.1)
    earlier = [each for each in scores if each.campaign != "v2.1"]
    last = [each for each in scores if each.campaign == "v2.1"]
    shuffled = np.random.default_rng(7).permutation([each.score_s for each in last])
    disturbed = best_per_size(
        (
            *earlier,
            *(replace(each, score_s=3 * float(time)) for each, time in zip(last, shuffled, strict=True)),
        )
    )
    past = [one for one in backtest(scores).groups if one.round != "v2.1"]
    assert past == [one for one in backtest(disturbed).groups if one.round != "v2.1"]
    assert past == list(backtest(earlier).groups)


@pytest.mark.law
def test_the_held_out_time_is_seen_by_nobody():
    scores = _scores(noise=0.1)
    disturbed = [
        replace(each, score_s=7 * each.score_s, samples_to_target=1.0, global_batch_samples=1)
        if (each.campaign, each.num_accelerators) == ("v2.1", 256)
        else each
        for each in scores
    ]
    seen, unseen = (
        [(one.predicted_s, one.low_s, one.high_s, one.predicted_samples) for one in backtest(table).groups]
        for table in (scores, disturbed)
    )
    assert seen == unseen


def test_settings_save_the_search_and_give_the_same_answer():
    earlier, own, _ = _split(_scores(noise=0.05))
    law = fit(earlier)
    again = fit(earlier, settings=law.settings())
    assert again.predict(own, _ask(256)).time_s.value == pytest.approx(
        law.predict(own, _ask(256)).time_s.value, rel=0.01
    )
    with pytest.raises(DataError, match="time has 3 numbers; expected 34"):
        fit(earlier, settings={"time": [0.0, 0.0, 0.0]})
    with pytest.raises(DataError, match="without batches"):
        fit(earlier, settings=law.settings(), given_batch=True)


def test_several_sizes_at_once_are_as_one_by_one():
    earlier, own, _ = _split(_scores(noise=0.05))
    law = fit(earlier)
    questions = [_ask(size) for size in (8, 64, 256)]
    together = [one.time_s.value for one in law.predict_all(own, questions)]
    assert together == pytest.approx([law.predict(own, question).time_s.value for question in questions])


@pytest.mark.law
def test_courses_of_the_curve_surround_the_answer_and_stay_the_same_curves():
    earlier, own, _ = _split(_scores(noise=0.05), num_known=3)
    law = fit(earlier)
    sizes = np.array([8.0, 64.0, 100.0, 512.0])
    curves_s = law.curves_s(own, _ask(1), sizes)
    assert curves_s.shape == (500, 4)
    for column, size in enumerate((8, 64, 100, 512)):
        time = law.predict(own, _ask(size)).time_s
        assert time.low < np.median(curves_s[:, column]) < time.high
    assert law.curves_s(own, _ask(1), sizes[1:2])[:, 0] == pytest.approx(curves_s[:, 1])
    widths = np.log(curves_s).std(axis=0)
    assert widths[3] > widths[1]
