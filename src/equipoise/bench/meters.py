"""Resource use in a window of a run: energy, memory, processors and network, over ranks and machines.

Functions that exchange readings between ranks import torch.
"""

import math
import platform
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field

from equipoise.bench import counters
from equipoise.bench.counters import PowerMeter, PowerMeters, Reading, core_use, others_fraction, sent_bytes
from equipoise.bench.devices import DeviceKind, every_rank
from equipoise.bench.environment import kernel_id, usable_cores
from equipoise.errors import UsageError
from equipoise.units import format_percent

if TYPE_CHECKING:
    import torch


def counted_j(readings_j: Sequence[float], range_j: float) -> float | None:
    """Return the joules between the first and last reading of a counter; None if it was reset in between.

    readings_j: in order of time. range_j: the value beyond which the counter wraps to zero; infinite if it
    never wraps.
    Assumes it wraps at most once between two readings.
    Source: Linux Documentation/power/powercap, max_energy_range_uj.

    >>> counted_j([90.0, 98.0, 4.0, 10.0], 100.0)
    20.0
    """
    counted = sum(
        later - earlier if later >= earlier else later - earlier + range_j
        for earlier, later in pairwise(readings_j)
    )
    return counted if counted < math.inf else None


def integrated_j(moments_s: Sequence[float], power_w: Sequence[float]) -> float:
    """Return the energy in joules from power readings, integrated by linear interpolation.

    moments_s, power_w: (n_readings,), in order of time.
    Assumes instantaneous readings; sensors that average over a period lag behind.
    Source: the trapezoidal rule.

    >>> integrated_j([0.0, 2.0, 3.0], [100.0, 200.0, 0.0])
    400.0
    """
    points = zip(moments_s, power_w, strict=True)
    return sum((end - begun) * (low + high) / 2 for (begun, low), (end, high) in pairwise(points))


# Ten readings per second use a thousandth of a core; sensors update about as often.
PERIOD_S = 0.1
# A larger difference between counter and polled power is reported. Sensors are accurate to 5 %, and some
# sample only part of the time: Yang et al. 2023, arXiv 2312.02741.
AGREED_FRACTION = 0.1
# With fewer readings, counter and polled power are not compared.
_MIN_READINGS = 20

# Times in seconds, and the values read at these times.
Series = tuple[list[float], list[float]]


class Readings(Struct):
    """The series of readings of one meter."""

    counter: Series = field(default_factory=lambda: ([], []))
    power: Series = field(default_factory=lambda: ([], []))
    busy: Series = field(default_factory=lambda: ([], []))


class Sampler:
    """Reads meters at the beginning, periodically, and at the end, on a separate thread."""

    def __init__(self, sources: Sequence[PowerMeter], period_s: float = PERIOD_S) -> None:
        """period_s: the interval between readings."""
        self._sources = sources
        self._readings = [Readings() for _ in sources]
        self._period_s = period_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Self:
        """Take the first reading and start the thread."""
        self._read()
        if self._sources:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread and take the last reading."""
        self._over.set()
        if self._sources:
            self._thread.join()
        self._read()

    def _poll(self) -> None:
        while not self._over.wait(self._period_s):
            self._read()

    def _read(self) -> None:
        for source, seen in zip(self._sources, self._readings, strict=True):
            _append_reading(source.counter_j, seen.counter)
            _append_reading(source.power_w, seen.power)
            _append_reading(source.busy_fraction, seen.busy)

    def drawn(self) -> list[dict[str, Any]]:
        """Return one record per meter, after the end."""
        return [drawn(*pair) for pair in zip(self._sources, self._readings, strict=True)]


def _read_all(readers: Iterable[Reading | None]) -> list[float]:
    return [value for read in readers if read is not None and (value := read()) is not None]


def _append_reading(read: Reading | None, series: Series) -> None:
    value = read() if read else None
    if value is not None:
        series[0].append(perf_counter())
        series[1].append(value)


def drawn(source: PowerMeter, readings: Readings) -> dict[str, Any]:
    """Return the energy of one meter, from its counter or else its power, and any disagreement of the two.

    Assumes readings frequent enough that a counter wraps at most once between two.
    Source: counted_j, integrated_j.
    """
    counter = counted_j(readings.counter[1], source.range_j) if len(readings.counter[1]) > 1 else None
    polled = integrated_j(*readings.power) if len(readings.power[1]) > 1 else None
    note = None
    if counter and polled and len(readings.power[1]) >= _MIN_READINGS:
        apart = abs(polled - counter) / counter
        if apart > AGREED_FRACTION:
            note = (
                f"{source.part}: polled power is {format_percent(apart)} from the energy counter, "
                f"more than {format_percent(AGREED_FRACTION)}"
            )
    energy = polled if counter is None else counter
    return {
        "part": source.part,
        "meter": f"{source.meter} {'power' if counter is None else 'counter'}"
        if energy is not None
        else None,
        "energy_j": energy,
        "counter_j": counter,
        "polled_j": polled,
        "busy_fraction": fmean(readings.busy[1]) if readings.busy[1] else None,
        "num_readings": max(len(readings.counter[1]), len(readings.power[1])),
        "disagreement": note,
    }


Share = Mapping[str, Any]  # the readings of one rank in the window


def utilisation(shares: Sequence[Share], *, of_accelerators: bool) -> dict[str, Any]:
    """Return the utilisation of processors, accelerators and network in the window.

    shares: one per rank. Fractions are means over ranks or accelerators. The byte rate is that of the network
    that sent most: of its wires if ranks see several networks, of the loopback if processors share one. It is
    None for a single rank, and for accelerators of one node, whose traffic no network counter sees.
    Assumes one window. Source: definition; docs/measure/phases.md.
    """
    by_rank = [share["cpu_s"] / (share["wall_s"] * share["num_cores"]) for share in shares]
    parts = [part for share in shares for part in share["drawn"]]
    busy = [part["busy_fraction"] for part in parts if part["busy_fraction"] is not None]
    networks = [share for share in shares if share["sent"] is not None]
    kind = "wire" if len(networks) > 1 else "loopback" if len(shares) > 1 and not of_accelerators else None
    return {
        "cpu_fraction": fmean(by_rank),
        "cpu_fraction_by_rank": by_rank,
        "accelerator_fraction": fmean(busy) if busy else None,
        **others(shares),
        "network": kind,
        "network_byte_per_s": max(each["sent"][kind] / each["wall_s"] for each in networks) if kind else None,
    }


def others(shares: Sequence[Share]) -> dict[str, Any]:
    """Return the use by other programs: of the ranks' cores, and of accelerators before the ranks computed.

    shares: one per rank. num_others_on_accelerators: programs on them at the end other than the ranks. A
    value is None if nothing counts it. Source: definition; docs/measure/phases.md.
    """
    used = [(share["machine"], share["use"]) for share in shares if share["use"] is not None]
    before = [each for share in shares for each in share["busy_before"]]
    programs = [
        each - 1 for share in shares for each in share["num_programs"] if each
    ]  # one is the rank's own
    return {
        "others_cpu_fraction": others_fraction(used),
        "others_accelerator_fraction": max(before, default=None),
        "num_others_on_accelerators": round(sum(programs)) if programs else None,
    }


def energy(shares: Sequence[Share], *, of_accelerators: bool) -> dict[str, Any]:
    """Return the joules of all machines in the window, or the reason why they were not measured.

    of_accelerators: whether ranks compute on accelerators; if so, the sum is None unless it includes all of
    them.
    Assumes each part of a machine is read by one rank. Source: definition; docs/measure/phases.md.
    """
    metering = [share for share in shares if share["meters"]]
    parts = [part for share in metering for part in share["drawn"]]
    counted = [part for part in parts if part["energy_j"] is not None]
    missing = sorted({reason for share in metering for reason in share["reasons"]})
    unread = [part["part"] for part in parts if part["energy_j"] is None]
    missing += [f"{part} did not answer, or its counter was reset" for part in unread]
    start = "accelerator" if of_accelerators else ""
    lacking = any(reason.startswith(start) for reason in missing)
    measured = bool(counted) and not lacking
    return {
        "energy_j": sum(part["energy_j"] for part in counted) if measured else None,
        "meter": " + ".join(sorted({part["meter"] for part in counted})) if measured else None,
        "reason": None if measured else "; ".join(missing) or "this machine has no energy counter",
        "left_out": missing if measured else [],
        "disagreements": [part["disagreement"] for part in counted if part["disagreement"]],
        "parts": [{**part, "node": share["node"]} for share in metering for part in share["drawn"]],
    }


def memory(shares: Sequence[Share]) -> dict[str, Any]:
    """Return the peak bytes by rank, and their growth over the bytes in use before the model."""
    peaks = [share["memory"]["peak"] for share in shares]
    before = [share["memory_before"] for share in shares]
    reserved = [share["memory"].get("reserved") for share in shares]
    return {
        "memory_bytes": peaks,
        "memory_growth_bytes": [
            None if start is None else peak - start for peak, start in zip(peaks, before, strict=True)
        ],
        "memory_reserved_bytes": None if None in reserved else reserved,
    }


_NETWORK = Path("/proc/self/ns/net")


class Metering:
    """A window that every rank enters and leaves; afterwards `gathered` returns the resource use in it.

    Use by other programs is measured from the creation of this object.
    """

    def __init__(self, on: DeviceKind, place: "torch.device") -> None:
        """Every rank creates its own before it computes anything."""
        self._on = on
        everyone = every_rank((kernel_id(), _network(), on.address(place)))
        refuse_shared(everyone)
        rank = _rank()
        machine, network, _ = everyone[rank]
        # The first rank of a machine reads its meters, the first rank of a network its counters.
        self._reads_meters = rank == min(other for other, each in enumerate(everyone) if each[0] == machine)
        self._reads_network = rank == min(other for other, each in enumerate(everyone) if each[1] == network)
        addresses = [each[2] for each in everyone if each[0] == machine and each[2] is not None]
        self._sources = _sources(on, addresses) if self._reads_meters else ()
        self._meters = [meter for each in self._sources for meter in each.found]
        self._sampler = Sampler(self._meters)
        self._machine, self._use = machine, core_use()
        self._busy_before = _read_all(meter.busy_fraction for meter in self._meters)

    def __enter__(self) -> Self:
        """Start counting."""
        self._sampler.__enter__()
        self._sent = sent_bytes() if self._reads_network else None
        self._cpu_s, self._begun = process_time(), perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop counting, after the device has finished its work."""
        self._on.synchronise()
        self._wall_s, self._cpu_s = perf_counter() - self._begun, process_time() - self._cpu_s
        if self._sent is not None:
            after = sent_bytes()
            self._sent = {network: after[network] - sent for network, sent in self._sent.items()}
        self._sampler.__exit__(kind, error, trace)
        self._memory = self._on.memory()
        now = core_use()
        self._use = None if now is None or self._use is None else now.since(self._use)
        self._num_programs = _read_all(meter.num_programs for meter in self._meters)

    def gathered(self, *, memory_before: int) -> Mapping[str, Any]:
        """Return memory, utilisation and energy on rank 0; nothing on others. All ranks must call.

        memory_before: bytes in use before the model was created, from which growth is counted.
        """
        shares = every_rank(
            {
                "node": platform.node(),
                "cpu_s": self._cpu_s,
                "wall_s": self._wall_s,
                "num_cores": len(usable_cores()),
                "memory": dict(self._memory),
                "memory_before": memory_before,
                "machine": self._machine,
                "use": self._use,
                "busy_before": self._busy_before,
                "num_programs": self._num_programs,
                "sent": self._sent,
                "meters": self._reads_meters,
                "reasons": [each.reason for each in self._sources if each.reason],
                "drawn": self._sampler.drawn(),
            }
        )
        if _rank():
            return {}
        accelerated = self._on.name != "cpu"
        return {
            **memory(shares),
            "utilisation": utilisation(shares, of_accelerators=accelerated),
            "energy": energy(shares, of_accelerators=accelerated),
        }


def refuse_shared(everyone: Sequence[tuple[str, str, str | None]]) -> None:
    """Raise UsageError if two ranks have the same accelerator.

    everyone: machine, network and address of the accelerator, by rank.
    """
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


def _sources(on: DeviceKind, addresses: Sequence[str]) -> tuple[PowerMeters, ...]:
    """Return the meters of this machine's processors and of the accelerators at these addresses."""
    processors = counters.rapl_sources()
    if on.name == "cpu":
        return (processors,)
    if not addresses:
        reason = "accelerators: this torch does not report which they are"
        return (processors, PowerMeters(reason=reason))
    import torch  # noqa: PLC0415 - only ranks need torch

    read = counters.amdgpu_sources if getattr(torch.version, "hip", None) else counters.nvml_sources
    return (processors, read(addresses))


def _rank() -> int:
    import torch.distributed as dist  # noqa: PLC0415 - only ranks need torch

    return int(dist.get_rank())


def _network() -> str:
    """Return an identity of this process's network namespace that is unique over all machines."""
    try:
        return f"{kernel_id()} {_NETWORK.stat().st_ino}"
    except OSError:
        return kernel_id()
