"""The devices that ranks compute on, one file each. Torch loads when one is used."""

from equipoise.bench.devices.cpu import CPU
from equipoise.bench.devices.cuda import CUDA
from equipoise.bench.devices.device import Clock, Device
from equipoise.errors import UsageError

__all__ = ["DEVICES", "Clock", "Device", "device"]

DEVICES = (CPU, CUDA)


def device(name: str) -> Device:
    """The device of that name.

    Raises UsageError listing those there are.

    >>> device("cpu").backend
    'gloo'
    """
    for found in DEVICES:
        if found.name == name:
            return found
    raise UsageError(f"device {name!r}; expected one of {', '.join(each.name for each in DEVICES)}")
