"""A user's own times beside published ones: as entries of a group of their own, at their own level."""

from dataclasses import replace

import numpy as np
import polars as pl

from equipoise.runs.readers.measurements import Measurements
from equipoise.scaling.pooled import PooledLaw, Question
from equipoise.units import format_count

# The name of the campaign that a user's own entries are of.
YOURS = "yours"


def own_rows(own: Measurements, workload: str, accelerator: str, schema: pl.Schema) -> pl.DataFrame:
    """The user's measurements as rows of the table `scores`: the median of each size."""
    rows = []
    for size in np.unique(own.num_accelerators):
        here = own.num_accelerators == size
        batch = np.median(own.global_batch_samples[here])
        rows.append(
            {
                "entry_id": f"{own.where}: {format_count(size)} accelerators",
                "origin": "measured",
                "campaign": YOURS,
                "workload": workload,
                "accelerator": accelerator,
                "num_accelerators": int(size),
                "score_s": float(np.median(own.time_s[here])),
                "global_batch_samples": int(batch) if np.isfinite(batch) else None,
                "source_uri": own.where,
            }
        )
    return pl.DataFrame(rows, schema=schema)


def beside_published(known: pl.DataFrame, group: pl.DataFrame) -> tuple[str, ...]:
    """How the user's times compare with the best published ones of the accelerator at the same size."""
    best = group.group_by("num_accelerators").agg(best_s=pl.col("score_s").min())
    both = known.join(best, on="num_accelerators").sort("num_accelerators")
    ratios = both["score_s"] / both["best_s"]
    return tuple(
        f"At {format_count(size)} accelerators your time is {ratio:.2g} times the best published one."
        for size, ratio in zip(both["num_accelerators"], ratios, strict=True)
    )


def own_level(law: PooledLaw, known: pl.DataFrame, question: Question) -> float:
    """How many times longer the user's trainings take than the law expects of the best system of each size.

    known: the user's rows. question: of the same group; its size does not matter.
    Source: the median over the sizes.
    """
    sizes = known["num_accelerators"].to_list()
    expected = law.predict_all(known.head(0), [replace(question, num_accelerators=size) for size in sizes])
    ratios = [actual_s / each.time_s.value for actual_s, each in zip(known["score_s"], expected, strict=True)]
    return float(np.median(ratios))
