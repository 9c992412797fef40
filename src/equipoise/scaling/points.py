"""Entries as points of the pooled law: where each lies, and what it has in common with others. No fitting."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.spec.hardware import exact_accelerator

Floats = NDArray[np.float64]
Texts = NDArray[np.str_]

# What makes a curve: one accelerator, form factor and memory on one workload in one round.
GROUP = ("campaign", "workload", "accelerator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Where entries of one workload lie: arrays of shape (n_points,).

    size_log2: log2 of the number of accelerators. age: the round, counted in rounds. compute_log2: log2 of
    the nominal peak, FLOP/s, of all accelerators; NaN where the chip states none.
    family: chip without form factor and memory. lever_log2: log2 of the batch (of all or of one accelerator);
    None when the batch is not an input.
    """

    size_log2: Floats
    age: Floats
    compute_log2: Floats
    accelerator: Texts
    family: Texts
    vendor: Texts
    lever_log2: Floats | None = None

    def __post_init__(self) -> None:
        """Check that all columns are as long."""
        columns = (self.age, self.compute_log2, self.accelerator, self.family, self.vendor)
        assert all(len(column) == len(self) for column in columns)

    def __len__(self) -> int:
        """How many points there are."""
        return len(self.size_log2)

    def joined(self, other: "Points") -> "Points":
        """These points, then the others."""
        lever = None
        if self.lever_log2 is not None and other.lever_log2 is not None:
            lever = np.concatenate([self.lever_log2, other.lever_log2])
        return Points(
            size_log2=np.concatenate([self.size_log2, other.size_log2]),
            age=np.concatenate([self.age, other.age]),
            compute_log2=np.concatenate([self.compute_log2, other.compute_log2]),
            accelerator=np.concatenate([self.accelerator, other.accelerator]),
            family=np.concatenate([self.family, other.family]),
            vendor=np.concatenate([self.vendor, other.vendor]),
            lever_log2=lever,
        )


def points(
    accelerators: Sequence[str],
    num_accelerators: Sequence[float] | Floats,
    age: Sequence[float] | Floats,
    *,
    lever: Floats | None = None,
) -> Points:
    """The points of entries, with the facts of their chips.

    accelerators: slugs; an unknown one is a family of its own without facts. age: see Points.
    lever: samples of a batch, (n_points,), or None.
    """
    sizes = np.log2(np.asarray(num_accelerators, dtype=float))
    facts = {name: _chip(name) for name in set(accelerators)}
    peaks = np.array([facts[name][1] for name in accelerators], dtype=float)
    return Points(
        size_log2=sizes,
        age=np.asarray(age, dtype=float),
        compute_log2=sizes + peaks,
        accelerator=np.array(accelerators, dtype=np.str_),
        family=np.array([name.split("-", 1)[0] for name in accelerators], dtype=np.str_),
        vendor=np.array([facts[name][0] for name in accelerators], dtype=np.str_),
        lever_log2=None if lever is None else np.log2(lever),
    )


def _chip(slug: str) -> tuple[str, float]:
    """Vendor and log2 of the dense peak at training precision of a chip; slug and NaN if unknown."""
    chip = exact_accelerator(slug)
    if chip is None:
        return slug, np.nan
    peak = chip.peak_bf16_flop_per_s or chip.peak_fp16_flop_per_s or chip.peak_fp32_flop_per_s
    return chip.vendor, np.nan if peak is None else float(np.log2(peak))
