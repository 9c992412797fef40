"""The devices that ranks compute on: binding, communication backend, synchronisation, clocks and memory."""

import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from equipoise.bench import counters
from equipoise.bench.environment import command_output, file_text, no_torch, usable_cores
from equipoise.errors import UsageError
from equipoise.units import KIB, MILLISECOND_S

if TYPE_CHECKING:
    import torch


class Clock(Protocol):
    """Takes timestamps of when the work submitted to a device is done, without waiting for it."""

    def now(self) -> Any:  # noqa: ANN401 - a number or an event; only `moments` reads it
        """Return a timestamp of this point in the program."""

    def moments(self, stamps: Sequence[Any]) -> list[float]:
        """Return the seconds from the first timestamp to each; wait until the last is reached."""


class DeviceKind(Struct, frozen=True, kw_only=True):
    """A kind of device. Its functions are called in the rank's process, after the rank's cores are set.

    backend: the communication backend. why_not: the reason why no rank can compute on it here; None if it
    can. refusal: the reason why it does not support a precision; None if it does. bind: takes the local rank,
    returns the device reserved for that rank; raises UsageError if there is none. synchronise: waits until
    all submitted work is done. set_precision: sets whether matrix products may use tf32. clock: creates a
    clock of a device. restart_peak: resets the peak of memory. memory: bytes by name, including `peak`. Both
    default to the bound device. address: unique on its machine; None if ranks share the device. activities:
    names of torch.profiler's activities.
    """

    name: str
    backend: str
    activities: tuple[str, ...]
    why_not: Callable[[], str | None]
    refusal: Callable[[str], str | None]
    bind: Callable[[int], "torch.device"]
    set_precision: Callable[[str], None]
    synchronise: Callable[[], None]
    clock: Callable[..., Clock]
    restart_peak: Callable[[], None]
    memory: Callable[..., Mapping[str, int]]
    address: Callable[["torch.device"], str | None]
    conditions: Callable[["torch.device"], Mapping[str, Any]]


_STATUS = Path("/proc/self/status")
# The kernel's names of the current resident set size and its high-water mark.
_KEYS = (("now", "VmRSS"), ("peak", "VmHWM"))


class HostClock:
    """The host clock: on a CPU, all earlier work is done at each point in the program."""

    now = staticmethod(perf_counter)

    def __init__(self, _place: "torch.device | None" = None) -> None:
        """All cores share one clock."""

    def moments(self, stamps: Sequence[float]) -> list[float]:
        """Return the seconds from the first timestamp to each."""
        return [stamp - stamps[0] for stamp in stamps]


def _cpu_refusal(precision: str) -> str | None:
    if precision == "tf32":
        return "tf32 needs the matrix units of an NVIDIA or AMD accelerator: use fp32 or bf16 on a processor"
    return None


def _cpu_restart_peak() -> None:
    """Have the kernel reset the memory peak, if it permits that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _cpu_memory(_place: "torch.device | None" = None) -> Mapping[str, int]:
    """Return resident bytes now and at the peak since its reset, or since the process began."""
    facts = dict(line.split(":", 1) for line in file_text(_STATUS).splitlines() if ":" in line)
    counted = {name: int(facts[key].split()[0]) * KIB for name, key in _KEYS if key in facts}
    if "peak" not in counted:
        counted["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    return counted


CPU = DeviceKind(
    name="cpu",
    backend="gloo",
    activities=("CPU",),
    why_not=no_torch,
    refusal=_cpu_refusal,
    bind=lambda _local_rank: _torch().device("cpu"),  # cores were set before torch was imported
    set_precision=lambda _precision: None,
    synchronise=lambda: None,
    clock=HostClock,
    restart_peak=_cpu_restart_peak,
    memory=_cpu_memory,
    address=lambda _place: None,
    conditions=lambda _place: {},  # the processor is part of the machine's conditions
)


def _torch() -> Any:  # noqa: ANN401 - torch is not followed
    """Return torch, imported only after the cores of a rank are set."""
    import torch  # noqa: PLC0415 - see above

    return torch


def every_rank(value: Any) -> list[Any]:  # noqa: ANN401 - whatever pickles
    """Return the value of each rank, by rank. All ranks must call."""
    import torch.distributed as dist  # noqa: PLC0415 - see above

    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class EventClock:
    """Records events in the compute stream; each is reached when all work submitted before it is done."""

    def __init__(self, place: "torch.device | None" = None) -> None:
        """place: the device that computes; None for the current device."""
        self._place = place

    def now(self) -> tuple[float, Any]:
        """Return the host time and an event that the device will reach."""
        cuda = _torch().cuda
        event = cuda.Event(enable_timing=True)
        # A user's loop that did not set its device computes on a device other than the current one.
        event.record(cuda.current_stream(self._place))
        return perf_counter(), event

    def moments(self, stamps: Sequence[tuple[float, Any]]) -> list[float]:
        """Return the seconds from the first timestamp to each on the device's clock; wait for the last."""
        if not stamps:
            return []
        stamps[-1][1].synchronize()
        first = stamps[0][1]
        return [first.elapsed_time(event) * MILLISECOND_S for _, event in stamps]


def _cuda_why_not() -> str | None:
    if reason := no_torch():
        return reason
    torch = _torch()
    if not torch.cuda.is_available():
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        problem = "finds no accelerator" if built else "was built without CUDA and ROCm"
        return f"torch {torch.__version__} {problem}; take --device cpu or install a torch built for yours"
    return None if torch.distributed.is_nccl_available() else "torch was built without NCCL and RCCL"


def _cuda_refusal(precision: str) -> str | None:
    torch = _torch()
    name = torch.cuda.get_device_name()
    # torch has is_tf32_supported since 2.6. NVIDIA introduced tf32 and bf16 with the same architecture.
    has_tf32 = getattr(
        torch.cuda, "is_tf32_supported", partial(torch.cuda.is_bf16_supported, including_emulation=False)
    )
    if precision == "tf32" and not has_tf32():
        return f"{name} has no tf32; take fp32 or bf16"
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return f"{name} has no bf16; take fp32"
    return None


def accelerator_index(local_rank: int, num_visible: int) -> int:
    """Return the index of the visible accelerator that a rank uses.

    If a scheduler makes only one visible to each rank, the index is 0 for every rank.
    Raises UsageError if there are too few.

    >>> accelerator_index(3, 8), accelerator_index(3, 1)
    (3, 0)
    """
    if num_visible == 1:
        return 0
    if local_rank >= num_visible:
        raise UsageError(
            f"rank {local_rank} of this node sees {num_visible} accelerators; take at most "
            f"{num_visible} ranks per node"
        )
    return local_rank


def _cuda_bind(local_rank: int) -> "torch.device":
    torch = _torch()
    place = torch.device("cuda", accelerator_index(local_rank, torch.cuda.device_count()))
    torch.cuda.set_device(place)
    return place


def _set_precision(precision: str) -> None:
    """Enable or disable tf32, which torch uses for fp32 convolutions by default."""
    torch = _torch()
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def takes_tf32() -> bool:
    """Return whether fp32 matrix products may use tf32, from whichever of torch's settings applies.

    torch has two settings since 2.9, and the older one raises if the newer one was set.
    """
    products = _torch().backends.cuda.matmul
    precision = getattr(products, "fp32_precision", None)
    return bool(products.allow_tf32 if precision is None else precision == "tf32")


def _synchronise() -> None:
    _torch().cuda.synchronize()


def _cuda_restart_peak() -> None:
    _torch().cuda.reset_peak_memory_stats()


def _cuda_memory(place: "torch.device | None" = None) -> Mapping[str, int]:
    """Return bytes of tensors now and at the peak, and the peak bytes reserved by torch's allocator."""
    torch = _torch()
    return {
        "now": torch.cuda.memory_allocated(place),
        "peak": torch.cuda.max_memory_allocated(place),
        "reserved": torch.cuda.max_memory_reserved(place),
    }


def _address(place: "torch.device") -> str | None:
    return address_of(_torch().cuda.get_device_properties(place))


def address_of(properties: Any) -> str | None:  # noqa: ANN401 - torch's properties of a device, which vary with torch
    """Return the PCI address as the kernel writes it, or the UUID if torch does not report the address."""
    if hasattr(properties, "pci_bus_id"):
        return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    return f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else None


def _cuda_conditions(place: "torch.device") -> Mapping[str, Any]:
    torch = _torch()
    properties = torch.cuda.get_device_properties(place)
    rocm = getattr(torch.version, "hip", None)
    address = _address(place) or ""
    return {
        "accelerator": properties.name,
        "accelerator_memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "rocm": rocm,
        "collectives": ".".join(map(str, torch.cuda.nccl.version())),
        **(counters.amdgpu_conditions(address) if rocm else counters.nvml_conditions(address)),
    }


CUDA = DeviceKind(
    name="cuda",
    backend="nccl",
    activities=("CPU", "CUDA"),
    why_not=_cuda_why_not,
    refusal=_cuda_refusal,
    bind=_cuda_bind,
    set_precision=_set_precision,
    synchronise=_synchronise,
    clock=EventClock,
    restart_peak=_cuda_restart_peak,
    memory=_cuda_memory,
    address=_address,
    conditions=_cuda_conditions,
)

DEVICES = (CPU, CUDA)


def device(name: str) -> DeviceKind:
    """Return the device of that name.

    Raises UsageError that lists the known devices.

    >>> device("cpu").backend
    'gloo'
    """
    for found in DEVICES:
        if found.name == name:
            return found
    raise UsageError(f"device {name!r}; expected one of {', '.join(each.name for each in DEVICES)}")


# Device files of NVIDIA's and AMD's drivers; if neither exists, torch need not be imported to count devices.
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_COUNT = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
_COUNT_S = 60.0


class AvailableDevices(Struct, frozen=True, kw_only=True):
    """A kind of device, as torch names it, and the number available."""

    device: str
    num_devices: int


def available_devices(device: str) -> AvailableDevices:
    """Return the devices for `auto`, `cpu` or `cuda`; `auto` prefers accelerators to cores."""
    if device != "cpu":
        count = _num_accelerators()
        if count or device == "cuda":
            return AvailableDevices(device="cuda", num_devices=count)
    return AvailableDevices(device="cpu", num_devices=len(usable_cores()))


def _num_accelerators() -> int:
    """Return the number of accelerators that torch sees; 0 without a driver or without torch."""
    if not any(driver.exists() for driver in _DRIVERS):
        return 0
    printed = command_output((sys.executable, "-c", _COUNT), limit_s=_COUNT_S).strip()
    return int(printed) if printed.isdecimal() else 0
