"""Sweeps that `bench` makes of its options: sizes that double, work that is shared or grows, words refused early."""

import pytest

from equipoise.bench.trial import Trial
from equipoise.cli import sweeps
from equipoise.cli.sweeps import Pace, trials_of
from equipoise.errors import UsageError


def planned(**changes):
    plain = {
        "workloads": ("mlp",),
        "sizes": None,
        "batches": "32",
        "strategies": "ddp",
        "precisions": "fp32",
        "scaling": "strong",
        "device": "cpu",
        "binds_here": True,
        "num_repetitions": 1,
        "num_steps": 20,
        "train_samples": None,
        "learning_rate": None,
        "num_arms": 1,
    }
    return trials_of(**{**plain, **changes})


def sizes(**changes):
    return [trial.num_ranks for trial in planned(**changes)]


@pytest.fixture(autouse=True)
def _six_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(6)))


def test_sizes_double_up_to_the_devices():
    assert sizes() == [1, 2, 4]
    assert sizes(sizes="1,3..", batches="6") == [1, 3, 6]
    assert sizes(sizes="2") == [2]
    # Devices of other machines are not known here.
    assert sizes(binds_here=False) == [1, 2]
    assert sizes(binds_here=False, sizes="16") == [16]


def test_work_is_shared_or_grows():
    def batches(scaling):
        return {c.num_ranks: c.batch_samples for c in planned(sizes="1,2,4", scaling=scaling)}

    assert batches("strong") == {1: 32, 2: 32, 4: 32}
    assert batches("weak") == {1: 32, 2: 64, 4: 128}


def test_whole_numbers_may_be_written_with_a_power_of_ten():
    assert [trial.batch_samples for trial in planned(sizes="1", batches="1e3,1.5e3,8")] == [1000, 1500, 8]


def test_one_rank_runs_once_and_single_runs_on_one_rank():
    trials = planned(sizes="1,2", strategies="single,ddp,fp16")
    assert sorted((c.num_ranks, c.method) for c in trials) == [(1, "single"), (2, "ddp"), (2, "fp16")]


def test_arms_are_trials_of_their_own_and_trainings_have_their_seeds():
    assert len({c.trial_id for c in planned(sizes="1", num_arms=2, num_repetitions=3)}) == 6
    trials = planned(sizes="1", train_samples=64, num_repetitions=3)
    assert [c.seed for c in trials] == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": "1,0"}, "--sizes '0'"),
        ({"sizes": "8"}, "6 cores"),
        ({"sizes": "1.5"}, "'1.5'"),
        ({"batches": "1.5e0"}, "'1.5e0'"),
        ({"batches": "1e99"}, "'1e99'"),
        ({"sizes": "1,2..", "binds_here": False}, "1,2.."),
        ({"batches": ""}, "expected 1 to 100 values"),
        ({"batches": "9" * 40}, "9" * 40),
        ({"batches": "3", "sizes": "2"}, "multiple of 2"),
        ({"strategies": "ddpp"}, " ddp"),
        ({"strategies": "accumulate"}, "write accumulate:4"),
        ({"precisions": "fp8"}, "fp32, tf32, bf16"),
        ({"workloads": ("resnet",)}, "resnet50"),
        ({"workloads": ("[red]\x1b[31m:f",)}, "expected module:function"),
        ({"workloads": ("no_such_module_here:f",)}, "'no_such_module_here'"),
        ({"train_samples": 8}, "a batch, 32"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(changes, words):
    with pytest.raises(UsageError) as refused:
        planned(**changes)
    assert words in str(refused.value)


def test_more_trials_than_anybody_waits_for_are_refused(monkeypatch):
    monkeypatch.setattr(sweeps, "_MOST_TRIALS", 3)
    with pytest.raises(UsageError, match=r"\b4 runs; .*\b3"):
        planned(sizes="1,2", num_repetitions=2)


def test_time_left_goes_by_runs_of_as_many_ranks():
    one, two = (Trial(workload="mlp", method="ddp", num_ranks=n, batch_samples=8) for n in (1, 2))
    pace = Pace()
    assert pace.left_s([one]) is None
    pace.add(one, 10.0)
    assert pace.left_s([one, two]) == 20.0
    pace.add(two, 40.0)
    assert pace.left_s([one, two, two]) == 90.0
