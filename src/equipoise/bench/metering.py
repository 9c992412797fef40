"""What a window of a run used: processors, accelerators, network, memory, energy. Needs torch."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, process_time
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from equipoise.bench import counters, meters
from equipoise.bench.counters import sent_bytes
from equipoise.bench.devices import DeviceKind
from equipoise.bench.environment import kernel_id
from equipoise.bench.meters import PowerMeters, Sampler
from equipoise.errors import UsageError

_NETWORK = Path("/proc/self/ns/net")


class Metering:
    """A window that every rank enters and leaves; afterwards `gathered` has what was used in it."""

    def __init__(self, on: DeviceKind, place: torch.device, *, memory_before: int | None = None) -> None:
        """memory_before: bytes in use before there was a model; growth is counted from it."""
        self._on = on
        self._memory_before = memory_before
        everyone = _everyone((kernel_id(), _network(), on.address(place)))
        refuse_shared(everyone)
        rank = dist.get_rank()
        machine, network, _ = everyone[rank]
        self._meters = rank == min(other for other, each in enumerate(everyone) if each[0] == machine)
        self._counts = rank == min(other for other, each in enumerate(everyone) if each[1] == network)
        here = [each for each in everyone if each[0] == machine]
        addresses = [each[2] for each in here if each[2] is not None]
        self._found = _sources(on, addresses) if self._meters else ()
        self._sampler = Sampler([source for each in self._found for source in each.found])

    def __enter__(self) -> Self:
        """Begin: what is used from now on is counted."""
        self._sampler.__enter__()
        self._sent = sent_bytes() if self._counts else None
        self._cpu_s, self._begun = process_time(), perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._on.synchronise()
        self._wall_s, self._cpu_s = perf_counter() - self._begun, process_time() - self._cpu_s
        if self._sent is not None:
            after = sent_bytes()
            self._sent = {kind: after[kind] - sent for kind, sent in self._sent.items()}
        self._sampler.__exit__(kind, error, trace)
        self._memory = self._on.memory()

    def gathered(self) -> Mapping[str, Any]:
        """On rank 0 the fields of a result: memory, utilisation, energy; nothing on others. All must call."""
        share = {
            "node": platform.node(),
            "cpu_s": self._cpu_s,
            "wall_s": self._wall_s,
            "num_cores": len(os.sched_getaffinity(0)),
            "memory": dict(self._memory),
            "memory_before": self._memory_before,
            "sent": self._sent,
            "meters": self._meters,
            "reasons": [each.reason for each in self._found if each.reason],
            "drawn": self._sampler.drawn(),
        }
        shares = _everyone(share)
        if dist.get_rank():
            return {}
        accelerated = self._on.name != "cpu"
        return {
            **meters.memory(shares),
            "utilisation": meters.utilisation(shares, of_accelerators=accelerated),
            "energy": meters.energy(shares, of_accelerators=accelerated),
        }


def refuse_shared(everyone: list[tuple[str, str, str | None]]) -> None:
    """Nothing, when no two ranks have the same accelerator. Raises UsageError naming the two."""
    taken: dict[tuple[str, str], int] = {}
    for rank, (machine, _, address) in enumerate(everyone):
        if address is None:
            continue
        first = taken.setdefault((machine, address), rank)
        if first != rank:
            raise UsageError(
                f"ranks {first} and {rank} both have the accelerator {address}; expected one each: "
                "take fewer ranks per node"
            )


def _sources(on: DeviceKind, addresses: list[str]) -> tuple[PowerMeters, ...]:
    """Processors of this machine, and its accelerators that ranks have."""
    if on.name == "cpu":
        return (counters.rapl_sources(),)
    if not addresses:
        return (
            counters.rapl_sources(),
            PowerMeters(reason="accelerators: this torch does not report which they are"),
        )
    read = counters.amdgpu_sources if getattr(torch.version, "hip", None) else counters.nvml_sources
    return (counters.rapl_sources(), read(addresses))


def _everyone(value: Any) -> list[Any]:  # noqa: ANN401 - whatever pickles
    """What each rank holds, by rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _network() -> str:
    """An identity of the network that this process sees, among those of all machines."""
    try:
        return f"{kernel_id()} {_NETWORK.stat().st_ino}"
    except OSError:
        return kernel_id()
