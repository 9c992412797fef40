"""A watched loop on one rank: each phase where it belongs, nothing left behind, nothing lost."""

import doctest
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from command_line import prepared_python
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace
from waiting import awaited

pytest.importorskip("torch")

import torch
from torch import nn
from torch.optim import optimizer as optimizers

import equipoise
from equipoise.bench.devices import device
from equipoise.bench.phases import (
    BACKWARD,
    EXPOSED,
    FORWARD,
    INPUT,
    OPTIMIZER,
    PARTS,
    REST,
    STEP,
    Loop,
    phases_of,
)
from equipoise.bench.stopwatch import Stopwatch
from equipoise.bench.trial import Trial
from equipoise.bench.trial_rank import prepared_training
from equipoise.bench.watching import RankEnd, RankRecord, RecordedStep, rank_record, runs_in
from equipoise.bench.watching.rows import combine_ranks
from equipoise.bench.watching.user_loop import is_recorded, recorded_share
from equipoise.errors import DataError, UsageError

SLEPT_S = 0.01


class Clock:
    """Moments that a test names."""

    def __init__(self):
        self.at = 0.0

    def now(self):
        return self.at

    def moments(self, stamps):
        return [stamp - stamps[0] for stamp in stamps]


def phases_after(*events, asked=True, every=1):
    """The phases of the steps of a loop with these events, one a second; of each so many but one None."""
    clock, steps = Clock(), []

    def take(step):
        steps.append(step)
        loop.is_counting = (len(steps) + 1) % every != 0

    loop = Loop(clock.now, on_step=take)
    loop.is_counting = every > 1
    trains, evaluates = nn.Linear(1, 1), nn.Linear(1, 1).eval()
    can = {
        "asked": loop.next_batch,
        "came": lambda: loop.batch_fetched(4),
        "forward": lambda: loop.forward(trains, records=True),
        "no_grad": lambda: loop.forward(evaluates, records=False),
        "frozen": lambda: loop.forward(evaluates, records=True),
        "backward": loop.backward_begins,
        "passed": loop.backward_ended,
        "ready": loop.ready,
        "optimizer": loop.optimizer_begins,
        "updated": loop.optimizer_ended,
        "pause": loop.pause,
        "go on": loop.go_on,
        "left": loop.between,
        "anew": loop.begin_anew,
        "cut": loop.cut,
    }
    for event in events:
        can[event]()
        clock.at += 1.0
    if asked:
        loop.next_batch()
    return [step and phases_of(step, clock.moments) for step in steps]


ONE = ("asked", "came", "forward", "backward", "ready", "passed", "optimizer", "updated")


def test_a_plain_step_has_a_second_of_every_phase():
    (split,) = phases_after(*ONE)
    assert split == {
        INPUT: 1.0,
        FORWARD: 1.0,
        BACKWARD: 1.0,
        EXPOSED: 1.0,
        OPTIMIZER: 1.0,
        REST: 3.0,  # once the batch has come, after the backward pass, after the update
        STEP: 8.0,
    }


def test_accumulated_passes_are_one_step():
    micro = ("asked", "came", "forward", "backward", "passed")
    (split,) = phases_after(*micro, *micro, "optimizer", "updated")
    assert (split[INPUT], split[FORWARD], split[OPTIMIZER], split[STEP]) == (2.0, 2.0, 1.0, 12.0)


def test_evaluation_belongs_to_no_step():
    first, second = phases_after(*ONE, "no_grad", "no_grad", *ONE)
    assert first == second


def test_evaluation_after_the_batch_has_come_is_taken_out():
    (split,) = phases_after("asked", "came", "no_grad", "no_grad", *ONE[2:])
    assert split == phases_after(*ONE)[0]


def test_metrics_without_gradients_stay_within_their_step():
    (split,) = phases_after(
        "asked", "came", "forward", "no_grad", "backward", "passed", "optimizer", "updated"
    )
    assert split[FORWARD] == 2.0


def test_training_in_evaluation_mode_counts_and_evaluating_with_gradients_does_not():
    (frozen,) = phases_after("asked", "came", "frozen", *ONE[3:])
    assert frozen == phases_after(*ONE)[0]
    (split,) = phases_after(*ONE, "frozen")
    assert split[STEP] == 8.0


@pytest.mark.law
@given(st.floats(1e-6, 10.0), st.floats(1e-6, 10.0), st.integers(1, 10**6))
def test_of_two_ranks_the_slower_records_what_the_faster_does(step_s, other_s, number):
    faster, slower = (recorded_share(each) for each in sorted((step_s, other_s)))
    assert is_recorded(number, slower) or not is_recorded(number, faster)
    assert is_recorded(number, 1.0)


@pytest.mark.parametrize("share", [1 / 2, 1 / 4, 1 / 16, 1 / 32, 1 / 64])
def test_what_a_loop_does_every_so_many_steps_is_met_as_often_as_it_happens(share):
    recorded = np.array([is_recorded(number, share) for number in range(100_000)])
    met = [recorded[first::period] for period in range(1, 129) for first in range(period)]
    found, expected = np.array([[each.sum(), share * len(each)] for each in met]).T
    assert len(met) == 128 * 129 / 2
    # Five standard deviations of independent draws.
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected)).all()


def test_of_many_short_steps_some_are_recorded_and_hooks_are_off_in_the_others():
    subject = nn.Linear(4, 2)
    optimizer, plain, seen_hooks = sgd(subject), hooks_of(subject)[:2], []
    with equipoise.watch(subject, num_steps=501) as seen:
        for batch in seen.batches([(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))] * 600):
            update(subject, optimizer, batch)
            seen_hooks.append(hooks_of(subject)[:2])
    later = [number for number in seen.result.numbers if number > 64]
    assert later[-1] == 501
    assert 3 <= len(later) < 250
    assert seen.result.num_counted == 501 - 64 - len(later)
    # Steps are numbered from 1; the one in which hooks are off is the next.
    assert all((seen_hooks[number - 1] == plain) == (number not in later) for number in range(66, 601))
    assert seen.result.steps
    for step in seen.result.steps:
        assert sum(step[name] for name in PARTS) == pytest.approx(step[STEP])


# What steps do between their batch and their update.
DONE = (
    ("forward", "backward", "ready", "passed"),
    ("frozen", "backward", "passed"),
    ("frozen",),
    ("no_grad",),
    ("forward", "no_grad"),
    ("pause", "forward", "go on"),
    ("left",),
    ("optimizer", "updated"),
    ("optimizer", "forward", "backward", "passed", "updated"),
    ("backward", "optimizer", "updated", "passed"),
)


@pytest.mark.law
@given(st.lists(st.lists(st.sampled_from(DONE), max_size=6), min_size=1, max_size=9), st.integers(1, 4))
def test_a_recorded_step_is_the_same_whatever_was_counted_before_it(done, every):
    events = [
        event
        for step in done
        for event in ("asked", "came", *(each for part in step for each in part), "optimizer", "updated")
    ]
    found = phases_after(*events, every=every)
    assert len(found) == len(done)
    expected = phases_after(*events)
    assert found == [split if number % every == 0 else None for number, split in enumerate(expected, 1)]


def test_a_closure_runs_its_passes_within_the_update():
    (split,) = phases_after("asked", "came", "optimizer", "forward", "backward", "passed", "updated")
    assert (split[FORWARD], split[BACKWARD], split[OPTIMIZER]) == (1.0, 1.0, 2.0)


def test_updates_within_the_backward_pass_stay_within_it():
    (split,) = phases_after("asked", "came", "forward", "backward", "optimizer", "updated", "passed")
    assert (split[BACKWARD], split[OPTIMIZER]) == (3.0, 0.0)


def test_passes_within_a_backward_pass_belong_to_it():
    (split,) = phases_after(
        "asked", "came", "forward", "backward", "forward", "backward", "passed", "passed", *ONE[6:]
    )
    assert (split[FORWARD], split[BACKWARD]) == (1.0, 4.0)


def test_a_pause_takes_what_happens_within_it():
    (split,) = phases_after(*ONE, "pause", *ONE, "go on")
    assert split == phases_after(*ONE, "left")[0] | {REST: 4.0, STEP: 9.0}


def test_what_is_begun_anew_forgets_what_came_between():
    assert phases_after(*ONE, "cut", "left", "anew", *ONE)[1][STEP] == 9.0


# Real loops.


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def data(num_batches=40, slept_s=0.0):
    for _ in range(num_batches):
        time.sleep(slept_s)
        yield torch.randn(8, 16), torch.randint(0, 4, (8,))


def update(subject, optimizer, batch, *, scale=1.0):
    loss = nn.functional.cross_entropy(subject(batch[0]), batch[1]) * scale
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def sgd(subject):
    return torch.optim.SGD(subject.parameters(), lr=0.1)


def hooks_of(subject):
    """Everything that can be hooked, as it is now."""
    return (
        torch.autograd.backward,
        [len(each._forward_pre_hooks) + len(each._forward_hooks) for each in subject.modules()],
        [len(each._post_accumulate_grad_hooks or ()) for each in subject.parameters()],
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
    )


def test_sleep_appears_in_its_phase_and_parts_sum_to_the_step(tmp_path):
    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            time.sleep(2 * SLEPT_S)
            return self.inner(x)

    class SlowSGD(torch.optim.SGD):
        def step(self, closure=None):
            time.sleep(3 * SLEPT_S)
            super().step(closure)

    asked_s, done_s, evaluated_s = [], [time.perf_counter()], dict.fromkeys(range(1, 31), 0.0)

    def batches():
        for batch in data(30):
            asked_s.append(time.perf_counter())
            time.sleep(SLEPT_S)
            yield batch
        asked_s.append(time.perf_counter())

    subject = Slow()
    optimizer = SlowSGD(subject.parameters(), lr=0.1)
    before = hooks_of(subject)
    with equipoise.watch(subject, out=tmp_path / "mine", name="slow") as seen:
        for number, batch in enumerate(seen.batches(batches()), 1):
            loss = nn.functional.cross_entropy(subject(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(4 * SLEPT_S)
            if number % 5 == 0:
                with torch.no_grad():
                    subject.eval()(batch[0])
                    began_s = time.perf_counter()
                    time.sleep(30 * SLEPT_S)
                    evaluated_s[number] = time.perf_counter() - began_s
                    subject.train()
            done_s.append(time.perf_counter())
    assert hooks_of(subject) == before
    tables = equipoise.watched(tmp_path / "mine")
    (run,) = tables.runs.rows(named=True)
    assert (run["workload"], run["status"], run["origin"]) == ("slow", "success", "measured")
    assert (run["num_accelerators"], run["global_batch_samples"], run["precision"]) == (1, 8, "fp32")
    steps = tables.steps.pivot("phase", index="repetition", values="seconds")
    # How many are warm-up is the machine's: all others are there.
    assert len(steps) == len(seen.result.steps) == 30 - seen.result.num_warm_up > 0
    for name, times in {INPUT: 1, FORWARD: 2, OPTIMIZER: 3, REST: 4}.items():
        assert steps[name].min() >= times * SLEPT_S, name
    assert (steps.select(PARTS).sum_horizontal() - steps[STEP]).abs().max() < 1e-9
    assert any(evaluated_s[number] for number in seen.result.numbers)
    # A step begins after the body before it, ends before the next batch is made, and has no evaluation in it.
    for number, step in zip(seen.result.numbers, seen.result.steps, strict=True):
        assert step[STEP] <= asked_s[number] - done_s[number - 1] - evaluated_s[number]
    assert run["samples_per_s"] == pytest.approx(8 / steps[STEP].mean())
    assert "input" in seen.summary()


def test_phases_agree_with_those_of_the_sweep_in_the_same_loop():
    on, place = device("cpu"), torch.device("cpu")
    trial = Trial(workload="small_cnn", method="single", num_ranks=1, batch_samples=16)
    start = prepared_training(trial, 0, on, place)
    subject, step = start.subject, start.step
    with equipoise.watch(subject.model) as seen:
        watched = replace(subject, batches=iter(seen.batches(subject.batches)))
        stopwatch = Stopwatch(step, watched, on, num_ranks=1)
        laps = [stopwatch.split(each) for each in stopwatch.run(64)]
    numbers = seen.result.numbers
    assert len(numbers) == 64 - seen.result.num_warm_up > 0
    step_s = median(laps[number - 1][STEP] for number in numbers)
    # The sweep's own loop counts `zero_grad` to the optimizer; in somebody else's it cannot be seen.
    for names in ((INPUT,), (FORWARD,), (BACKWARD,), (EXPOSED,), (OPTIMIZER, REST), (STEP,)):
        differences = [
            abs(sum(ours[name] - laps[number - 1][name] for name in names))
            for ours, number in zip(seen.result.steps, numbers, strict=True)
        ]
        assert median(differences) < 0.02 * step_s, names


@pytest.mark.parametrize("kind", ["wrapped", "in place"])
def test_compiled_models_are_seen(kind):
    subject = model()
    before = hooks_of(subject)
    if kind == "wrapped":
        called = torch.compile(subject, backend="eager")
    else:
        subject.compile(backend="eager")
        called = subject
    optimizer = sgd(subject)
    with equipoise.watch(called) as seen:
        for batch in seen.batches(data(26)):
            update(called, optimizer, batch)
    assert seen.result.steps
    assert all(step[FORWARD] > 0 and step[BACKWARD] > 0 for step in seen.result.steps)
    assert hooks_of(subject) == before


def test_skipped_updates_and_short_batches_are_left_out_and_counted():
    subject = model()
    optimizer = sgd(subject)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def batches():
        # Of 43 updates at most 40 are warm-up, however unsteady a busy machine makes them.
        yield from data(41)
        yield torch.full((8, 16), float("inf")), torch.zeros(8, dtype=torch.long)  # no update
        yield from data(1)
        yield torch.randn(3, 16), torch.zeros(3, dtype=torch.long)

    with equipoise.watch(subject) as seen:
        for x, y in seen.batches(batches()):
            scaler.scale(nn.functional.cross_entropy(subject(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert seen.result.num_unlike == 2
    assert seen.result.num_samples == 8
    assert "2 steps" in seen.summary()


def test_several_models_frozen_weights_and_two_updates_a_batch():
    one, two = model(), model()
    one[0].requires_grad_(False)
    first, second = sgd(one), sgd(two)
    with equipoise.watch([one, two]) as seen:
        for batch in seen.batches(data(26)):
            update(one, first, batch)
            update(two, second, batch)
    assert len(seen.result.numbers) + seen.result.num_warm_up == 26


def test_a_loop_without_batches_says_where_steps_end():
    subject = model()
    optimizer = sgd(subject)
    with equipoise.watch(subject, batch_samples=8) as seen:
        for batch in data(26):
            update(subject, optimizer, batch)
            seen.end_step()
    assert len(seen.result.numbers) + seen.result.num_warm_up == 26
    assert INPUT not in seen.result.steps[0]
    assert "samples/s" in seen.summary()


def test_after_so_many_steps_every_hook_is_gone_and_training_goes_on():
    subject = model()
    optimizer = sgd(subject)
    before = hooks_of(subject)
    with equipoise.watch(subject, num_steps=20) as seen:
        hooks = []
        for batch in seen.batches(data(40)):
            update(subject, optimizer, batch)
            hooks.append(hooks_of(subject))
    assert len(hooks) == 40
    assert hooks[21] == before
    assert len(seen.result.numbers) + seen.result.num_warm_up == 20


def test_what_was_seen_before_an_error_is_kept(tmp_path):
    subject = model()
    optimizer = sgd(subject)
    before = hooks_of(subject)

    def fail():
        with equipoise.watch(subject, out=tmp_path) as seen:
            for number, batch in enumerate(seen.batches(data(40))):
                update(subject, optimizer, batch)
                if number == 29:
                    raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        fail()
    assert hooks_of(subject) == before
    tables = equipoise.watched(tmp_path)
    assert tables.runs["status"].to_list() == ["failed: rank 0 raised ValueError: diverged"]
    (path,) = tmp_path.glob("watched/*/rank-0.jsonl")
    assert len(rank_record(path).steps) == 29  # the step that failed has no end
    assert len(tables.steps) > 0


def test_a_loop_that_is_left_early_keeps_its_last_step():
    subject = model()
    optimizer = sgd(subject)
    with equipoise.watch(subject) as seen:
        for number, batch in enumerate(seen.batches(data(40))):
            update(subject, optimizer, batch)
            if number == 25:
                break
            done_s = time.perf_counter()
        left_s = time.perf_counter()
        time.sleep(20 * SLEPT_S)
    assert len(seen.result.numbers) + seen.result.num_warm_up == 26
    assert seen.result.steps[-1][STEP] <= left_s - done_s


def test_two_runs_share_a_folder(tmp_path):
    for name in ("one", "two"):
        subject = model()
        optimizer = sgd(subject)
        with equipoise.watch(subject, out=tmp_path, name=name) as seen:
            for batch in seen.batches(data(26)):
                update(subject, optimizer, batch)
    assert sorted(equipoise.watched(tmp_path).runs["workload"]) == ["one", "two"]
    killed = tmp_path / "watched" / "20260101T000000-aaaaaa"
    killed.mkdir()
    with pytest.warns(UserWarning, match=killed.name):
        assert sorted(equipoise.watched(tmp_path).runs["workload"]) == ["one", "two"]


KILLED = """
import sys, time, torch, equipoise
from equipoise.bench.watching import user_loop
user_loop._FLUSH_S = 0.2
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def batches():
    while True:
        time.sleep(0.01)
        yield torch.randn(2, 4)
with equipoise.watch(model, out="mine", num_steps=100_000) as seen:
    for x in seen.batches(batches()):
        model(x).sum().backward()
        optimizer.step()
"""


def test_a_killed_loop_loses_only_its_last_steps(tmp_path):
    with subprocess.Popen([prepared_python(), "-c", KILLED], cwd=tmp_path) as loop:

        def num_steps():
            paths = tmp_path.glob("mine/watched/*/rank-0.jsonl")
            return sum(path.read_bytes().rpartition(b"\n")[0].count(b'"seconds"') for path in paths)

        assert awaited(lambda: num_steps() > 40, limit_s=60)
        num_written = num_steps()
        loop.send_signal(signal.SIGKILL)
    tables = equipoise.watched(tmp_path / "mine")
    assert [status.startswith("failed: rank 0 ") for status in tables.runs["status"]] == [True]
    assert tables.steps["repetition"].n_unique() > 0
    (path,) = tmp_path.glob("mine/watched/*/rank-0.jsonl")
    assert len(rank_record(path).steps) >= num_written


def test_a_line_that_was_cut_is_dropped(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    step = to_builtins(RecordedStep(step=1, batches=1, samples=2, profiled=False, seconds={STEP: 1.0}))
    whole = json.dumps({"schema": "equipoise.watched/1", "rank": 0, "num_ranks": 1}) + "\n" + json.dumps(step)
    path.write_text(whole + "\n" + json.dumps(step)[:9])
    assert len(rank_record(path).steps) == 1
    path.write_text("{]\n")
    with pytest.raises(DataError, match=r"rank-0.jsonl:1: .*JSON"):
        rank_record(path)


def record(rank, seconds, **about):
    steps = [
        RecordedStep(
            step=n, batches=1, samples=2, profiled=n in (9, 10), seconds={STEP: each, EXPOSED: each / 4}
        )
        for n, each in enumerate(seconds, 1)
    ]
    facts = {"rank": rank, "num_ranks": 2, "conditions": {"host": "here"}, **about}
    return RankRecord(
        about=facts, steps=steps, end=RankEnd(exchanged={"communication_s": 1.0, "step_s": 2.0})
    )


def test_ranks_are_joined_by_their_slowest_and_by_what_all_have_seen():
    one, two = [1.0] * 40, [1.0] * 38
    one[30], two[31] = 3.0, 4.0
    found = combine_ranks([record(0, one), record(1, two)])
    by_number = dict(zip(found.numbers, found.steps, strict=True))
    assert max(found.numbers) == 38
    assert (by_number[31][STEP], by_number[32][STEP], by_number[33][STEP]) == (3.0, 4.0, 1.0)
    assert by_number[32]["communication_total"] == 2.0
    assert by_number[32]["communication_overlapped"] == 1.0
    assert not {9, 10} & set(found.numbers)
    assert (found.num_samples, found.missing_ranks) == (4, [])
    assert combine_ranks([record(0, one)]).missing_ranks == [1]


def test_sharded_models_expose_the_share_of_their_passes_that_the_profile_shows():
    split = {STEP: 4.0, FORWARD: 1.0, BACKWARD: 3.0}
    steps = [
        RecordedStep(step=number, batches=1, samples=2, profiled=number in (9, 10), seconds=split)
        for number in range(1, 31)
    ]
    shared = {"communication_s": 2.0, "step_s": 8.0, "exposed_s": 1.0, "passes_s": 8.0}
    about = {"rank": 0, "num_ranks": 2, "conditions": {"host": "here"}}
    found = combine_ranks([RankRecord(about=about, steps=steps, end=RankEnd(exchanged=shared))])
    assert found.steps[0] == {
        STEP: 4.0,
        FORWARD: 0.875,
        BACKWARD: 2.625,
        EXPOSED: 0.5,
        "communication_total": 1.0,
        "communication_overlapped": 0.5,
    }


@pytest.mark.parametrize("num_workers", [0, 1])
def test_input_is_seen_where_somebody_else_iterates(tmp_path, num_workers):
    num_asked = torch.multiprocessing.get_context("fork").Value("i", 0)

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 26 * 8

        def __getitem__(self, at):
            while num_asked.value <= at // 8:  # a worker must not load ahead: nobody would wait for it
                time.sleep(SLEPT_S / 100)
            time.sleep(SLEPT_S / 4)
            return torch.randn(16), at % 4

    subject = model()
    optimizer = sgd(subject)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=num_workers)
    with equipoise.watch(subject, out=tmp_path) as seen:
        seen.fetches(loader)
        iterator = iter(loader)
        for number in range(26):
            num_asked.value = number + 1
            update(subject, optimizer, next(iterator))
            seen.end_step()
    assert seen.result.num_samples == 8
    # Half of what was slept, in all and in most steps: a worker may begin before the loop waits for it, and on a
    # busy machine the loop may be held back just there, so that a single step waits for less. Warm-up counts: it may
    # leave two steps where the machine is busy.
    (path,) = tmp_path.glob("watched/*/rank-0.jsonl")
    waited_s = [step.seconds[INPUT] for step in rank_record(path).steps]
    assert len(waited_s) >= 20
    assert sum(waited_s) >= 8 * SLEPT_S
    assert median(waited_s) >= SLEPT_S
    assert min(waited_s) > 0.0
    assert "_get_iterator" not in vars(loader)
    assert type(iterator).__module__ == "torch.utils.data.dataloader"


def test_a_full_disk_does_not_end_training(tmp_path):
    subject = model()
    optimizer = sgd(subject)
    with equipoise.watch(subject, out=tmp_path) as seen:
        for batch in seen.batches(data(26)):
            update(subject, optimizer, batch)
        (path,) = tmp_path.glob("watched/*/rank-0.jsonl")
        path.unlink()
        path.mkdir()  # as unwritable as a full disk, also for root
        with pytest.warns(UserWarning, match=r"rank-0\.jsonl: .*written"):
            seen.__exit__(None, None, None)
    assert seen.result.steps


def test_what_cannot_be_watched_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"watch: str; .*torch\.nn\.Module"):
        equipoise.watch(["model"])
    for nothing in (3, None):
        with pytest.raises(UsageError, match=rf"watch: {type(nothing).__name__}; .*torch\.nn\.Module"):
            equipoise.watch(nothing)
    with pytest.raises(UsageError, match=r"num_steps=0\b.* 100,000"):
        equipoise.watch(model(), num_steps=0)
    for batch in (0, -1, 2.5, True, "x", 2**53):
        with pytest.raises(UsageError, match=re.escape(f"batch_samples={batch};")):
            equipoise.watch(model(), batch_samples=batch)
    for number in (20.5, 1e3, "x", None):
        with pytest.raises(UsageError, match=re.escape(f"num_steps={number};")):
            equipoise.watch(model(), num_steps=number)
    with pytest.raises(UsageError, match="name=3"):
        equipoise.watch(model(), name=3)
    for no_path in (3, b"runs"):
        with pytest.raises(UsageError, match=re.escape(str(no_path))):
            equipoise.watch(model(), out=no_path)
    (tmp_path / "sweep.json").touch()
    with pytest.raises(UsageError, match=re.escape(str(tmp_path)) + ".*a sweep"):
        equipoise.watch(model(), out=tmp_path)
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        equipoise.watched(tmp_path)


def test_nothing_is_counted_outside_of_the_block():
    seen = equipoise.watch(model())
    uses = [
        seen.summary,
        lambda: seen.batches([1]),
        lambda: seen.fetches([1]),
        lambda: seen.calls(seen, "summary"),
        lambda: seen.pauses(seen, "summary"),
    ]
    for use in uses:
        with pytest.raises(UsageError, match=r"with equipoise\.watch"):
            use()


def test_numbers_of_numpy_are_written_down(tmp_path):
    subject = model()
    optimizer = sgd(subject)
    with equipoise.watch(subject, out=tmp_path, num_steps=np.int64(20), batch_samples=np.int64(8)) as seen:
        for batch in seen.batches(data(30)):
            update(subject, optimizer, batch)
    (path,) = tmp_path.glob("watched/*/rank-0.jsonl")
    about = rank_record(path).about
    assert (about["num_steps"], about["batch_samples"]) == (20, 8)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("watch", "pip install 'equipoise"),
        ("LightningWatch", "needs PyTorch Lightning"),
        ("TrainerWatch", "install transformers"),
    ],
)
def test_what_is_not_installed_is_named(name, words):
    hidden = "torch" if name == "watch" else "lightning" if name == "LightningWatch" else "transformers"
    code = (
        "import sys, importlib.util as found; real = found.find_spec\n"
        f"found.find_spec = lambda name, *more: None if name == {hidden!r} else real(name, *more)\n"
        f"sys.modules[{hidden!r}] = None\n"
        f"import equipoise; equipoise.{name}('model')"
    )
    python = sys.executable if hidden == "torch" else prepared_python()  # which has loaded torch
    ended = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError" in ended.stderr.splitlines()[-1]
    assert words in ended.stderr


def test_a_summary_without_steps_says_what_to_do():
    with equipoise.watch(model()) as seen:
        pass
    assert "call seen.end_step()" in seen.summary()


def test_the_page_shows_what_comes_out(tmp_path, monkeypatch):
    page = Path(__file__).resolve().parents[2] / "docs" / "measure" / "watch.md"
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 8
    assert result.failed == 0


def test_a_loop_in_which_no_step_ends_keeps_bounded_marks(monkeypatch):
    monkeypatch.setattr("equipoise.bench.phases._MOST_MARKS", 50)
    loop = Loop(time.perf_counter, on_step=lambda _step: None)
    for _ in range(100):
        loop.next_batch()
        loop.batch_fetched(1)
    assert len(loop._names) < 60


def test_runs_stay_in_order_where_the_clock_was_set_back(tmp_path):
    ahead = "20991231T235959-abcdef"  # begun by a clock that was ahead
    for _ in range(2):
        model = nn.Linear(4, 2)
        training = torch.optim.SGD(model.parameters(), lr=0.1)
        with equipoise.watch(model, out=tmp_path) as seen:
            for batch in seen.batches([torch.ones(2, 4)] * 3):
                model(batch).sum().backward()
                training.step()
        if not (tmp_path / "watched" / ahead).exists():
            runs_in(tmp_path)[0].rename(tmp_path / "watched" / ahead)
    first, last = (path.name for path in runs_in(tmp_path))
    assert first == ahead < last
    assert rank_record(tmp_path / "watched" / last / "rank-0.jsonl").end is not None
