"""An option of a plan as text: for the hover of its marker, for tiles and for cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from equipoise.advice.answer.advice import Choice
from equipoise.advice.plans.planned import Option
from equipoise.economics import Bill
from equipoise.report.blocks import Cell
from equipoise.report.words import ABSENT, DASH, TIMES, accelerator_name, count, sentence
from equipoise.stats import Interval
from equipoise.units import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    format_duration,
    format_percent,
    format_si,
)

HOVER_CHARACTERS: Final = 52
TONNE_KG: Final = 1000.0

CAUSES: Final = {
    "compute": "computing",
    "host": "launches from the host",
    "tp": "tensor-parallel traffic",
    "cp": "context-parallel traffic",
    "ep": "expert traffic",
    "pp": "pipeline traffic",
    "dp": "data-parallel traffic",
    "idle": "idle in the pipeline",
    "optimizer": "optimizer",
    "waiting": "waiting for the slowest",
    "other": "rest of a step",
    "rest": "smaller causes",
}
KINDS: Final = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "buffers": "buffers",
    "fixed": "context and libraries",
    "slack": "held by the allocator",
    "rest": "smaller kinds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUnit:
    """A unit for an axis of times."""

    name: str
    seconds: float


TIME_UNITS: Final = (
    TimeUnit(name="days", seconds=DAY_S),
    TimeUnit(name="hours", seconds=HOUR_S),
    TimeUnit(name="minutes", seconds=MINUTE_S),
    TimeUnit(name="seconds", seconds=1.0),
)


def time_unit(times_s: Sequence[float]) -> TimeUnit:
    """The largest unit of which the middle of the times has at least one."""
    middle = sorted(times_s)[len(times_s) // 2]
    return next((unit for unit in TIME_UNITS if middle >= unit.seconds), TIME_UNITS[-1])


def time_range(time: Interval) -> str:
    """The ends of an interval of times, with its level."""
    low, high = format_duration(time.low), format_duration(time.high)
    return f"{low} {DASH} {high}, {format_percent(time.level)}"


def hardware(option: Option | Choice) -> str:
    """Count and kind of accelerators: `64 x H100 SXM5 80 GB`."""
    return f"{count(option.num_accelerators)} {TIMES} {accelerator_name(option.accelerator)}"


def strategy(option: Option) -> str:
    """The one text form of a strategy."""
    return sentence(option.strategy.text())


def usd(bill: Bill) -> str:
    """What it costs."""
    return ABSENT if bill.usd is None else f"{format_si(bill.usd)} USD"


def energy(bill: Bill) -> str:
    """The energy it takes."""
    return ABSENT if bill.energy_j is None else format_si(bill.energy_j, "J")


def carbon(bill: Bill) -> str:
    """The carbon dioxide of its electricity.

    A tonne and more is said in tonnes.
    """
    if bill.carbon_kg is None:
        return ABSENT
    if bill.carbon_kg >= TONNE_KG:
        return f"{bill.carbon_kg / TONNE_KG:.3g} t CO2"
    return f"{bill.carbon_kg:.3g} kg CO2"


def hours(bill: Bill) -> str:
    """Accelerator-hours it takes."""
    return f"{format_si(bill.accelerator_hours)} accelerator-hours"


def takes(option: Option) -> str:
    """Time and money of a training; accelerator-hours where there is no price."""
    bill = option.bill
    return f"{format_duration(option.time.value)}, {hours(bill) if bill.usd is None else usd(bill)}"


def hover(option: Option, *extra: str) -> tuple[str, ...]:
    """The lines beside an option's marker: size, time, bill, memory, then `extra`, then its strategy."""
    bill = option.bill
    paid = [each for each in (usd(bill), energy(bill), carbon(bill)) if each != ABSENT]
    return (
        hardware(option),
        f"{format_duration(option.time.value)} ({time_range(option.time)})",
        ", ".join([*paid, hours(bill)]),
        f"{format_si(option.memory_bytes, 'B')} an accelerator",
        *extra,
        *wrap(strategy(option), HOVER_CHARACTERS),
    )


def time_cell(option: Option) -> Cell:
    """The time of a training, below it its interval."""
    time = option.time
    return Cell(
        text=format_duration(time.value),
        key=time.value,
        detail=f"{format_duration(time.low)} {DASH} {format_duration(time.high)}",
    )


def strategy_cell(option: Option) -> Cell:
    """The strategy in its text form."""
    return Cell(text=strategy(option), key=strategy(option), is_code=True)
