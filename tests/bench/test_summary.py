"""Repetitions put together: medians, intervals that hold, cycles, phases that sum, equal arms told apart."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

from equipoise.bench.phases import EXPOSED, PARTS, STEP
from equipoise.bench.summary import (
    ORDER_STATISTICS,
    STUDENT,
    interval_method,
    spread,
    spread_of_steps,
    summaries,
    timed_run,
    uneven,
)
from equipoise.bench.trial import FinishedTrial, SweepProgress, Trial
from equipoise.diagnose.sweeps import called_different, false_differences, judged, lost_s, meanings, swept
from equipoise.errors import DataError
from equipoise.report.pages.sweep import sweep_fields


def split(step_s, exposed=0.0):
    rest = (step_s - exposed) / 4
    return {
        "input": 0.0,
        "forward": rest,
        "backward": 2 * rest,
        EXPOSED: exposed,
        "optimizer": rest,
        "rest": 0.0,
        "step": step_s,
    }


def run(step_s=0.01, *, reason=None, conditions=None, steps=None, exposed=0.0, period=1, **changes):
    trial = Trial(**{"workload": "mlp", "method": "ddp", "num_ranks": 2, "batch_samples": 32, **changes})
    steps = steps or [split(step_s, exposed)] * 4
    result = {"steps": steps, "steady": True, "num_warm_up": 12, "memory_bytes": [5, 7], "period": period}
    return FinishedTrial(
        trial=trial,
        status="failed" if reason else "success",
        reason=reason,
        conditions=conditions or {"host": "h", "launcher": "inprocess"},
        result={} if reason else result,
    )


def single(step_s, **changes):
    return run(step_s, method="single", num_ranks=1, **changes)


def two_planned(folder):
    return SweepProgress(folder=folder, num_planned=2, num_finished=2, is_running=False, left_s=None)


def test_one_repetition_has_no_interval_and_few_have_students():
    assert (spread([0.2]).low, spread([0.2]).high) == (None, None)
    # By hand: logs 0 and 0.2, mean 0.1, standard error 0.1, t(1) at 95 % 12.706.
    found = spread([1.0, 1.2214027581601699])
    assert found.low == pytest.approx(2.718281828459045 ** (0.1 - 1.2706), rel=1e-3)
    assert [interval_method(n) for n in (1, 5, 6)] == [None, STUDENT, ORDER_STATISTICS]


@pytest.mark.parametrize("num_repetitions", [3, 5, 8])
def test_intervals_hold_the_true_median_at_their_level(num_repetitions):
    rng = np.random.default_rng(num_repetitions)
    found = [spread([rng.lognormal(0.0, 0.1) for _ in range(num_repetitions)]) for _ in range(1500)]
    coverage = sum(each.low <= 1.0 <= each.high for each in found) / len(found)
    # Order statistics hold at 99.2 % with 8: the next pair would hold at 93 %.
    assert 0.93 <= coverage <= (0.97 if num_repetitions < 6 else 0.999)


@pytest.mark.parametrize("heavy_tails", [False, True])
def test_equal_arms_are_called_different_no_more_often_than_stated(heavy_tails):
    rng = np.random.default_rng(7)

    def step_s():
        noise = rng.standard_t(3) if heavy_tails else rng.normal()
        return np.exp(0.02 * noise)

    called = [
        called_different([step_s() for _ in range(4)], [step_s() for _ in range(4)]) for _ in range(3000)
    ]
    # 5 % is meant; Welch's test of 4 against 4 is a little careful, and more so where tails are heavy.
    assert 0.02 <= sum(called) / len(called) <= 0.055


def test_a_real_difference_is_found():
    assert called_different([1.00, 1.01, 0.99], [1.10, 1.11, 1.09])


def test_an_a_a_sweep_tells_its_own_rate():
    rng = np.random.default_rng(3)
    finished = [
        run(0.01 * rng.lognormal(0.0, 0.02), repetition=repetition, arm=arm, batch_samples=batch)
        for batch in range(2, 82, 2)
        for repetition in range(1, 5)
        for arm in (1, 2)
    ]
    found = false_differences(summaries(finished))
    assert found.num_compared == 40
    assert found.num_different <= 6
    assert found.rate.low <= 0.05 <= found.rate.high
    assert found.are_arms
    # Without arms of their own, halves of four repetitions are compared; three have no two such halves.
    halves = false_differences(summaries([one for one in finished if one.trial.arm == 1]))
    assert (halves.num_compared, halves.are_arms) == (40, False)
    few = [one for one in finished if one.trial.arm == 1 and one.trial.repetition < 4]
    assert false_differences(summaries(few)) is None


def test_steps_that_were_timed_as_a_whole_count_for_the_step_and_not_for_its_phases():
    found = timed_run(run(steps=[split(0.05, exposed=0.01), {STEP: 0.04}, {STEP: 0.04}]))
    assert (found.step_s, found.median_step_s, found.num_steps) == (0.04, 0.04, 3)
    assert found.shares[EXPOSED] == pytest.approx(0.2)
    assert sum(found.shares[name] for name in PARTS) == pytest.approx(1.0)


def test_steps_of_a_method_with_cycles_are_of_whole_cycles():
    cheap, dear = split(0.01), split(0.05, exposed=0.04)
    found = timed_run(run(steps=[cheap, cheap, cheap, dear] * 3, method="localsgd:4", period=4))
    assert (found.step_s, found.median_step_s) == pytest.approx((0.02, 0.02))
    assert found.shares[EXPOSED] == pytest.approx(0.5)
    alone = timed_run(run(steps=[cheap, cheap, cheap, dear] * 3))
    assert (alone.step_s, alone.median_step_s) == pytest.approx((0.02, 0.01))


def test_a_run_that_stalls_now_and_then_takes_its_time_over_its_steps():
    """A user's run: 288 steps in 10.05 s, most of them 9.56 ms."""
    stalled_s = (10.05 - 252 * 0.00956) / 36
    steps = ([0.00956] * 7 + [stalled_s]) * 36
    assert len(steps) == 288
    found = spread_of_steps(steps)
    assert found.value == pytest.approx(10.05 / 288)
    assert found.low < found.value < found.high < 1.5 * found.value
    assert uneven(steps) == pytest.approx(10.05 / 288 / 0.00956)
    assert uneven([0.01, 0.012] * 6) is None


def test_phases_of_a_configuration_sum_to_its_step():
    runs = [run(0.01 * n, exposed=0.001 * n * n, repetition=n) for n in (1, 2, 3)]
    (found,) = summaries(runs)
    assert sum(found.phases[name] for name in PARTS) == pytest.approx(found.step_s.value)
    assert found.step_s.value == pytest.approx(0.02)


def test_repetitions_under_unlike_conditions_are_not_pooled():
    other = {"host": "h", "launcher": "torchrun"}
    with pytest.raises(DataError, match="launcher='inprocess' and 'torchrun'"):
        summaries([run(repetition=1), run(repetition=2, conditions=other)])


def test_trainings_are_put_together_in_the_document_as_on_the_page(tmp_path):
    """Of two losses the median is the root of their product; Student's factor of one degree is 12.71."""
    curve = [{"samples": 0, "seconds": 0.0, "loss": 2.3, "accuracy": 0.1}]
    runs = []
    for n, loss in enumerate((0.30, 0.34), 1):
        one = run(repetition=n, seed=n, train_samples=64)
        ended = {"samples": 64, "seconds": 1.5, "loss": loss, "accuracy": None}
        runs.append(replace(one, result={"curve": [*curve, ended]}))
    found = swept(two_planned(tmp_path), runs, settings={})
    (told,) = [each["training"] for each in sweep_fields(found)["configurations"]]
    middle, factor = (0.30 * 0.34) ** 0.5, (0.34 / 0.30) ** (12.706 / 2)
    interval = {"median": middle, "low": middle / factor, "high": middle * factor}
    assert told["loss"] == {
        **{name: pytest.approx(value, rel=1e-3) for name, value in interval.items()},
        "method": STUDENT,
    }
    assert (told["num_seeds"], told["num_samples"], told["accuracy"]) == (2, 64, None)
    assert found.meanings == ()


def test_a_few_values_that_may_have_no_logarithm_have_a_median_and_no_interval():
    """A user's loss may be below zero, and an accuracy zero."""
    for values, middle in (([-2.0, -1.0, -1.5], -1.5), ([0.0, 0.1], 0.05)):
        found = spread(values)
        assert (found.value, found.low, found.high) == (pytest.approx(middle), None, None)


def test_trainings_of_other_seeds_are_repetitions_and_timed_ones_are_not():
    assert len(summaries([run(repetition=1, seed=1), run(repetition=2, seed=2)])) == 2
    trained = [run(repetition=n, seed=n, train_samples=64) for n in (1, 2)]
    assert len(summaries(trained)) == 1


def test_an_outlying_repetition_is_kept_and_counted():
    steps = [0.0100, 0.0101, 0.0099, 0.0102, 0.0098, 0.0300]
    (found,) = summaries([run(step_s, repetition=n) for n, step_s in enumerate(steps, 1)])
    assert found.outlying == (False, False, False, False, False, True)
    assert found.step_s.high == pytest.approx(0.03)


def test_speedup_is_against_one_device_at_the_same_work():
    # Strong: 32 samples take one rank 10 ms and two 8 ms. Weak: a rank's 16 samples took one 6 ms.
    runs = [single(0.010), single(0.006, batch_samples=16), run(0.008)]
    strong = judged(summaries(runs), scaling="strong")
    weak = judged(summaries(runs), scaling="weak")
    both = [each for judgements in (strong, weak) for each in judgements if not each.is_alone]
    assert [each.speedup.value for each in both] == pytest.approx([10 / 8, 2 * 6 / 8])
    assert [each.efficiency for each in both] == pytest.approx([0.625, 0.75])
    assert both[0].speedup.low is None


def test_what_a_step_loses_is_split_by_phase_and_sums():
    alone, two = summaries([single(0.010), run(0.008, exposed=0.002)])
    assert alone.trial.num_ranks == 1
    found = lost_s(two, alone)
    assert sum(found.values()) == pytest.approx(0.008 - 0.010 / 2)
    assert found[EXPOSED] == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("step_s", "words"),
    [
        (0.0051, r"faster .*\bddp .*\b2 ranks .*\b32 .*\b1\.96x"),
        (0.0200, r"slower .*\bddp .*\b2 ranks .*\b32 .*\b0\.50x"),
        (0.0101, r"significant .*\bddp .*\b2 ranks .*\b32 .*\b0\.99x"),
    ],
)
def test_the_meaning_is_said_in_words(step_s, words):
    noise = (0.98, 1.0, 1.02)
    runs = [
        make(base * by, repetition=n)
        for make, base in ((single, 0.01), (run, step_s))
        for n, by in enumerate(noise, 1)
    ]
    (found,) = meanings(judged(summaries(runs), scaling="strong"))
    assert re.search(words, found)


def test_exposed_communication_is_blamed_where_it_is_to_blame():
    runs = [single(0.010), run(0.012, exposed=0.006)]
    said = " ".join(meanings(judged(summaries(runs), scaling="strong")))
    assert re.search(r"exposed communication \(85\.7 %\)", said)
    assert "measured once" in said


def test_a_run_with_stalls_is_named_with_how_many_times_its_median_it_took(tmp_path):
    """Nine steps of 10 ms and one of 110 ms: 20 ms on average."""
    stalls = run(steps=[split(0.01)] * 9 + [split(0.11)])
    found = swept(two_planned(tmp_path), [single(0.01), stalls], settings={})
    assert re.search(r"\b1 of 2\b.*\b2\.0\b", found.meanings[0])


def test_less_than_half_is_not_called_most():
    """Of 7 ms above perfect scaling the backward pass has 5 - 2.5 = 2.5: 35.7 %."""
    runs = [single(0.010), run(0.012, exposed=0.002)]
    said = " ".join(meanings(judged(summaries(runs), scaling="strong")))
    assert "35.7 %" in said
    assert "most" not in said


def test_a_sweep_without_a_run_on_one_device_says_so(tmp_path):
    found = swept(two_planned(tmp_path), [run(), single(0.01, reason="no")], settings={})
    (several,) = (each for each in found.judgements if each.summary.timed)
    assert several.speedup is None
    assert "one device" in found.meanings[0]
    assert len(found.failed) == 1


@pytest.mark.parametrize("step_s", [1e308, 1e-320, 0.0, float("nan"), True])
def test_steps_that_no_step_takes_are_refused(step_s):
    with pytest.raises(DataError):
        timed_run(run(steps=[{STEP: 0.04}, {STEP: step_s}]))
