"""The step on several devices from steps of one and what messages cost: seconds, interval, causes.

Nothing here was fitted to a step of several devices. How wrong it was: docs/experiments/0012.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import exp
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict

from equipoise.bench.phases import BACKWARD, OPTIMIZER, STEP
from equipoise.bench.training import Argument, method
from equipoise.bench.trial import SUCCESS, FinishedTrial
from equipoise.diagnose.exchange_costs import ExchangeCosts
from equipoise.errors import EvidenceError
from equipoise.intervals import LEVEL, Interval
from equipoise.perfmodel.replicas import at_batch, low_rank_bytes, overlapped, slowest_of, sparse_bytes
from equipoise.spec.torch_model.count import Gradient, gradient_buckets
from equipoise.units import MIB

# Half of the interval, of the logarithm: conformal over 52 plain steps by model (docs/experiments/0012),
# and what 90 % of 18 other steps were within (0016).
HALF_WIDTH_LOG = {"plain": 0.3, "other": 0.65}
WIDTH_BYTES = 4
# Two gathers of weights and one scattering of gradients, which takes a ring as long.
_SHARDED_TRIPS = 3
_PLAIN = frozenset({"single", "ddp", "static_graph", "accumulate"})
_HALVED = frozenset({"fp16", "bf16", "localsgd_fp16", "diloco_fp16"})
_LOCAL = frozenset({"localsgd", "diloco", "localsgd_fp16", "diloco_fp16"})


class Tensor(Struct, frozen=True, kw_only=True):
    """A gradient: its shape, bytes, dtype, and the share of the backward pass after which it is ready."""

    shape: tuple[int, ...]
    grad_bytes: int
    dtype: str
    ready: float


class OneDevice(Struct, frozen=True, kw_only=True):
    """Steps of one workload on one device.

    phases: medians in seconds by batch and phase, `step` among them. steps_s: every timed step by batch.
    """

    workload: str
    phases: Mapping[int, Mapping[str, float]]
    steps_s: Mapping[int, tuple[float, ...]]
    gradients: tuple[Tensor, ...]
    buffers_bytes: Mapping[str, int]

    @property
    def gradient_bytes(self) -> int:
        """Of all gradients."""
        return sum(each.grad_bytes for each in self.gradients)

    def phase_s(self, name: str, batch_samples: float) -> float:
        """Seconds of a phase at a batch. Raises EvidenceError beyond the batches that were measured."""
        batches = sorted(self.phases)
        if not batches[0] <= batch_samples <= batches[-1]:
            raise EvidenceError(
                f"{self.workload}: one device at batch {batch_samples:g}; measured are "
                f"{batches[0]} to {batches[-1]}",
                missing=(f"steps of one device at batch {batch_samples:g}",),
            )
        return at_batch(batches, [self.phases[each].get(name, 0.0) for each in batches], batch_samples)

    def nearest_steps_s(self, batch_samples: float) -> tuple[float, ...]:
        """The steps at the measured batch that is nearest."""
        return self.steps_s[min(self.steps_s, key=lambda each: abs(each - batch_samples))]


class PredictedStep(Struct, frozen=True, kw_only=True):
    """A predicted step: its seconds, the parts that sum to them, and what travels.

    one_device_s: what one device would take at its share of the batch. slowed_s: what computing loses to
    other ranks computing at the same time, and after each message. waiting_s: for the slowest rank. added_s:
    copies and compression. exposed_s: messages that nothing hides, and computing that they slow.
    sent_bytes and num_messages: of one rank in a step, mean over a cycle.
    """

    method: str
    num_ranks: int
    batch_samples: int
    step_s: Interval
    one_device_s: float
    slowed_s: float
    waiting_s: float
    added_s: float
    exposed_s: float
    sent_bytes: float
    num_messages: float

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks trained in a second."""
        return self.batch_samples / self.step_s.value


def one_device(trials: Iterable[FinishedTrial]) -> OneDevice:
    """One workload on one device, from trials of one rank.

    Raises EvidenceError without steps or gradients.
    """
    timed = [
        each
        for each in trials
        if each.status == SUCCESS and each.trial.num_ranks == 1 and each.result.get("steps")
    ]
    described = [each for each in timed if each.result.get("gradients")]
    if not described:
        raise EvidenceError(
            "no steps of one device with their gradients",
            missing=("a run of this version with --sizes 1",),
        )
    by_batch: dict[int, list[Mapping[str, float]]] = {}
    for each in timed:
        by_batch.setdefault(each.trial.batch_samples, []).extend(each.result["steps"])
    last = described[-1].result
    buffers: dict[str, int] = {}
    for each in last.get("buffers", ()):
        buffers[each["dtype"]] = buffers.get(each["dtype"], 0) + each["bytes"]
    return OneDevice(
        workload=described[-1].trial.workload,
        phases={batch: _medians(steps) for batch, steps in by_batch.items()},
        steps_s={batch: tuple(step[STEP] for step in steps) for batch, steps in by_batch.items()},
        gradients=tuple(
            Tensor(
                shape=tuple(each["shape"]), grad_bytes=each["bytes"], dtype=each["dtype"], ready=each["ready"]
            )
            for each in last["gradients"]
        ),
        buffers_bytes=buffers,
    )


def _medians(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    named = dict.fromkeys(name for step in steps for name in step)  # steps timed as a whole have no phases
    return {name: median(step[name] for step in steps if name in step) for name in named}


def predict_step(
    text: str, *, num_ranks: int, batch_samples: int, one: OneDevice, costs: ExchangeCosts
) -> PredictedStep:
    """The median step of a method on so many ranks; for methods with cycles, the mean over one.

    batch_samples: of all ranks together.
    Raises EvidenceError where batch, ranks or messages are beyond what was measured.
    Assumes ranks as fast as the one measured, which compute as one alone does but for what messages take.
    Source: docs/experiments/0012-predicted-steps.md.
    """
    if num_ranks > 1 and costs.num_ranks != num_ranks:
        raise EvidenceError(
            f"{num_ranks} ranks; messages were measured between {costs.num_ranks}",
            missing=(f"messages between {num_ranks} ranks",),
        )
    found, argument = method(text)
    share = batch_samples / num_ranks
    contention, resumed_s = costs.slowed.of(one.gradient_bytes) if num_ranks > 1 else (1.0, 0.0)
    alone = {name: one.phase_s(name, share) for name in (BACKWARD, OPTIMIZER, STEP)}
    compute_s = {name: seconds * contention for name, seconds in alone.items()}
    parts = _parts(text, compute_s, one, costs)
    # Ranks that train alone wait for each other where they average only.
    meetings = 1 / int(argument or 1) if found.name in _LOCAL else 1.0
    exchanges = 1 / int(argument or 1) if found.name in _LOCAL | {"accumulate"} else 1.0
    waiting_s = compute_s[STEP] * (slowest_of(one.nearest_steps_s(share), num_ranks) - 1.0) * meetings
    one_device_s = alone[STEP] - parts.spared_s
    slowed_s = compute_s[STEP] - alone[STEP] + resumed_s * exchanges
    value = one_device_s + slowed_s + waiting_s + parts.added_s + parts.exposed_s
    half = HALF_WIDTH_LOG["plain" if found.name in _PLAIN else "other"]
    return PredictedStep(
        method=text,
        num_ranks=num_ranks,
        batch_samples=batch_samples,
        step_s=Interval(value=value, low=value * exp(-half), high=value * exp(half), level=LEVEL),
        one_device_s=one_device_s,
        slowed_s=slowed_s,
        waiting_s=waiting_s,
        added_s=parts.added_s,
        exposed_s=parts.exposed_s,
        sent_bytes=parts.sent_bytes,
        num_messages=parts.num_messages,
    )


class _Parts(Struct, frozen=True, kw_only=True):
    """What a method adds to one device's step, a mean over its cycle; spared_s: what it leaves out."""

    added_s: float = 0.0
    exposed_s: float = 0.0
    spared_s: float = 0.0
    sent_bytes: float = 0.0
    num_messages: float = 0.0

    def once_in(self, num_steps: int, *, spared_s: float = 0.0) -> "_Parts":
        """The same where only one step of so many does it."""
        shared = {name: each / num_steps for name, each in asdict(self).items()}
        return _Parts(**{**shared, "spared_s": shared["spared_s"] + spared_s * (1.0 - 1.0 / num_steps)})


def _parts(text: str, compute_s: Mapping[str, float], one: OneDevice, costs: ExchangeCosts) -> _Parts:
    found, argument = method(text)
    number = int(argument or 1)
    if found.name == "single":
        return _Parts()
    if found.name in _LOCAL:
        return _averaged(text, one, costs).once_in(number)
    if found.name == "fsdp":
        return _sharded(text, compute_s, one, costs)
    if found.name == "powersgd":
        return _factored(text, number, one, costs)
    buckets = _bucketed(text, compute_s, one, costs)
    if found.name == "accumulate":
        return buckets.once_in(number, spared_s=compute_s[OPTIMIZER])
    return buckets


def _bucketed(text: str, compute_s: Mapping[str, float], one: OneDevice, costs: ExchangeCosts) -> _Parts:
    """Buckets sent while the backward pass runs, as DistributedDataParallel does."""
    found, argument = method(text)
    given = float(argument) * MIB if argument and found.name in _PLAIN - {"accumulate"} else None
    limits = {} if given is None else {"first_bytes": given, "bucket_bytes": given}
    buckets = gradient_buckets(
        (
            Gradient(grad_bytes=each.grad_bytes, dtype=each.dtype, ready_fraction=each.ready)
            for each in one.gradients
        ),
        **limits,
    )
    operation = "all_gather" if found.name == "topk" else "all_reduce"
    payloads = [_payload(found.name, argument, each.grad_bytes, costs.num_ranks) for each in buckets]
    sent = [costs.message(operation, each) for each in payloads]
    work_s = costs.method_work_s(text, one.gradient_bytes, len(one.gradients))
    # Half of it fills buckets on the way; the rest empties them when all have arrived.
    pass_s = compute_s[BACKWARD] + work_s / 2
    found_s = overlapped(
        pass_s,
        [each.ready_fraction for each in buckets],
        [each.alone_s for each in sent],
        core_share=[each.core_share for each in sent],
        overlapped_s=[each.overlapped_s for each in sent],
    )
    # Statistics of rank 0 reach all before each forward pass, a message a dtype.
    statistics_s = [costs.message("all_reduce", each).alone_s for each in one.buffers_bytes.values()]
    return _Parts(
        added_s=work_s,
        exposed_s=float(found_s.ended_s) - pass_s + sum(statistics_s),
        sent_bytes=sum(payloads) + sum(one.buffers_bytes.values()),
        num_messages=len(payloads) + len(statistics_s),
    )


def _payload(name: str, argument: Argument, grad_bytes: int, num_ranks: int) -> float:
    """Bytes of one bucket as its collective counts them."""
    if name == "topk":
        return num_ranks * sparse_bytes(grad_bytes // WIDTH_BYTES, float(argument or 1.0))
    return grad_bytes / 2 if name in _HALVED else grad_bytes


def _factored(text: str, rank: int, one: OneDevice, costs: ExchangeCosts) -> _Parts:
    """PowerSGD in one bucket, as it runs over gloo: nothing hides its three messages."""
    payloads = [each for each in low_rank_bytes([each.shape for each in one.gradients], rank) if each]
    sizes = (*payloads, *one.buffers_bytes.values())
    return _Parts(
        added_s=costs.method_work_s(text, one.gradient_bytes, len(one.gradients)),
        exposed_s=sum(costs.message("all_reduce", each).alone_s for each in sizes),
        sent_bytes=sum(sizes),
        num_messages=len(sizes),
    )


def _averaged(text: str, one: OneDevice, costs: ExchangeCosts) -> _Parts:
    """Weights and statistics averaged in one message, overlapped with nothing."""
    found, _ = method(text)
    floating = sum(size for dtype, size in one.buffers_bytes.items() if "float" in dtype)
    payload = (one.gradient_bytes + floating) / (2 if found.name in _HALVED else 1)
    return _Parts(
        added_s=costs.method_work_s(text, one.gradient_bytes + floating, len(one.gradients)),
        exposed_s=costs.message("all_reduce", payload).alone_s,
        sent_bytes=payload,
        num_messages=1,
    )


def _sharded(text: str, compute_s: Mapping[str, float], one: OneDevice, costs: ExchangeCosts) -> _Parts:
    """Weights gathered for each pass and gradients scattered; each updates its share of the weights."""
    gathered = costs.message("all_gather", one.gradient_bytes)
    return _Parts(
        added_s=costs.method_work_s(text, one.gradient_bytes, len(one.gradients)),
        exposed_s=_SHARDED_TRIPS * gathered.alone_s,
        spared_s=compute_s[OPTIMIZER] * (1.0 - 1.0 / costs.num_ranks),
        sent_bytes=_SHARDED_TRIPS * one.gradient_bytes,
        num_messages=_SHARDED_TRIPS,
    )
