"""The table of published training steps made from files of measurements, and its steps predicted.

What the model predicts is not in the table: it is made again with the calibrations that ship.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct

from equipoise.calibration.accuracy import prior_half_width
from equipoise.calibration.published import (
    PublishedRow,
    published_steps,
    rows_of_table,
)
from equipoise.calibration.published.executions import digest_of
from equipoise.calibration.step_rows import step_predictor
from equipoise.calibration.validate import AUTO, basis_of
from equipoise.errors import UsageError
from equipoise.intervals import LEVEL
from equipoise.runs.readers.cells import quoted
from equipoise.spec import canonical
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.strategy import SOFTWARE, SOFTWARE_NAMES


class StepPrediction(Struct, frozen=True, kw_only=True):
    """What the performance model predicts of a published step: seconds and their interval at LEVEL.

    calibration: the profile or software whose parameters were taken; None where the priors were. in_sample:
    whether they were fitted to this very row.
    """

    step_s: float
    low_s: float
    high_s: float
    calibration: str | None
    in_sample: bool


def predictions(rows: Sequence[PublishedRow]) -> tuple[StepPrediction | None, ...]:
    """The predictions of some rows by the calibrations that `validate` takes; None where a row is not
    expressed.
    """
    task = step_predictor(basis_of(AUTO)).begin(rows)
    found = task.predict(np.array([], dtype=np.intp))
    half = prior_half_width(found.prior_log_sd, level=LEVEL)
    return tuple(
        StepPrediction(
            step_s=float(step_s),
            low_s=float(step_s * np.exp(-width)),
            high_s=float(step_s * np.exp(width)),
            calibration=None if basis is None else basis.name,
            in_sample=basis is not None and digest_of(row) in basis.row_digests,
        )
        if why is None
        else None
        for row, why, step_s, width, basis in zip(
            rows, task.reasons, found.seconds, half, found.bases, strict=True
        )
    )


class StepFilter(Struct, frozen=True, kw_only=True):
    """Which published steps are wanted; None is any.

    model: part of the name as published, or of the catalogue's. accelerator: of the catalogue, or a chip in
    all its forms (`h100`). software: a name of spec/strategy.py, or a word by which rows name it (`nemo`).
    source: part of the repository or paper.
    """

    model: str | None = None
    accelerator: str | None = None
    software: str | None = None
    source: str | None = None

    @property
    def words(self) -> str:
        """The filter in words."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)


# What predictions add to a row of the table. model_ratio: predicted over measured time.
PREDICTED: Final[Mapping[str, type[pl.DataType]]] = {
    "predicted_step_s": pl.Float64,
    "predicted_low_s": pl.Float64,
    "predicted_high_s": pl.Float64,
    "model_ratio": pl.Float64,
    "calibration": pl.String,
    "in_sample": pl.Boolean,
}


def listed_steps(wanted: StepFilter, catalogue: Catalogue | None = None) -> pl.DataFrame:
    """The rows of the table that a filter leaves, with the columns of PREDICTED next to them.

    Raises UsageError where it leaves none.
    """
    known = catalogue or shipped()
    frame = published_steps().sort("workload", "accelerator", "num_accelerators", "row_id")
    applied: list[str] = []
    for name, rule in (
        ("model", _of_model),
        ("accelerator", _of_accelerator),
        ("software", _of_software),
        ("source", _of_source),
    ):
        value = getattr(wanted, name)
        if value is None:
            continue
        column = {"model": "workload", "source": "repository"}.get(name, name)
        there = frame[column].drop_nulls().unique().sort().to_list()
        frame = frame.filter(rule(value, frame, known))
        if frame.is_empty():
            among = f" with {', '.join(applied)}" if applied else ""
            raise UsageError(
                f"--{name} {value!r}: no published step{among} has it; there are {quoted(there)}"
            )
        applied.append(f"{name} {value}")
    made = [
        {
            "predicted_step_s": each.step_s,
            "predicted_low_s": each.low_s,
            "predicted_high_s": each.high_s,
            "model_ratio": each.step_s / step_s,
            "calibration": each.calibration,
            "in_sample": each.in_sample,
        }
        if each is not None and step_s is not None
        else dict.fromkeys(PREDICTED)
        for each, step_s in zip(predictions(rows_of_table(frame, known)), frame["step_s"], strict=True)
    ]
    return frame.hstack(pl.DataFrame(made, schema=PREDICTED))


def _squeezed(text: str) -> str:
    return canonical(text).replace(" ", "")


def _of_model(name: str, frame: pl.DataFrame, _: Catalogue) -> pl.Series:
    part = _squeezed(name)
    names = zip(frame["workload"].fill_null(""), frame["model"].fill_null(""), strict=True)
    return pl.Series([any(part in _squeezed(each) for each in pair) for pair in names], dtype=pl.Boolean)


def _of_accelerator(name: str, frame: pl.DataFrame, catalogue: Catalogue) -> pl.Series:
    return frame["accelerator"].is_in(catalogue.forms(name)).fill_null(value=False)


def _of_software(name: str, frame: pl.DataFrame, _: Catalogue) -> pl.Series:
    names = [name] if name in SOFTWARE_NAMES else [one.name for one in SOFTWARE if one.is_named_in(name)]
    if not names:
        raise UsageError(f"--software {name!r}: not known; expected one of {', '.join(SOFTWARE_NAMES)}")
    return frame["software"].is_in(names).fill_null(value=False)


def _of_source(name: str, frame: pl.DataFrame, _: Catalogue) -> pl.Series:
    return frame["repository"].str.contains(name.strip().lower(), literal=True)
