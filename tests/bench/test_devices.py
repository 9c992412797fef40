"""Devices: what each refuses, the clock of events, a trainee that is placed; on an accelerator where one is."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from equipoise.bench.devices import EventClock, accelerator_index, address_of, device, takes_tf32
from equipoise.bench.training import Trainee, trainee
from equipoise.bench.trial_rank import in_precision, moved, placed
from equipoise.errors import UsageError

has_accelerator = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an accelerator: torch finds none"
)


class Reached:
    """An event of a device as recorded: reached so many milliseconds after some moment."""

    def __init__(self, moment_ms):
        self.moment_ms = moment_ms

    def synchronize(self):
        """It was reached."""

    def elapsed_time(self, later):
        return later.moment_ms - self.moment_ms


def test_an_unknown_device_lists_those_there_are():
    with pytest.raises(UsageError, match=r"'tpu'.* cpu, cuda"):
        device("tpu")


def test_a_processor_has_no_tf32_and_says_what_to_take():
    assert device("cpu").why_not() is None
    assert device("cpu").refusal("bf16") is None
    assert " fp32 or bf16" in device("cpu").refusal("tf32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="an accelerator is here")
def test_where_torch_finds_no_accelerator_the_reason_says_what_to_do():
    assert "--device cpu" in device("cuda").why_not()


def test_ranks_beyond_the_accelerators_of_a_node_are_refused():
    assert [accelerator_index(rank, 4) for rank in range(4)] == [0, 1, 2, 3]
    assert accelerator_index(5, 1) == 0  # shown one alone
    with pytest.raises(UsageError, match=r"rank 4 .* 4 accelerators"):
        accelerator_index(4, 4)


def test_an_accelerator_has_its_address_or_its_name():
    told = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    assert address_of(told) == "0000:3b:00.0"
    assert address_of(SimpleNamespace(uuid="5f6c-01")) == "GPU-5f6c-01"
    assert address_of(SimpleNamespace()) is None


def test_events_are_told_in_seconds_after_the_first():
    stamps = [(0.0, Reached(20.0)), (0.001, Reached(21.5)), (0.002, Reached(30.0))]
    assert EventClock().moments(stamps) == pytest.approx([0.0, 0.0015, 0.01])
    assert EventClock().moments([]) == []


def test_events_are_recorded_where_the_model_computes(monkeypatch):
    streams = []
    event = SimpleNamespace(record=streams.append)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: ("stream", place))
    second = torch.device("cuda", 1)
    assert EventClock(second).now()[1] is event
    assert streams == [("stream", second)]


@pytest.fixture
def matmul():
    yield torch.backends.cuda.matmul
    torch.backends.cuda.matmul.allow_tf32 = False


def test_tf32_is_seen_by_the_older_setting(matmul):
    for taken in (True, False):
        matmul.allow_tf32 = taken
        assert takes_tf32() is taken


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9 has one setting"
)
def test_tf32_is_seen_by_the_newer_setting_of_which_the_older_raises(matmul):
    matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError):
        _ = matmul.allow_tf32
    assert takes_tf32()
    matmul.fp32_precision = "ieee"
    assert not takes_tf32()


@pytest.mark.law
@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_a_host_clock_keeps_differences(stamps):
    found = device("cpu").clock().moments(stamps)
    assert found[0] == 0.0
    assert found[-1] == stamps[-1] - stamps[0]


def test_batches_of_any_shape_are_moved_and_other_values_kept():
    place = torch.device("meta")
    found = moved({"ids": torch.zeros(2), "more": (torch.ones(1), 3)}, place)
    assert found["ids"].device == found["more"][0].device == place
    assert found["more"][1] == 3


def test_a_batch_that_is_drawn_again_is_copied_once():
    one, other = (torch.ones(2),), (torch.zeros(2),)
    subject = Trainee(model=torch.nn.Linear(2, 1), batches=iter([one, one, other]), loss=len, num_samples=len)
    first, again, last = placed(subject, torch.device("meta")).batches
    assert first is again
    assert last is not first
    assert {first[0].device.type, last[0].device.type} == {"meta"}


def test_bf16_computes_in_bf16_and_keeps_weights_whole():
    subject = in_precision(trainee("mlp", batch_samples=4, seed=0), "bf16", torch.device("cpu"))
    seen = []
    subject.model[1].register_forward_hook(lambda _module, _given, output: seen.append(output.dtype))
    subject.loss(subject.model, next(subject.batches)).backward()
    assert seen == [torch.bfloat16]
    assert {each.grad.dtype for each in subject.model.parameters()} == {torch.float32}


def test_memory_of_a_processor_grows_by_what_is_allocated():
    on = device("cpu")
    on.restart_peak()
    before = on.memory()["now"]
    held = torch.ones(64 * 2**20)  # large beside what other threads of the tests' process take and free
    grown = on.memory()["peak"] - before
    assert 0.9 * held.nbytes < grown < 1.5 * held.nbytes


@pytest.mark.device
@has_accelerator
def test_an_accelerator_times_what_it_computes():
    on = device("cuda")
    assert on.why_not() is None
    place = on.bind(0)
    on.set_precision("fp32")
    on.restart_peak()
    clock = on.clock()
    factor = torch.ones(4096, 4096, device=place)
    on.synchronise()
    stamps = [clock.now()]
    for _ in range(8):
        factor @ factor
    stamps.append(clock.now())
    (_, seconds) = clock.moments(stamps)
    # 8 products of 2 * 4096^3 FLOP: 1.1 TFLOP, at a rate no chip reaches in fp32 and every one beats.
    assert 1e-4 < seconds < 10
    assert on.memory()["peak"] >= factor.nbytes
    assert on.conditions(place)["accelerator"]


@pytest.mark.device
@has_accelerator
def test_fp32_is_not_tf32_on_an_accelerator():
    on = device("cuda")
    place = on.bind(0)
    drawn = torch.rand(512, 512, dtype=torch.float64)
    errors = {}
    for precision in ("fp32", "tf32"):
        if on.refusal(precision) is None:
            on.set_precision(precision)
            one = drawn.to(place, torch.float32)
            errors[precision] = float(((one @ one).double().cpu() - drawn @ drawn).abs().max())
    assert errors["fp32"] < 1e-3
    assert errors.get("tf32", 1.0) > errors["fp32"]
