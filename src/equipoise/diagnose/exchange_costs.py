"""What messages between ranks and each way to train cost here, from a measurement of interference."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.bench.sweep import INTERFERENCE_SCHEMA, MESSAGE_SIZES_BYTES, InterferenceTask
from equipoise.bench.training import method
from equipoise.errors import DataError, EvidenceError
from equipoise.units import MIB

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
    messages: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["messages"]:
        messages.setdefault(row["operation"], []).append(row)
    work: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["own_work"]:
        work.setdefault(row["method"], []).append(row)
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
        np.maximum.accumulate([median(row[name]) for row in ordered]) for name in ("alone_s", "beside_s")
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
