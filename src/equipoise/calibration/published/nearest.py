"""Which published steps are nearest to a planned one, by a documented distance."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.errors import SpecError
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.hardware import is_same_chip, is_same_family, peak_log2
from equipoise.spec.strategy import SOFTWARE, SOFTWARE_NAMES, Trained, software

# How far apart steps are: tenths of the logarithm of MFU by which steps of two sources that differ in this
# differ more than those that do not, docs/experiments/0030. The model's name, software of one family and the
# number of accelerators make no difference that shows; they count a little, so that of equally near steps
# those of the same model come first.
OTHER_KIND: Final = 1.3
OTHER_PRECISION: Final = 0.9
OTHER_CHIP: Final = 0.8
OTHER_FORM: Final = 0.4  # the same chip on another board or with other memory
OTHER_FAMILY: Final = 0.5
OTHER_SOFTWARE: Final = 0.2
OTHER_MODEL: Final = 0.3
PER_DOUBLING_OF_PARAMS: Final = 0.16
PER_DOUBLING_OF_PEAK: Final = 0.1
PER_DOUBLING_OF_SEQUENCE: Final = 0.05
PER_DOUBLING_OF_ACCELERATORS: Final = 0.03
# Nothing farther is shown: about another chip and another precision.
FARTHEST: Final = 2.0
# What was written down from memory, or is noisy by what its source says, is no evidence of a single step.
_TRUSTED: Final = ("stated", "second_hand")
_UNKNOWN_DOUBLINGS: Final = 2.0  # where a row or the question states no such size


class PlannedStep(Struct, frozen=True, kw_only=True):
    """What published steps are compared with. None is not known; model: slug of the catalogue.

    model_kind: `dense`, `experts` or `other`, of which only rows of the same model are near. trained: all
    weights or adapters, as of a strategy.
    """

    model: str
    model_kind: str
    trained: Trained
    active_params: float | None
    sequence_tokens: int | None
    accelerator: str
    num_accelerators: int
    software: str | None
    dtype: str | None


def nearest_steps(
    table: pl.DataFrame, planned: PlannedStep, catalogue: Catalogue, *, most: int
) -> pl.DataFrame:
    """The nearest rows of the table with their `distance`, the nearest first; of alike rows one.

    Only steps that the model predicts, on accelerators of the same maker and kind, that train as much of the
    model. Rows are alike that share repository and software.
    """
    rows = table.filter(
        (pl.col("row_id") == pl.col("execution"))
        & pl.col("step_s").is_not_null()
        & pl.col("reason").is_null()
        & pl.col("trust").is_in(_TRUSTED)
        & (pl.col("trained") == planned.trained)
    )
    rows = rows.filter(
        pl.col("model") == planned.model
        if planned.model_kind == "other"
        else pl.col("model_kind").is_in(("dense", "experts"))
    )
    apart = _chips_apart(rows["accelerator"].unique().to_list(), planned.accelerator, catalogue)
    rows = rows.filter(pl.col("accelerator").is_in([*apart]))
    if rows.is_empty():
        return rows.with_columns(distance=pl.lit(0.0))
    far = np.array([apart[each] for each in rows["accelerator"]])
    far += OTHER_KIND * _differs(rows["model_kind"], planned.model_kind)
    far += OTHER_MODEL * _differs(rows["model"], planned.model)
    far += OTHER_PRECISION * _differs(rows["dtype"], planned.dtype)
    software_apart = _software_apart(planned.software)
    far += np.array([software_apart[each] for each in rows["software"]])
    for column, value, weight in (
        ("active_params", planned.active_params, PER_DOUBLING_OF_PARAMS),
        ("sequence_tokens", planned.sequence_tokens, PER_DOUBLING_OF_SEQUENCE),
        ("num_accelerators", planned.num_accelerators, PER_DOUBLING_OF_ACCELERATORS),
    ):
        far += weight * _doublings(rows[column], value)
    return (
        rows.with_columns(distance=pl.Series(far))
        .filter(pl.col("distance") <= FARTHEST)
        .sort("distance", "row_id")
        .unique(("repository", "software"), keep="first", maintain_order=True)
        .head(most)
    )


def _differs(column: pl.Series, value: str | None) -> NDArray[np.float64]:
    if value is None:
        return np.zeros(len(column))
    return column.ne_missing(pl.Series([value])).to_numpy().astype(float)


def _doublings(column: pl.Series, value: float | None) -> NDArray[np.float64]:
    if value is None:
        return np.zeros(len(column))
    found = column.cast(pl.Float64).fill_null(value * 2.0**_UNKNOWN_DOUBLINGS)
    return np.asarray(np.abs(np.log2(found.to_numpy() / value)))


def _software_apart(wanted: str | None) -> dict[str | None, float]:
    """How far every software is from one; software that is not known is of another family."""
    if wanted is None:
        return dict.fromkeys((*SOFTWARE_NAMES, None), 0.0)
    family = software(wanted).family
    found: dict[str | None, float] = {
        each.name: OTHER_SOFTWARE if each.family == family else OTHER_FAMILY for each in SOFTWARE
    }
    return found | {None: OTHER_FAMILY, wanted: 0.0}


def _chips_apart(slugs: Sequence[str | None], wanted: str, catalogue: Catalogue) -> dict[str, float]:
    """How far chips of the same maker and kind are from one; those of others are left out."""
    found: dict[str, float] = {}
    try:
        here = catalogue.accelerator(wanted)
    except SpecError:
        return found
    for slug in slugs:
        if slug is None:
            continue
        chip = catalogue.accelerator(slug)
        if not is_same_family(chip, here):
            continue
        if slug == here.slug:
            found[slug] = 0.0
        elif is_same_chip(chip, here):
            found[slug] = OTHER_FORM
        else:
            found[slug] = OTHER_CHIP + PER_DOUBLING_OF_PEAK * abs(peak_log2(chip) - peak_log2(here))
    return found
