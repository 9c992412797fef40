"""Which devices this machine has to train on, and how many: without torch in this process."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Drivers of NVIDIA and AMD accelerators; without one of them there is no need to ask torch.
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_COUNT = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
_COUNT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AtHand:
    """A kind of device, as torch names it, and how many ranks can have one of their own."""

    device: str
    num_devices: int


def at_hand(device: str) -> AtHand:
    """What `auto`, `cpu` or `cuda` means here: accelerators where torch sees any, else a core a rank."""
    if device != "cpu":
        count = _num_accelerators()
        if count or device == "cuda":
            return AtHand(device="cuda", num_devices=count)
    return AtHand(device="cpu", num_devices=len(os.sched_getaffinity(0)))


def _num_accelerators() -> int:
    """How many accelerators torch sees; 0 where there is no driver, or no torch."""
    if not any(driver.exists() for driver in _DRIVERS):
        return 0
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _COUNT], capture_output=True, text=True, check=False, timeout=_COUNT_S
        )
    except subprocess.TimeoutExpired:
        return 0
    told = asked.stdout.strip()
    return int(told) if asked.returncode == 0 and told.isdecimal() else 0
