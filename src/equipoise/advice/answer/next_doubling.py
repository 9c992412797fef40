"""What twice the accelerators would gain and cost."""

from equipoise.advice.answer.advice import Choice, NextDoubling
from equipoise.units import HOUR_S


def next_doubling(choice: Choice, doubled: Choice | None) -> NextDoubling | None:
    """The step from a choice to twice its size; None where nothing is known there.

    Assumes both times are off alike, so that their difference is surer than each.
    Source: definition; an hour must be worth what the faster training costs more, over the hours it saves.
    """
    if doubled is None:
        return None
    gain_s = choice.time.value - doubled.time.value
    usd = None
    if choice.bill.usd is not None and doubled.bill.usd is not None:
        usd = doubled.bill.usd - choice.bill.usd
    return NextDoubling(
        num_accelerators=doubled.num_accelerators,
        time=doubled.time,
        gain_s=gain_s,
        gain_fraction=gain_s / choice.time.value,
        accelerator_hours_factor=doubled.accelerator_hours / choice.accelerator_hours,
        usd=usd,
        hour_usd=usd / (gain_s / HOUR_S) if usd is not None and gain_s > 0.0 else None,
    )
