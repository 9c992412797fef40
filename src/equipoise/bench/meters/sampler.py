"""Sources read again and again while a window lasts, and what they drew in it. No torch."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from equipoise.bench.meters.integrated import counted_j, disagreement, integrated_j
from equipoise.bench.meters.source import Reading, Source
from equipoise.units import format_percent

# Ten readings a second cost a thousandth of a core; sensors renew theirs about as often.
PERIOD_S = 0.1
# Counter and polled power of one accelerator that differ by more are told. Sensors are good to 5 %, and some
# look at a part of the time only: Yang et al. 2023, arXiv 2312.02741.
AGREED_FRACTION = 0.1
# A window of fewer readings says nothing about agreement.
_LEAST_READINGS = 20

Series = tuple[list[float], list[float]]


@dataclass(slots=True)
class Readings:
    """What one source said, each series with its moments."""

    counter: Series = field(default_factory=lambda: ([], []))
    power: Series = field(default_factory=lambda: ([], []))
    busy: Series = field(default_factory=lambda: ([], []))


class Sampler:
    """Reads sources at the beginning, every period, and at the end, on a thread of its own."""

    def __init__(self, sources: Sequence[Source], period_s: float = PERIOD_S) -> None:
        """period_s: between readings."""
        self._sources = sources
        self._readings = [Readings() for _ in sources]
        self._period_s = period_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._read()
        if self._sources:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End with a last reading."""
        self._over.set()
        if self._sources:
            self._thread.join()
        self._read()

    def _poll(self) -> None:
        while not self._over.wait(self._period_s):
            self._read()

    def _read(self) -> None:
        for source, seen in zip(self._sources, self._readings, strict=True):
            _noted(source.counter_j, seen.counter)
            _noted(source.power_w, seen.power)
            _noted(source.busy_fraction, seen.busy)

    def drawn(self) -> list[dict[str, Any]]:
        """One record a source, after the end."""
        return [drawn(*pair) for pair in zip(self._sources, self._readings, strict=True)]


def _noted(ask: Reading | None, series: Series) -> None:
    value = ask() if ask else None
    if value is not None:
        series[0].append(perf_counter())
        series[1].append(value)


def drawn(source: Source, readings: Readings) -> dict[str, Any]:
    """Energy of one source: by its counter where it has one, else by its power; and what does not agree.

    Assumes readings often enough that a counter begins again at most once between two.
    Source: integrated.py.
    """
    counter = counted_j(readings.counter[1], source.range_j) if len(readings.counter[1]) > 1 else None
    polled = integrated_j(*readings.power) if len(readings.power[1]) > 1 else None
    told = None
    if counter and polled and len(readings.power[1]) >= _LEAST_READINGS:
        apart = disagreement(counter, polled)
        if apart > AGREED_FRACTION:
            told = (
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
        "disagreement": told,
    }
