"""Steps predicted from those of one device: limits, bytes by hand, and the limits of the evidence."""

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from equipoise.bench.sweep import INTERFERENCE_SCHEMA as SCHEMA
from equipoise.bench.training import METHODS
from equipoise.diagnose.predicted_steps import (
    ExchangeCosts,
    Messages,
    MethodWork,
    OneDevice,
    ShapedGradient,
    Slowed,
    exchange_costs,
    predict_step,
)
from equipoise.errors import DataError, EvidenceError

MIB = 2**20
TEXTS = [
    "single",
    "ddp",
    "ddp:1",
    "static_graph",
    "fsdp",
    "accumulate:4",
    "fp16",
    "bf16",
    "powersgd:2",
    "topk:0.01",
    "localsgd:8",
    "localsgd_fp16:8",
    "diloco:8",
    "diloco_fp16:8",
]
# Four weights of 1024 x 1024, 4 MiB each, in the order in which their gradients are ready; one of statistics.
ONE = OneDevice(
    workload="four",
    phases={
        16: {
            "input": 0.001,
            "forward": 0.01,
            "backward": 0.02,
            "optimizer": 0.004,
            "rest": 0.0,
            "step": 0.035,
        },
        32: {
            "input": 0.001,
            "forward": 0.02,
            "backward": 0.04,
            "optimizer": 0.004,
            "rest": 0.0,
            "step": 0.065,
        },
    },
    steps_s={16: (0.035,) * 5, 32: (0.065,) * 5},
    gradients=tuple(
        ShapedGradient(shape=(1024, 1024), grad_bytes=4 * MIB, dtype="float32", ready_fraction=share)
        for share in (0.25, 0.5, 0.75, 1.0)
    ),
    buffers_bytes={"float32": 4096},
)


def costs(*, byte_per_s, latency_s=0.0, work_s=0.0):
    sizes = tuple(2.0**power for power in range(3, 30))
    seconds = tuple(latency_s + size / byte_per_s for size in sizes)
    messages = Messages(
        payload_bytes=sizes, alone_s=seconds, overlapped_s=seconds, core_share=(0.0,) * len(sizes)
    )
    work = MethodWork(fixed_s=work_s, tensor_s=0.0, gradient_bytes=(MIB,), copying_s=(0.0,))
    return ExchangeCosts(
        num_ranks=2,
        messages={"all_reduce": messages, "all_gather": messages},
        method_work=dict.fromkeys(("ddp", "fp16", "powersgd:2", "topk:0.01"), work),
    )


def _predicted(text, *, batch=32, one=ONE, **of):
    return predict_step(text, num_ranks=2, batch_samples=batch, one=one, costs=costs(**of))


def test_every_method_can_be_predicted():
    assert {text.partition(":")[0] for text in TEXTS} == {each.name for each in METHODS}


@pytest.mark.law
@pytest.mark.parametrize("text", [text for text in TEXTS if text not in {"single", "accumulate:4", "fsdp"}])
def test_without_a_network_a_step_is_that_of_one_device_at_its_share(text):
    found = _predicted(text, byte_per_s=1e18)
    assert found.step_s.value == pytest.approx(0.035, rel=1e-6)
    assert found.samples_per_s == pytest.approx(32 / 0.035, rel=1e-6)


@pytest.mark.law
def test_what_only_some_steps_do_is_spared_in_others():
    # Three of four steps update nothing; of two ranks with shards, each updates half.
    assert _predicted("accumulate:4", byte_per_s=1e18).step_s.value == pytest.approx(0.032, rel=1e-6)
    assert _predicted("fsdp", byte_per_s=1e18).step_s.value == pytest.approx(0.033, rel=1e-6)


@pytest.mark.law
@given(text=some.sampled_from(TEXTS[1:]), rate=some.floats(1e6, 1e12), faster=some.floats(1.0, 1e3))
def test_a_faster_link_never_slows_a_step(text, rate, faster):
    slow, fast = (_predicted(text, byte_per_s=each, latency_s=1e-4) for each in (rate, rate * faster))
    assert fast.step_s.value <= slow.step_s.value * (1 + 1e-9)
    assert fast.sent_bytes == slow.sent_bytes


WHOLE = 16 * MIB


@pytest.mark.parametrize(
    ("text", "sent", "messages"),
    [
        # Buckets: the first weight fills 1 MiB, the three others fit into one of 25 MiB; and the statistics.
        ("ddp", WHOLE + 4096, 3),
        ("ddp:4", WHOLE + 4096, 5),
        ("ddp:100", WHOLE + 4096, 2),
        ("static_graph", WHOLE + 4096, 3),
        ("fp16", WHOLE / 2 + 4096, 3),
        ("accumulate:4", (WHOLE + 4096) / 4, 3 / 4),
        # Factors of rank 2: 1024 x 2 left and as many right, of each of four.
        ("powersgd:2", 2 * 4 * 1024 * 2 * 4 + 4096, 3),
        # One value in a hundred of 2**20 and of 3 x 2**20, rounded up, with its place, from each of two.
        ("topk:0.01", 2 * 8 * (10486 + 31458) + 4096, 3),
        ("localsgd:8", (WHOLE + 4096) / 8, 1 / 8),
        ("diloco_fp16:8", (WHOLE + 4096) / 16, 1 / 8),
    ],
)
def test_bytes_and_messages_of_a_step_by_hand(text, sent, messages):
    found = _predicted(text, byte_per_s=1e9)
    assert found.sent_bytes == pytest.approx(sent)
    assert found.num_messages == pytest.approx(messages)


def test_a_step_by_hand():
    # 100 MB/s: 4 MiB take 41.9 ms from a quarter of 20 ms on, 12 MiB take 125.8 ms then; statistics 0.04 ms.
    found = _predicted("ddp", byte_per_s=1e8)
    assert found.step_s.value == pytest.approx(0.035 - 0.02 + 0.005 + WHOLE / 1e8 + 4096 / 1e8, rel=1e-3)


def test_one_bucket_overlaps_with_nothing():
    split, whole = (_predicted(text, byte_per_s=1e9) for text in ("ddp:4", "ddp:100"))
    assert whole.exposed_s == pytest.approx((WHOLE + 4096) / 1e9, rel=1e-6)
    assert split.exposed_s < whole.exposed_s


def test_ranks_wait_for_the_slowest():
    uneven = replace(ONE, steps_s={16: (0.035, 0.035, 0.035, 0.070, 0.070)})
    assert _predicted("ddp", byte_per_s=1e18, one=uneven).waiting_s > 0
    assert _predicted("localsgd:8", byte_per_s=1e18, one=uneven).waiting_s < 0.01


def test_beyond_what_was_measured_nothing_is_predicted():
    with pytest.raises(EvidenceError, match="batches 16 to 32 were measured") as raised:
        _predicted("ddp", batch=128, byte_per_s=1e9)
    (missing,) = raised.value.missing
    assert missing.endswith("batch 64")
    with pytest.raises(EvidenceError, match=r"4 ranks; .*\b2\b"):
        predict_step("ddp", num_ranks=4, batch_samples=64, one=ONE, costs=costs(byte_per_s=1e9))
    large = replace(ONE, gradients=(replace(ONE.gradients[0], grad_bytes=2**34),))
    with pytest.raises(EvidenceError, match="16384 MiB"):
        _predicted("ddp", one=large, byte_per_s=1e9)


def test_what_slows_computing_by_hand():
    # 16 MiB lie two thirds of the way from 1 to 64 MiB on logarithms; averaging every eighth step resumes once.
    slowed = Slowed(gradient_bytes=(MIB, 64 * MIB), contention=(1.1, 1.1), resumed_s=(0.001, 0.007))
    slow = replace(costs(byte_per_s=1e18), slowed=slowed)
    for text, resumed_s in (("ddp", 0.005), ("localsgd:8", 0.005 / 8)):
        found = predict_step(text, num_ranks=2, batch_samples=32, one=ONE, costs=slow)
        assert found.slowed_s == pytest.approx(0.0035 + resumed_s)
        assert found.step_s.value == pytest.approx(0.035 + 0.0035 + resumed_s, rel=1e-6)
    assert predict_step("single", num_ranks=1, batch_samples=32, one=ONE, costs=slow).slowed_s == 0


def test_what_slows_computing_is_read_from_medians_by_round_and_is_never_a_gain():
    row = {"gradient_bytes": 4.0, "alone_s": [1.0, 1.0, 2.0], "together_s": [1.2, 1.2, 1.0]}
    document = {"schema": SCHEMA, "num_ranks": 2, "launcher": "", "messages": [], "own_work": []}
    slower, faster = (
        exchange_costs({**document, "slowed": [{**row, "after_s": [each] * 3}]}, "").slowed
        for each in (1.5, 0.9)
    )
    assert slower.of(4.0) == pytest.approx((1.2, 0.3))
    assert faster.of(400.0) == pytest.approx((1.2, 0.0))
    assert exchange_costs(document, "").slowed.of(4.0) == (1.0, 0.0)


def test_other_documents_are_refused():
    with pytest.raises(DataError, match=SCHEMA):
        exchange_costs({"schema": "other"}, "x.json")
