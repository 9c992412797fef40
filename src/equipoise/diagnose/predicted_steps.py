"""The step on several devices from steps of one and what messages cost: seconds, interval, causes.

What messages and each way to train cost is taken from a measurement of interference. Nothing here was fitted
to a step of several devices. How wrong it was: docs/experiments/0012.
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

# A message is predicted up to so many times the largest measured: beyond, another regime may begin.
_BEYOND = 8.0
_FEWEST_SIZES = 4


class Message(Struct, frozen=True, kw_only=True):
    """One message: seconds alone and overlapped with computing, and its share of the computing core."""

    alone_s: float
    overlapped_s: float
    core_share: float


class Messages(Struct, frozen=True, kw_only=True):
    """Messages of one operation by payload; every field of shape (n_sizes,), payloads rising."""

    payload_bytes: tuple[float, ...]
    alone_s: tuple[float, ...]
    overlapped_s: tuple[float, ...]
    core_share: tuple[float, ...]

    def of(self, payload_bytes: float) -> Message:
        """A message of that payload: between those measured in the logarithms, beyond at the last rate.

        Raises EvidenceError where it is far larger than any that was measured.
        """
        largest = self.payload_bytes[-1]
        if payload_bytes > _BEYOND * largest:
            raise EvidenceError(
                f"a message of {payload_bytes / MIB:.6g} MiB; measured are {largest / MIB:.6g} MiB at most",
                missing=(f"messages of up to {payload_bytes / MIB:.6g} MiB",),
            )
        beyond = max(1.0, payload_bytes / largest)
        alone_s, overlapped_s = (
            beyond * exp(_between(payload_bytes, self.payload_bytes, np.log(seconds)))
            for seconds in (self.alone_s, self.overlapped_s)
        )
        core_share = _between(payload_bytes, self.payload_bytes, self.core_share)
        return Message(alone_s=alone_s, overlapped_s=overlapped_s, core_share=core_share)


def _between(size: float, sizes: Sequence[float], values: Sequence[float] | NDArray[np.float64]) -> float:
    """A value at a size: on logarithms of sizes between those measured, the nearest beyond."""
    return float(np.interp(np.log(max(size, 1.0)), np.log(sizes), values))


class MethodWork(Struct, frozen=True, kw_only=True):
    """What one method's step takes on a rank alone, above a step without it: by tensors and bytes."""

    fixed_s: float
    tensor_s: float
    gradient_bytes: tuple[float, ...]
    copying_s: tuple[float, ...]

    def seconds(self, gradient_bytes: float, num_tensors: int) -> float:
        """Of so many tensors of so many bytes together."""
        sizes = (0.0, *self.gradient_bytes)
        copying_s = float(np.interp(gradient_bytes, sizes, (0.0, *self.copying_s)))
        beyond = max(1.0, gradient_bytes / sizes[-1])
        return self.fixed_s + self.tensor_s * num_tensors + beyond * copying_s


class Slowed(Struct, frozen=True, kw_only=True):
    """What computing loses by the bytes of its weights; every field of shape (n_sizes,), bytes rising.

    contention: seconds where all ranks compute over those where one does. resumed_s: what a step takes longer
    after a message, whose threads and waiting leave the caches cold.
    """

    gradient_bytes: tuple[float, ...] = (1.0,)
    contention: tuple[float, ...] = (1.0,)
    resumed_s: tuple[float, ...] = (0.0,)

    def of(self, gradient_bytes: float) -> tuple[float, float]:
        """Both at so many bytes."""
        contention = _between(gradient_bytes, self.gradient_bytes, self.contention)
        return contention, _between(gradient_bytes, self.gradient_bytes, self.resumed_s)


class ExchangeCosts(Struct, frozen=True, kw_only=True):
    """What exchanging costs between so many ranks connected by one kind of link."""

    num_ranks: int
    messages: Mapping[str, Messages]
    method_work: Mapping[str, MethodWork]
    slowed: Slowed = Slowed()

    def message(self, operation: str, payload_bytes: float) -> Message:
        """A message of that operation. Raises EvidenceError where it was not measured."""
        if operation not in self.messages:
            raise EvidenceError(f"no {operation} was measured", missing=(f"{operation} between the ranks",))
        return self.messages[operation].of(payload_bytes)

    def method_work_s(self, text: str, gradient_bytes: float, num_tensors: int) -> float:
        """Seconds of a method's own computing in a step.

        Raises EvidenceError where nothing like it was measured.
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
    """What to measure so that these methods can be predicted on so many ranks.

    gradient_bytes: of the model; of much larger messages nothing need be known.
    """
    found = {text: method(text)[0] for text in texts}
    similar = [
        # A bucket's size changes nothing of what is copied.
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
    """The costs in a document of `bench.sweep.interference`. Raises DataError when it is none."""
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
    """Medians by size; a larger message takes no less time than a smaller one."""
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
    """Medians by size, of which none is a gain; nothing is lost where it was not measured."""
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
    """From rows of which the two smallest hold next to nothing: one tensor, and many."""
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


# Half of the interval, of the logarithm: conformal over 52 plain steps by model (docs/experiments/0012),
# and what 90 % of 18 other steps were within (0016).
HALF_WIDTH_LOG = {"plain": 0.3, "other": 0.65}
# Two gathers of weights and one scattering of gradients, which takes a ring as long.
_SHARDED_TRIPS = 3
_HALVED = frozenset({"fp16", "bf16", "localsgd_fp16", "diloco_fp16"})
_LOCAL = frozenset({"localsgd", "diloco", "localsgd_fp16", "diloco_fp16"})


class ShapedGradient(Gradient, frozen=True, kw_only=True):
    """A gradient with its shape; ready_fraction: of the backward pass."""

    shape: tuple[int, ...]


class OneDevice(Struct, frozen=True, kw_only=True):
    """Steps of one workload on one device.

    phases: medians in seconds by batch and phase, `step` among them. steps_s: every timed step by batch.
    """

    workload: str
    phases: Mapping[int, Mapping[str, float]]
    steps_s: Mapping[int, tuple[float, ...]]
    gradients: tuple[ShapedGradient, ...]
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
    given = float(argument) * MIB if argument and found.name in PLAIN - {"accumulate"} else None
    limits = {} if given is None else {"first_bytes": given, "bucket_bytes": given}
    buckets = gradient_buckets(one.gradients, **limits)
    operation = "all_gather" if found.name == "topk" else "all_reduce"
    payloads = [_payload(found.name, argument, each.grad_bytes, costs.num_ranks) for each in buckets]
    sent = [costs.message(operation, each) for each in payloads]
    work_s = costs.method_work_s(text, one.gradient_bytes, len(one.gradients))
    # Half of it fills buckets on the way; the rest empties them when all have arrived.
    pass_s = compute_s[BACKWARD] + work_s / 2
    ended_s = overlapped_end_s(
        pass_s,
        [each.ready_fraction for each in buckets],
        [each.alone_s for each in sent],
        core_share=[each.core_share for each in sent],
        overlapped_s=[each.overlapped_s for each in sent],
    )
    # Statistics of rank 0 reach all before each forward pass, a message a dtype; of broadcasts nothing was
    # measured, which take at most what a sum of as many bytes takes.
    statistics_s = [costs.message("all_reduce", each).alone_s for each in one.buffers_bytes.values()]
    return _Parts(
        added_s=work_s,
        exposed_s=float(ended_s) - pass_s + sum(statistics_s),
        sent_bytes=sum(payloads) + sum(one.buffers_bytes.values()),
        num_messages=len(payloads) + len(statistics_s),
    )


def _payload(name: str, argument: Argument, grad_bytes: int, num_ranks: int) -> float:
    """Bytes of one bucket as its collective counts them."""
    if name == "topk":
        return num_ranks * sparse_bytes(grad_bytes // FP32_BYTES, float(argument or 1.0))
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
