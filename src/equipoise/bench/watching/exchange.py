"""Communication of some steps, by torch's profiler: these steps are slower and are not counted."""

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from equipoise.bench.devices import Device
from equipoise.bench.profiled import Profiled, profiled_in


class Exchange:
    """Steps profiled from `begin` to `ended`."""

    def __init__(self, on: Device) -> None:
        """on: the device of which activities are recorded."""
        self._activities = [getattr(ProfilerActivity, name) for name in on.activities]
        self._synchronise = on.synchronise
        self._seen: Any = None

    def begin(self) -> bool:
        """Whether profiling began: not where somebody else profiles."""
        if torch.autograd._profiler_enabled():  # noqa: SLF001 - there is no other way to ask
            return False
        self._seen = profile(activities=self._activities)
        self._seen.start()
        return True

    def ended(self) -> Profiled | None:
        """Communication since `begin`; None where nothing was profiled."""
        if self._seen is None:
            return None
        self._synchronise()
        self._seen.stop()
        seen, self._seen = self._seen, None
        return profiled_in(seen)
