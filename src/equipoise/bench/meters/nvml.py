"""NVIDIA accelerators: energy counter, power and use from NVML, through nvidia-ml-py. No torch.

Written against NVML's documented interface; docs/measure/phases.md says on what it was run.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from equipoise.bench.meters.source import Reading, Source, Sources
from equipoise.units import MILLIJOULE_J, MILLIWATT_W, SI_PREFIXES

_MISSING = "accelerators: nvidia-ml-py is not installed: pip install 'equipoise[bench]'"


def sources(addresses: Sequence[str], library: Any = None) -> Sources:  # noqa: ANN401 - pynvml has no types
    """The accelerators at these addresses on the PCI bus, or of these names, which begin with `GPU-`.

    library: what answers as pynvml does; None for pynvml itself.
    """
    nvml, reason = _opened(library)
    if nvml is None:
        return Sources(reason=reason)
    try:
        handles = [_handle(nvml, address) for address in addresses]
    except nvml.NVMLError as err:
        return Sources(reason=f"accelerators: NVML knows none at {', '.join(addresses)} ({err})")
    named = zip(addresses, handles, strict=True)
    return Sources(found=tuple(_source(nvml, address, handle) for address, handle in named))


def _opened(library: Any) -> tuple[Any, str | None]:  # noqa: ANN401 - pynvml has no types
    """NVML, ready to be asked, or None and why not."""
    if library is None:
        try:
            library = import_module("pynvml")
        except ModuleNotFoundError:
            return None, _MISSING
    try:
        library.nvmlInit()  # counted: closing is left to the end of the process
    except library.NVMLError as err:
        return None, f"accelerators: NVML does not start ({err})"
    return library, None


def _handle(nvml: Any, address: str) -> Any:  # noqa: ANN401 - pynvml has no types
    """The accelerator at an address on the PCI bus, or of that name."""
    if address.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(address.encode())
    return nvml.nvmlDeviceGetHandleByPciBusId(address.encode())


def _source(nvml: Any, address: str, handle: Any) -> Source:  # noqa: ANN401 - pynvml has no types
    def asked(ask: Callable[[Any], float], factor: float) -> Reading | None:
        def reading() -> float | None:
            try:
                return ask(handle) * factor
            except nvml.NVMLError:
                return None

        return None if reading() is None else reading  # what it cannot tell now it never tells

    return Source(
        part=f"accelerator {address}",
        meter="NVML",
        counter_j=asked(nvml.nvmlDeviceGetTotalEnergyConsumption, MILLIJOULE_J),
        power_w=asked(nvml.nvmlDeviceGetPowerUsage, MILLIWATT_W),
        busy_fraction=asked(lambda each: nvml.nvmlDeviceGetUtilizationRates(each).gpu, 0.01),
    )


def conditions(address: str, library: Any = None) -> dict[str, Any]:  # noqa: ANN401 - pynvml has no types
    """Driver, clocks and power limit of one accelerator; None where not told."""
    nvml, _ = _opened(library)
    told: dict[str, Any] = dict.fromkeys(
        ("driver", "accelerator_clock_hz", "accelerator_most_clock_hz", "accelerator_power_limit_w")
    )
    if nvml is None:
        return told
    try:
        handle = _handle(nvml, address)
        told["driver"] = nvml.nvmlSystemGetDriverVersion()
        megahertz = SI_PREFIXES["M"]
        told["accelerator_clock_hz"] = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * megahertz
        told["accelerator_most_clock_hz"] = (
            nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * megahertz
        )
        told["accelerator_power_limit_w"] = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * MILLIWATT_W
    except nvml.NVMLError:
        return told
    return told
