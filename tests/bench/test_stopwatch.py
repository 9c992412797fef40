"""Marks of real steps: what they sum to, which gradients are looked at, and what a profile tells."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from equipoise.bench.devices import device
from equipoise.bench.phases import BACKWARD, EXPOSED, PARTS, STEP, TOTAL, largest_gap, with_share_exposed
from equipoise.bench.stopwatch import (
    APART,
    BACKWARDS,
    CommunicationProfile,
    Profiled,
    ProfileEvent,
    Stopwatch,
    exchanges,
    profiled,
)
from equipoise.bench.summary import is_steady
from equipoise.bench.training import MethodSetup, Trainee
from equipoise.bench.training.steps import TrainingStep


@pytest.fixture
def alone(tmp_path):
    """A process group of one rank, which is enough for DistributedDataParallel."""
    dist.init_process_group("gloo", init_method=(tmp_path / "meet").as_uri(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Branches(nn.Module):
    """Two layers, one after the other, in an order that can be turned round: the last gradient is then another."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.turned = False

    def forward(self, values):
        for layer in reversed(self.layers) if self.turned else self.layers:
            values = layer(values)
        return values


def stepping(model, *, num_accumulated=1, wrapped=True):
    """A stopwatch over steps as a method makes them, told that there is somebody to exchange with."""

    def batches():
        while True:
            yield (torch.ones(4, 8),)

    subject = Trainee(
        model=model,
        batches=batches(),
        loss=lambda module, batch: module(*batch).square().mean(),
        num_samples=lambda batch: len(batch[0]),
    )
    module = DistributedDataParallel(model) if wrapped else model
    setup = MethodSetup(name="ddp", trainee=subject, world_size=2, argument=None)
    step = TrainingStep(setup, module, num_accumulated=num_accumulated)
    return Stopwatch(step, subject, device("cpu"), num_ranks=2), step


@pytest.mark.usefixtures("alone")
def test_after_warm_up_only_the_last_gradient_is_looked_at():
    watch, step = stepping(Branches())
    assert exchanges(step, 2) == BACKWARDS
    assert [len(lap.ready) for lap in watch.run(3)] == [4, 4, 4]
    watch.settle()
    laps = watch.run(3)
    assert [len(lap.ready) for lap in laps] == [1, 1, 1]
    splits = [watch.split(lap) for lap in laps]
    assert largest_gap(splits) < 1e-6
    assert all(split[EXPOSED] > 0 for split in splits)
    watch.release()
    assert [len(lap.ready) for lap in watch.run(2)] == [0, 0]


@pytest.mark.usefixtures("alone")
def test_a_last_gradient_that_changes_leaves_exposed_communication_unknown():
    model = Branches()
    watch, _ = stepping(model)
    watch.run(3)
    watch.settle()
    timed = watch.run(2)
    watch.observe_all()
    seen = Profiled(communication_s=1e-4, exposed_s=1e-4)
    same = watch.with_communication(timed, watch.run(2), seen)
    assert len(same) == 2
    assert all(split[TOTAL] >= split[EXPOSED] > 0 for split in same)
    model.turned = True
    other = watch.with_communication(timed, watch.run(2), seen)
    assert len(other) == 2
    assert all(EXPOSED not in split and TOTAL not in split for split in other)
    for before, after in zip(same, other, strict=True):
        assert after[BACKWARD] == pytest.approx(before[BACKWARD] + before[EXPOSED])
        assert after[STEP] == before[STEP]


@pytest.mark.usefixtures("alone")
def test_passes_that_only_add_up_gradients_communicate_nothing():
    watch, _ = stepping(Branches(), num_accumulated=3)
    watch.run(3)
    watch.settle()
    timed = watch.run(6)
    watch.observe_all()
    seen = Profiled(communication_s=1e-3, exposed_s=0.0)
    found = watch.with_communication(timed, watch.run(3), seen)
    assert [split[TOTAL] > 0 for split in found] == [False, False, True] * 2
    assert [split[EXPOSED] > 0 for split in found] == [False, False, True] * 2


@pytest.mark.usefixtures("alone")
def test_of_short_steps_few_are_marked_and_the_others_are_timed_as_a_whole():
    watch, _ = stepping(Branches(), num_accumulated=2)
    watch.run(4)
    watch.settle()
    timed = watch.run(14, every=3, period=2)
    assert [lap.is_marked for lap in timed] == ([True] * 2 + [False] * 4) * 2 + [True] * 2
    assert [len(lap.ready) for lap in timed if not lap.is_marked] == [0] * 8
    watch.observe_all()
    found = watch.with_communication(timed, watch.run(2), Profiled(communication_s=1e-4, exposed_s=0.0))
    for lap, split in zip(timed, found, strict=True):
        assert split[STEP] == pytest.approx(lap.host_s)
        assert (set(split) == {STEP}) != lap.is_marked
    assert largest_gap([split for split in found if len(split) > 1]) < 1e-6


def test_a_bare_model_exchanges_apart_from_its_passes():
    watch, step = stepping(Branches(), wrapped=False)
    assert exchanges(step, 2) == APART
    laps = watch.run(2)
    assert [len(lap.ready) for lap in laps] == [0, 0]
    (split, _) = watch.with_communication(laps, watch.run(2), Profiled(communication_s=1.0, exposed_s=1.0))
    assert split[EXPOSED] == split[TOTAL] == 0.0


@pytest.mark.law
@given(st.lists(st.floats(0.001, 10.0), min_size=5, max_size=5), st.floats(0.0, 1.0))
def test_a_share_that_is_exposed_leaves_the_step_whole(lengths, share):
    names = [name for name in PARTS if name != EXPOSED]
    split = {**dict(zip(names, lengths, strict=True)), STEP: sum(lengths)}
    assert largest_gap([with_share_exposed(split, share)]) < 1e-6


def test_kernels_of_a_device_tell_communication_and_what_hid_it():
    # As Kineto records them: two kernels of NCCL, one of them old, computing beside one of them.
    found = profiled(
        [
            ProfileEvent(
                name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", span=(1.0, 3.0), on_device=True
            ),
            ProfileEvent(
                name="ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", span=(5.0, 6.0), on_device=True
            ),
            ProfileEvent(name="ampere_sgemm_128x64_nn", span=(0.0, 2.5), on_device=True),
            ProfileEvent(name="Memcpy HtoD (Pageable -> Device)", span=(5.5, 5.75), on_device=True),
            ProfileEvent(name="FSDP::all_gather", span=(0.0, 9.0), on_device=True, is_annotation=True),
            ProfileEvent(name="nccl:all_reduce", span=(0.5, 7.0), on_device=True, is_annotation=True),
            ProfileEvent(name="aten::mm", span=(0.0, 9.0)),
        ]
    )
    assert (found.communication_s, found.exposed_s) == (3.0, 1.25)


def test_threads_of_gloo_do_not_compute():
    found = profiled(
        [
            ProfileEvent(name="gloo:all_reduce", span=(1.0, 4.0), thread=7),
            ProfileEvent(name="aten::copy_", span=(1.0, 2.0), thread=7),
            ProfileEvent(name="aten::mm", span=(0.0, 3.0), thread=1),
            ProfileEvent(name="FSDP::post_backward_reduce", span=(3.0, 4.0), thread=1),
        ]
    )
    assert (found.communication_s, found.exposed_s) == (3.0, 1.0)


@pytest.mark.usefixtures("alone")
def test_a_profile_of_gloo_sees_its_collectives():
    tensor = torch.ones(2**20)
    profile = CommunicationProfile(device("cpu"))
    assert profile.begin()
    began_s = time.perf_counter()
    for _ in range(3):
        dist.all_reduce(tensor)
    took_s = time.perf_counter() - began_s
    found = profile.ended()
    assert 0 < found.exposed_s <= found.communication_s <= took_s


def test_an_exchange_in_every_eighth_step_is_no_trend():
    rhythm = [3.0 if number % 8 == 7 else 1.0 for number in range(12)]
    kinds = [number % 8 == 7 for number in range(12)]
    assert is_steady(rhythm, kinds)
    assert not is_steady([value * (1.3 - 0.025 * number) for number, value in enumerate(rhythm)], kinds)


def test_a_sure_trend_too_small_to_matter_is_steady_and_a_slow_start_is_not():
    assert is_steady([1.0 - 0.001 * number for number in range(12)])
    start = [1.0 + 2.0 * 0.9**number for number in range(40)]
    assert not is_steady(start[:12])
    assert not is_steady(start)
    assert is_steady([*start, *[1.0] * 40])
