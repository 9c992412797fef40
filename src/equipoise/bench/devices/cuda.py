"""Accelerators that torch calls `cuda`: NVIDIA's over NCCL, AMD's (ROCm) over RCCL, which is named nccl too.

Written against torch's documented interface; docs/measure/phases.md says on what it was run.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any

from equipoise.bench.devices.device import Device
from equipoise.bench.meters import amdgpu, nvml
from equipoise.errors import UsageError
from equipoise.units import MILLISECOND_S

if TYPE_CHECKING:
    import torch


class EventClock:
    """Events in the stream that computes; each is reached when all work given before it is done."""

    def now(self) -> tuple[float, Any]:
        """When the host came to this point, and the event that the device will reach."""
        import torch  # noqa: PLC0415 - loaded by now

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return perf_counter(), event

    def moments(self, stamps: Sequence[tuple[float, Any]]) -> list[float]:
        """Seconds from the first stamp to each, on the device's clock; waits for the last."""
        if not stamps:
            return []
        stamps[-1][1].synchronize()
        first = stamps[0][1]
        return [first.elapsed_time(event) * MILLISECOND_S for _, event in stamps]


def _why_not() -> str | None:
    if not find_spec("torch"):
        return "torch is not installed: pip install 'equipoise[torch]'"
    import torch  # noqa: PLC0415 - torch takes seconds
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    if not torch.cuda.is_available():
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        told = "finds no accelerator" if built else "was built without CUDA and ROCm"
        return f"torch {torch.__version__} {told}; take --device cpu or install a torch built for yours"
    return None if dist.is_nccl_available() else "torch was built without NCCL and RCCL"


def _refusal(precision: str) -> str | None:
    import torch  # noqa: PLC0415 - torch takes seconds

    name = torch.cuda.get_device_name()
    if precision == "tf32" and not torch.cuda.is_tf32_supported():
        return f"{name} has no tf32; take fp32 or bf16"
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return f"{name} has no bf16; take fp32"
    return None


def own_index(local_rank: int, num_visible: int) -> int:
    """Which of the accelerators that a rank sees is its own.

    A scheduler may show each rank its own alone: then it is the first whatever the rank's number.
    Raises UsageError when there are too few.

    >>> own_index(3, 8), own_index(3, 1)
    (3, 0)
    """
    if num_visible == 1:
        return 0
    if local_rank >= num_visible:
        raise UsageError(
            f"rank {local_rank} of this node sees {num_visible} accelerators; take at most "
            f"{num_visible} ranks a node"
        )
    return local_rank


def _bind(local_rank: int) -> "torch.device":
    import torch  # noqa: PLC0415 - after the cores are set

    place = torch.device("cuda", own_index(local_rank, torch.cuda.device_count()))
    torch.cuda.set_device(place)
    return place


def _settle(precision: str) -> None:
    """fp32 means it: torch's convolutions take tf32 unless told not to."""
    import torch  # noqa: PLC0415 - loaded by now

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _synchronise() -> None:
    import torch  # noqa: PLC0415 - loaded by now

    torch.cuda.synchronize()


def _restart_peak() -> None:
    import torch  # noqa: PLC0415 - loaded by now

    torch.cuda.reset_peak_memory_stats()


def _memory() -> Mapping[str, int]:
    """What tensors take now and took at most, and what torch's allocator held at most."""
    import torch  # noqa: PLC0415 - loaded by now

    return {
        "now": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


def _address(place: "torch.device") -> str | None:
    import torch  # noqa: PLC0415 - loaded by now

    return address_of(torch.cuda.get_device_properties(place))


def address_of(told: Any) -> str | None:  # noqa: ANN401 - torch's properties of a device, which vary with torch
    """The address on the PCI bus, as the kernel writes it; where torch tells none, NVIDIA's own name."""
    if hasattr(told, "pci_bus_id"):
        return f"{told.pci_domain_id:04x}:{told.pci_bus_id:02x}:{told.pci_device_id:02x}.0"
    return f"GPU-{told.uuid}" if hasattr(told, "uuid") else None


def _conditions(place: "torch.device") -> Mapping[str, Any]:
    import torch  # noqa: PLC0415 - loaded by now

    told = torch.cuda.get_device_properties(place)
    rocm = getattr(torch.version, "hip", None)
    address = _address(place) or ""
    return {
        "accelerator": told.name,
        "accelerator_memory_bytes": told.total_memory,
        "cuda": torch.version.cuda,
        "rocm": rocm,
        "collectives": ".".join(map(str, torch.cuda.nccl.version())),
        **(amdgpu.conditions(address) if rocm else nvml.conditions(address)),
    }


CUDA = Device(
    name="cuda",
    backend="nccl",
    activities=("CPU", "CUDA"),
    why_not=_why_not,
    refusal=_refusal,
    bind=_bind,
    settle=_settle,
    synchronise=_synchronise,
    clock=EventClock,
    restart_peak=_restart_peak,
    memory=_memory,
    address=_address,
    conditions=_conditions,
)
