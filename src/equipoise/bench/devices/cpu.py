"""The processor: ranks have cores of their own, exchange over gloo, and do what they are told at once."""

import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from equipoise.bench.devices.device import Device

if TYPE_CHECKING:
    import torch

_KIB = 1024
_STATUS = Path("/proc/self/status")


class HostClock:
    """The processor's own clock: a program that has come to a point has done all before it."""

    now = staticmethod(perf_counter)

    def moments(self, stamps: Sequence[float]) -> list[float]:
        """Seconds from the first stamp to each."""
        return [stamp - stamps[0] for stamp in stamps]


def _why_not() -> str | None:
    return None if find_spec("torch") else "torch is not installed: pip install 'equipoise[torch]'"


def _refusal(precision: str) -> str | None:
    if precision == "tf32":
        return (
            "tf32 is arithmetic of NVIDIA's and AMD's matrix units; a processor has none: take fp32 or bf16"
        )
    return None


def _bind(local_rank: int) -> "torch.device":
    del local_rank  # its cores were set before torch was loaded
    import torch  # noqa: PLC0415 - after the cores are set

    return torch.device("cpu")


def _restart_peak() -> None:
    """Have the kernel count the peak from now on, where it lets a process ask for that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _memory() -> Mapping[str, int]:
    """Resident now, and at its peak since it was restarted; since the process began where it cannot be."""
    told = dict(line.split(":", 1) for line in _status().splitlines() if ":" in line)
    counted = {name: int(told[key].split()[0]) * _KIB for name, key in _KEYS if key in told}
    if "peak" not in counted:
        counted["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
    return counted


# Names of the kernel: resident set now, and its high-water mark.
_KEYS = (("now", "VmRSS"), ("peak", "VmHWM"))


def _status() -> str:
    try:
        return _STATUS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _conditions(place: "torch.device") -> Mapping[str, Any]:
    del place
    return {}  # the processor is recorded with its machine


CPU = Device(
    name="cpu",
    backend="gloo",
    activities=("CPU",),
    why_not=_why_not,
    refusal=_refusal,
    bind=_bind,
    settle=lambda _precision: None,
    synchronise=lambda: None,
    clock=HostClock,
    restart_peak=_restart_peak,
    memory=_memory,
    address=lambda _place: None,
    conditions=_conditions,
)
