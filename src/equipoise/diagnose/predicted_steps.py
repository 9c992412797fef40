"""Prediction of the step on several devices from steps on one device and the cost of messages.

The costs of messages and methods come from a measurement of interference; nothing was fitted to steps of
several devices. Errors: docs/experiments/0012.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import exp
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray

from equipoise.bench.phases import BACKWARD, OPTIMIZER, STEP
from equipoise.bench.sweep import INTERFERENCE_SCHEMA, MESSAGE_SIZES_BYTES, InterferenceTask
from equipoise.bench.training import PLAIN, Argument, method
from equipoise.bench.trial import SUCCESS, FinishedTrial
from equipoise.errors import DataError, EvidenceError
from equipoise.intervals import Interval, spread
from equipoise.perfmodel.replicas import at_batch, low_rank_bytes, overlapped_end_s, slowest_of, sparse_bytes
from equipoise.spec.torch_model.count import Gradient, gradient_buckets
from equipoise.stats import by_key
from equipoise.units import FP32_BYTES, MIB

# Messages are extrapolated up to this many times the largest measured one; beyond, another regime may begin.
_BEYOND = 8.0
_FEWEST_SIZES = 4


class Message(Struct, frozen=True, kw_only=True):
    """One message: seconds alone and while overlapped with computation, and its use of the computing core."""

    alone_s: float
    overlapped_s: float
    core_share: float


class Messages(Struct, frozen=True, kw_only=True):
    """Messages of one operation by payload; every field of shape (n_sizes,), by ascending payload."""

    payload_bytes: tuple[float, ...]
    alone_s: tuple[float, ...]
    overlapped_s: tuple[float, ...]
    core_share: tuple[float, ...]

    def of(self, payload_bytes: float) -> Message:
        """A message of `payload_bytes`: log-log interpolation, and beyond the largest size its rate.

        Raises EvidenceError if it is far larger than the largest measured message.
        """
        largest = self.payload_bytes[-1]
        if payload_bytes > _BEYOND * largest:
            raise EvidenceError(
                f"a message of {payload_bytes / MIB:.6g} MiB; at most {largest / MIB:.6g} MiB was measured",
                missing=(f"messages of up to {payload_bytes / MIB:.6g} MiB",),
            )
        beyond = max(1.0, payload_bytes / largest)
        alone_s, overlapped_s = (
            beyond * exp(_interpolated(payload_bytes, self.payload_bytes, np.log(seconds)))
            for seconds in (self.alone_s, self.overlapped_s)
        )
        core_share = _interpolated(payload_bytes, self.payload_bytes, self.core_share)
        return Message(alone_s=alone_s, overlapped_s=overlapped_s, core_share=core_share)


def _interpolated(
    size: float, sizes: Sequence[float], values: Sequence[float] | NDArray[np.float64]
) -> float:
    """A value interpolated over log size; outside the measured sizes, the nearest value."""
    return float(np.interp(np.log(max(size, 1.0)), np.log(sizes), values))


class MethodWork(Struct, frozen=True, kw_only=True):
    """Additional time per step of a method on a single rank, by tensors and bytes."""

    fixed_s: float
    tensor_s: float
    gradient_bytes: tuple[float, ...]
    copying_s: tuple[float, ...]

    def seconds(self, gradient_bytes: float, num_tensors: int) -> float:
        """Seconds for `num_tensors` tensors with `gradient_bytes` in total."""
        sizes = (0.0, *self.gradient_bytes)
        copying_s = float(np.interp(gradient_bytes, sizes, (0.0, *self.copying_s)))
        beyond = max(1.0, gradient_bytes / sizes[-1])
        return self.fixed_s + self.tensor_s * num_tensors + beyond * copying_s


class Slowed(Struct, frozen=True, kw_only=True):
    """Slowdown of computation by bytes of gradients; every field of shape (n_sizes,), in ascending order.

    contention: seconds if all ranks compute, over seconds if one does. resumed_s: additional seconds of a
    step after a message, whose threads and waiting leave the caches cold.
    """

    gradient_bytes: tuple[float, ...] = (1.0,)
    contention: tuple[float, ...] = (1.0,)
    resumed_s: tuple[float, ...] = (0.0,)

    def of(self, gradient_bytes: float) -> tuple[float, float]:
        """Contention and resumed_s at `gradient_bytes`."""
        contention = _interpolated(gradient_bytes, self.gradient_bytes, self.contention)
        return contention, _interpolated(gradient_bytes, self.gradient_bytes, self.resumed_s)


class ExchangeCosts(Struct, frozen=True, kw_only=True):
    """Costs of exchanges between `num_ranks` ranks connected by one kind of link."""

    num_ranks: int
    messages: Mapping[str, Messages]
    method_work: Mapping[str, MethodWork]
    slowed: Slowed = Slowed()

    def message(self, operation: str, payload_bytes: float) -> Message:
        """A message of an operation. Raises EvidenceError if the operation was not measured."""
        if operation not in self.messages:
            raise EvidenceError(f"no {operation} was measured", missing=(f"{operation} between the ranks",))
        return self.messages[operation].of(payload_bytes)

    def method_work_s(self, text: str, gradient_bytes: float, num_tensors: int) -> float:
        """Seconds of a method's own computation per step.

        Raises EvidenceError if nothing similar was measured.
        """
        found, argument = method(text)
        if text in self.method_work:
            return self.method_work[text].seconds(gradient_bytes, num_tensors)
        name, factor = found.work_like or (found.name, 1.0)
        similar = {
            float(method(each)[1] or 0): work
            for each, work in self.method_work.items()
            if method(each)[0].name == name
        }
        if not similar:
            raise EvidenceError(
                f"the local work of {name} was not measured", missing=(f"own work of {name}",)
            )
        wanted = float(argument or 0) if name == found.name else 0.0
        given = sorted(similar)
        seconds = [similar[each].seconds(gradient_bytes, num_tensors) for each in given]
        return factor * float(np.interp(wanted, given, seconds))


def needed(
    texts: Iterable[str], *, num_ranks: int, device: str, gradient_bytes: float = float("inf")
) -> InterferenceTask:
    """The measurements needed to predict these methods on `num_ranks` ranks.

    gradient_bytes: of the model; much larger messages need not be measured.
    """
    found = {text: method(text)[0] for text in texts}
    similar = [
        # The size of buckets does not affect copies.
        each.work_like[0] if each.work_like else "ddp" if each.name == "ddp" else text
        for text, each in found.items()
        if each.name != "single"
    ]
    gathered = {"topk", "fsdp"} & {each.name for each in found.values()}
    return InterferenceTask(
        num_ranks=num_ranks,
        operations=("all_reduce", "all_gather") if gathered else ("all_reduce",),
        sizes_bytes=tuple(
            size
            for place, size in enumerate(MESSAGE_SIZES_BYTES)
            if place < _FEWEST_SIZES or size <= num_ranks * gradient_bytes
        ),
        methods=tuple(dict.fromkeys(similar)),
        device=device,
    )


def exchange_costs(document: Mapping[str, Any], where: str) -> ExchangeCosts:
    """The costs in a document of `bench.sweep.interference`. Raises DataError for another document."""
    if document.get("schema") != INTERFERENCE_SCHEMA:
        raise DataError(f"{where}: not a document of schema {INTERFERENCE_SCHEMA!r}")
    messages = by_key((row["operation"], row) for row in document["messages"])
    work = by_key((row["method"], row) for row in document["own_work"])
    return ExchangeCosts(
        num_ranks=document["num_ranks"],
        messages={name: _messages(rows) for name, rows in messages.items()},
        method_work={name: _method_work(rows) for name, rows in work.items()},
        slowed=_slowed(document.get("slowed", ())),
    )


def _messages(rows: Sequence[Mapping[str, Any]]) -> Messages:
    """Medians by size, made monotonic: a larger message takes no less time than a smaller one."""
    ordered = sorted(rows, key=lambda row: float(row["payload_bytes"]))
    alone, overlapped = (
        np.maximum.accumulate([median(row[name]) for row in ordered]) for name in ("alone_s", "overlapped_s")
    )
    return Messages(
        payload_bytes=tuple(float(row["payload_bytes"]) for row in ordered),
        alone_s=tuple(alone.tolist()),
        overlapped_s=tuple(np.maximum(alone, overlapped).tolist()),
        core_share=tuple(median(row["core_share"]) for row in ordered),
    )


def _slowed(rows: Sequence[Mapping[str, Any]]) -> Slowed:
    """Median slowdowns by size, none below zero; no slowdown if nothing was measured."""
    if not rows:
        return Slowed()
    ordered = sorted(rows, key=lambda row: float(row["gradient_bytes"]))
    pairs = [zip(row["alone_s"], row["together_s"], row["after_s"], strict=True) for row in ordered]
    losses = [[(together / alone, after - together) for alone, together, after in each] for each in pairs]
    return Slowed(
        gradient_bytes=tuple(float(row["gradient_bytes"]) for row in ordered),
        contention=tuple(max(1.0, median(ratio for ratio, _ in each)) for each in losses),
        resumed_s=tuple(max(0.0, median(resumed for _, resumed in each)) for each in losses),
    )


def _method_work(rows: Sequence[Mapping[str, Any]]) -> MethodWork:
    """A method's work, from rows whose two smallest sizes have negligible data in one tensor and in many."""
    ordered = sorted(rows, key=lambda row: float(row["gradient_bytes"]))
    (one, many), large = ordered[:2], ordered[2:]
    few_s, many_s = max(0.0, median(one["seconds"])), max(0.0, median(many["seconds"]))
    tensor_s = max(0.0, (many_s - few_s) / (many["num_tensors"] - one["num_tensors"]))
    fixed_s = max(0.0, few_s - tensor_s * one["num_tensors"])
    copying = [median(row["seconds"]) - fixed_s - tensor_s * row["num_tensors"] for row in large]
    return MethodWork(
        fixed_s=fixed_s,
        tensor_s=tensor_s,
        gradient_bytes=tuple(float(row["gradient_bytes"]) for row in large),
        copying_s=tuple(np.maximum.accumulate(np.maximum(copying, 0.0)).tolist()),
    )


# Half-width of the interval in log time: conformal over 52 plain steps by model (docs/experiments/0012), and
# covering 90 % of 18 other steps (0016).
HALF_WIDTH_LOG = {"plain": 0.3, "other": 0.65}
# Two all-gathers of weights and one reduce-scatter of gradients, which takes equally long on a ring.
_SHARDED_TRIPS = 3
_HALVED = frozenset({"fp16", "bf16", "localsgd_fp16", "diloco_fp16"})
_LOCAL = frozenset({"localsgd", "diloco", "localsgd_fp16", "diloco_fp16"})


class ShapedGradient(Gradient, frozen=True, kw_only=True):
    """A gradient with its shape. ready_fraction: fraction of the backward pass after which it is ready."""

    shape: tuple[int, ...]


class OneDevice(Struct, frozen=True, kw_only=True):
    """Steps of one workload on one device.

    phases: median seconds by batch and phase, including `step`. steps_s: every timed step, by batch.
    """

    workload: str
    phases: Mapping[int, Mapping[str, float]]
    steps_s: Mapping[int, tuple[float, ...]]
    gradients: tuple[ShapedGradient, ...]
    buffers_bytes: Mapping[str, int]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(each.grad_bytes for each in self.gradients)

    def phase_s(self, name: str, batch_samples: float) -> float:
        """Seconds of a phase at a batch. Raises EvidenceError outside the measured batches."""
        batches = sorted(self.phases)
        if not batches[0] <= batch_samples <= batches[-1]:
            raise EvidenceError(
                f"{self.workload}: one device at batch {batch_samples:g}; batches {batches[0]} to "
                f"{batches[-1]} were measured",
                missing=(f"steps of one device at batch {batch_samples:g}",),
            )
        return at_batch(batches, [self.phases[each].get(name, 0.0) for each in batches], batch_samples)

    def nearest_steps_s(self, batch_samples: float) -> tuple[float, ...]:
        """The steps at the nearest measured batch."""
        return self.steps_s[min(self.steps_s, key=lambda each: abs(each - batch_samples))]


class PredictedStep(Struct, frozen=True, kw_only=True):
    """A predicted step: its seconds, the parts that sum to them, and its traffic.

    one_device_s: time of one device at its share of the batch. slowed_s: slowdown of computation by other
    ranks, and after each message. waiting_s: for the slowest rank. added_s: copies and compression.
    exposed_s: exposed messages, and computation that they slow down.
    sent_bytes, num_messages: per rank and step, as means over a cycle.
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
        """Samples per second over all ranks."""
        return self.batch_samples / self.step_s.value


def one_device(trials: Iterable[FinishedTrial]) -> OneDevice:
    """Steps of one workload on one device, from trials of one rank.

    Raises EvidenceError if there are no steps or no gradients.
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
    by_batch = by_key((each.trial.batch_samples, step) for each in timed for step in each.result["steps"])
    last = described[-1].result
    buffers: dict[str, int] = {}
    for each in last.get("buffers", ()):
        buffers[each["dtype"]] = buffers.get(each["dtype"], 0) + each["bytes"]
    return OneDevice(
        workload=described[-1].trial.workload,
        phases={batch: _medians(steps) for batch, steps in by_batch.items()},
        steps_s={batch: tuple(step[STEP] for step in steps) for batch, steps in by_batch.items()},
        gradients=tuple(
            ShapedGradient(
                shape=tuple(each["shape"]),
                grad_bytes=each["bytes"],
                dtype=each["dtype"],
                ready_fraction=each["ready"],
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
    """The median step of a method on `num_ranks` ranks; for methods with cycles, the mean over a cycle.

    batch_samples: over all ranks.
    Raises EvidenceError if batch, ranks or messages are outside the measurements.
    Assumes that all ranks are as fast as the measured one, apart from contention and messages.
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
    # Ranks that train locally wait for each other only when they average.
    meetings = 1 / int(argument or 1) if found.name in _LOCAL else 1.0
    exchanges = 1 / int(argument or 1) if found.name in _LOCAL | {"accumulate"} else 1.0
    waiting_s = compute_s[STEP] * (slowest_of(one.nearest_steps_s(share), num_ranks) - 1.0) * meetings
    one_device_s = alone[STEP] - parts.spared_s
    slowed_s = compute_s[STEP] - alone[STEP] + resumed_s * exchanges
    value = one_device_s + slowed_s + waiting_s + parts.added_s + parts.exposed_s
    half = HALF_WIDTH_LOG["plain" if found.name in PLAIN else "other"]
    return PredictedStep(
        method=text,
        num_ranks=num_ranks,
        batch_samples=batch_samples,
        step_s=spread(value, half),
        one_device_s=one_device_s,
        slowed_s=slowed_s,
        waiting_s=waiting_s,
        added_s=parts.added_s,
        exposed_s=parts.exposed_s,
        sent_bytes=parts.sent_bytes,
        num_messages=parts.num_messages,
    )


class _AddedWork(Struct, frozen=True, kw_only=True):
    """What a method adds to one device's step, as a mean over its cycle. spared_s: work that it omits."""

    added_s: float = 0.0
    exposed_s: float = 0.0
    spared_s: float = 0.0
    sent_bytes: float = 0.0
    num_messages: float = 0.0

    def once_in(self, num_steps: int, *, spared_s: float = 0.0) -> "_AddedWork":
        """The parts if only one of `num_steps` steps has them. spared_s: work omitted in the other steps."""
        shared = {name: each / num_steps for name, each in asdict(self).items()}
        return _AddedWork(**{**shared, "spared_s": shared["spared_s"] + spared_s * (1.0 - 1.0 / num_steps)})


def _parts(text: str, compute_s: Mapping[str, float], one: OneDevice, costs: ExchangeCosts) -> _AddedWork:
    found, argument = method(text)
    number = int(argument or 1)
    if found.name == "single":
        return _AddedWork()
    if found.name in _LOCAL:
        return _local_averaging(text, one, costs).once_in(number)
    if found.name == "fsdp":
        return _sharded(text, compute_s, one, costs)
    if found.name == "powersgd":
        return _powersgd(text, number, one, costs)
    buckets = _bucketed(text, compute_s, one, costs)
    if found.name == "accumulate":
        return buckets.once_in(number, spared_s=compute_s[OPTIMIZER])
    return buckets


def _bucketed(text: str, compute_s: Mapping[str, float], one: OneDevice, costs: ExchangeCosts) -> _AddedWork:
    """Buckets sent during the backward pass, as by DistributedDataParallel."""
    found, argument = method(text)
    given = float(argument) * MIB if argument and found.name in PLAIN - {"accumulate"} else None
    limits = {} if given is None else {"first_bytes": given, "bucket_bytes": given}
    buckets = gradient_buckets(one.gradients, **limits)
    operation = "all_gather" if found.name == "topk" else "all_reduce"
    payloads = [_payload(found.name, argument, each.grad_bytes, costs.num_ranks) for each in buckets]
    sent = [costs.message(operation, each) for each in payloads]
    work_s = costs.method_work_s(text, one.gradient_bytes, len(one.gradients))
    # Half of this work fills buckets during the pass; the other half unpacks them after all have arrived.
    pass_s = compute_s[BACKWARD] + work_s / 2
    ended_s = overlapped_end_s(
        pass_s,
        [each.ready_fraction for each in buckets],
        [each.alone_s for each in sent],
        core_share=[each.core_share for each in sent],
        overlapped_s=[each.overlapped_s for each in sent],
    )
    # Buffers of rank 0 are broadcast before each forward pass, one message per dtype. Broadcasts were not
    # measured; they take at most as long as an all-reduce of the same size.
    statistics_s = [costs.message("all_reduce", each).alone_s for each in one.buffers_bytes.values()]
    return _AddedWork(
        added_s=work_s,
        exposed_s=float(ended_s) - pass_s + sum(statistics_s),
        sent_bytes=sum(payloads) + sum(one.buffers_bytes.values()),
        num_messages=len(payloads) + len(statistics_s),
    )


def _payload(name: str, argument: Argument, grad_bytes: int, num_ranks: int) -> float:
    """Payload bytes of one bucket, as its collective counts them."""
    if name == "topk":
        return num_ranks * sparse_bytes(grad_bytes // FP32_BYTES, float(argument or 1.0))
    return grad_bytes / 2 if name in _HALVED else grad_bytes


def _powersgd(text: str, rank: int, one: OneDevice, costs: ExchangeCosts) -> _AddedWork:
    """PowerSGD in one bucket, as it runs over gloo: its three messages are exposed."""
    payloads = [each for each in low_rank_bytes([each.shape for each in one.gradients], rank) if each]
    sizes = (*payloads, *one.buffers_bytes.values())
    return _AddedWork(
        added_s=costs.method_work_s(text, one.gradient_bytes, len(one.gradients)),
        exposed_s=sum(costs.message("all_reduce", each).alone_s for each in sizes),
        sent_bytes=sum(sizes),
        num_messages=len(sizes),
    )


def _local_averaging(text: str, one: OneDevice, costs: ExchangeCosts) -> _AddedWork:
    """Weights and buffers averaged in one exposed message."""
    found, _ = method(text)
    floating = sum(size for dtype, size in one.buffers_bytes.items() if "float" in dtype)
    payload = (one.gradient_bytes + floating) / (2 if found.name in _HALVED else 1)
    return _AddedWork(
        added_s=costs.method_work_s(text, one.gradient_bytes + floating, len(one.gradients)),
        exposed_s=costs.message("all_reduce", payload).alone_s,
        sent_bytes=payload,
        num_messages=1,
    )


def _sharded(text: str, compute_s: Mapping[str, float], one: OneDevice, costs: ExchangeCosts) -> _AddedWork:
    """Weights gathered for each pass and gradients scattered; each rank updates its shard of the weights."""
    gathered = costs.message("all_gather", one.gradient_bytes)
    return _AddedWork(
        added_s=costs.method_work_s(text, one.gradient_bytes, len(one.gradients)),
        exposed_s=_SHARDED_TRIPS * gathered.alone_s,
        spared_s=compute_s[OPTIMIZER] * (1.0 - 1.0 / costs.num_ranks),
        sent_bytes=_SHARDED_TRIPS * one.gradient_bytes,
        num_messages=_SHARDED_TRIPS,
    )
