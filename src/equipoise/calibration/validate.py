"""Validation of the models against published measurements: a prediction for every row, and the errors.

Predictions of the shipped published steps are not stored, but computed with the shipped calibrations.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.accuracy import (
    MemoryErrors,
    PredictionTask,
    Predictor,
    Regret,
    Split,
    TimeErrors,
    fold_names,
    held_out,
    memory_errors,
    regret,
    split_of,
    time_errors,
)
from equipoise.calibration.profiles import Profile, profiles, runs_on, software_for
from equipoise.calibration.published import PublishedRow, nodes_of, published_steps, read_rows, rows_of_table
from equipoise.calibration.published.executions import (
    chosen,
    digest_of,
    has_axes,
    software_of,
    with_executions,
)
from equipoise.calibration.scale_up_rows import SCALE_UP
from equipoise.calibration.step_rows import COLLECTIVE, BasisOf, step_predictor
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.intervals import DEVIATE, LEVEL
from equipoise.runs import Progress
from equipoise.runs.readers.cells import quoted
from equipoise.spec import canonical
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.strategy import PRIORS_ONLY, SOFTWARE, SOFTWARE_NAMES, Strategy, software
from equipoise.stats import by_key
from equipoise.units import format_si_apart, plural

_NOTHING_TO_FIT = "no row of the calibration files can be modelled, so nothing can be fitted to them"
_TO_FIT = ("a calibration file with rows that can be modelled",)
_NOT_FINITE = "the model has no finite time for it"
_GIVEN = "given: other rows are predicted from it"
_NO_ESTIMATE = "no estimate for it"
# Reasons that an error message lists; a page has one for every row.
_MOST_REASONS = 12


# A row whose modelled memory exceeds this factor times the available memory ran otherwise than it states.
_TOO_LARGE: Final = 1.25


class ValidatedRow(Struct, frozen=True, kw_only=True):
    """One row of the files: its prediction in the row's own unit, or the reason why there is none.

    error: |predicted time / measured time - 1|. memory_bytes: predicted, as frameworks report it. fold: the
    held-out value that it belongs to. is_given: whether other rows were predicted from it. by: the predictor.
    is_counted: whether the error of its execution is counted at this row, not at one in another unit.
    calibration: the software whose parameters were used, or None.
    """

    row: PublishedRow
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    reason: str | None = None
    memory_bytes: float | None = None
    by: str | None = None
    calibration: str | None = None
    fold: str | None = None
    is_given: bool = False
    is_counted: bool = False


class Validation(Struct, frozen=True, kw_only=True):
    """Every row with its verdict, and the errors over executions, one row each: overall, by file and by fold.

    split: what was held out. calibrated_on: further files to which the models were fitted.
    in_sample: whether rows were predicted by models that had been fitted to them.
    memory: errors of memory, over rows that state it. regret: of choosing the predicted fastest strategy.
    num_given: rows from which others were predicted. reasons: why rows were not predicted, with counts.
    """

    split: str
    level: float
    calibrated_on: tuple[str, ...]
    in_sample: bool
    verdicts: tuple[ValidatedRow, ...]
    num_modelled: int
    num_given: int
    num_executions: int
    errors: TimeErrors
    by_file: dict[str, TimeErrors]
    by_fold: dict[str, TimeErrors]
    reasons: tuple[tuple[str, int], ...]
    memory: MemoryErrors | None
    regret: Regret | None


class _PredictedExecution(Struct, frozen=True, kw_only=True):
    """The prediction for one execution: its row, seconds and their bounds."""

    row: PublishedRow
    by: str
    fold: str
    seconds: float
    low_s: float
    high_s: float
    memory_bytes: float | None
    basis: Profile | None


# By execution: its prediction, or the reason why there is none.
_Outcomes: TypeAlias = Mapping[int, _PredictedExecution | str]


def _reason(row: PublishedRow, outcomes: _Outcomes) -> str:
    """Why a row is not predicted."""
    found = outcomes.get(row.execution)
    stated = row.reason or (found if isinstance(found, str) else None)
    return stated or next(iter(row.notes), _NO_ESTIMATE)


def _why_none(rows: Sequence[PublishedRow], outcomes: _Outcomes) -> Iterator[str]:
    """Why rows are not predicted, the most frequent reason first, each with its first row."""
    by_reason = by_key((_reason(row, outcomes), row) for row in rows)
    commonest = sorted(by_reason.items(), key=lambda each: -len(each[1]))
    for why, some in commonest[:_MOST_REASONS]:
        yield f"{plural(len(some), 'row')}: {why} (first: {some[0].file}, row {some[0].row})"
    if left := commonest[_MOST_REASONS:]:
        num_rows = sum(len(some) for _, some in left)
        yield f"{plural(num_rows, 'row')} for {plural(len(left), 'other reason')}"


def validate(
    paths: Sequence[Path],
    *,
    calibrate_on: Sequence[Path] = (),
    split: str = "none",
    basis_of: BasisOf = lambda _: None,
    progress: Progress | None = None,
    catalogue: Catalogue | None = None,
) -> Validation:
    """Predict every row of the files with the models, and compute the errors.

    paths: empty for the shipped published steps; then `file` is a row's repository or paper.
    calibrate_on: files to which the models are fitted. split: `none`, or a split for `accuracy.split_of`:
    then each value of a column is predicted by models fitted to the rows of all others and `calibrate_on`.
    basis_of: the profile that predicts a row if nothing is fitted; None for the priors.
    catalogue: the shipped one by default.
    Raises DataError for a file, UsageError for an invalid split, EvidenceError if nothing can be predicted or
    held out.
    """
    cut = split_of(split)
    first_part = read_rows(paths, catalogue) if paths else rows_of_table(published_steps(), catalogue)
    second_part = read_rows(calibrate_on, catalogue)
    if calibrate_on and not second_part:
        raise EvidenceError(_NOTHING_TO_FIT, missing=_TO_FIT)
    rows = with_executions((*first_part, *second_part))
    tested = rows[: len(first_part)]
    # Each row is handled by the first predictor that claims it. A new one is a new module and an entry here.
    predictors = (SCALE_UP, step_predictor(basis_of), COLLECTIVE)
    outcomes = _outcomes(predictors, rows, len(tested), cut=cut, progress=progress)
    found = [each for each in outcomes.values() if not isinstance(each, str)]
    if not found:
        raise EvidenceError(
            f"none of {plural(len(tested), 'row')} can be predicted",
            missing=tuple(_why_none(tested, outcomes)) or ("rows of measurements",),
        )
    seen = {tuple(row.cells.items()) for row in second_part}
    same = any(tuple(row.cells.items()) in seen for row in first_part if row.reason is None)
    on = tuple(path.name for path in calibrate_on)
    same |= any(each.basis and digest_of(each.row) in each.basis.row_digests for each in found)
    return _validation(tested, outcomes, found, split=split, calibrated_on=on, in_sample=same)


def _outcomes(
    predictors: Sequence[Predictor],
    rows: Sequence[PublishedRow],
    num_tested: int,
    *,
    cut: Split | None,
    progress: Progress | None,
) -> _Outcomes:
    """The outcomes for the executions of the first `num_tested` rows; the other rows are only fitted to."""
    tested = {row.execution for row in rows[:num_tested]}
    begun = _begun(predictors, chosen(rows))
    folds = dict.fromkeys(tested, "")
    if cut is not None:
        asked_about = [each.rows[at] for each in begun for at in each.aims(tested)]
        names = fold_names(asked_about, cut) if asked_about else []
        folds |= {row.execution: name for row, name in zip(asked_about, names, strict=True)}
    if len(rows) > num_tested and not any(len(each.others(tested)) for each in begun):
        raise EvidenceError(_NOTHING_TO_FIT, missing=_TO_FIT)
    outcomes: dict[int, _PredictedExecution | str] = {}
    for each in begun:
        executions = [row.execution for row in each.rows]
        refused = zip(executions, each.reasons, strict=True)
        outcomes |= {execution: why for execution, why in refused if why is not None}
        outcomes |= {executions[at]: _NOT_FINITE for at in each.aims(tested)}
        outcomes |= {executions[at]: _GIVEN for at in each.given}
        outcomes |= {found.row.execution: found for found in _predicted(each, tested, folds, progress)}
    return outcomes


def _begun(predictors: Sequence[Predictor], rows: Sequence[PublishedRow]) -> list[PredictionTask]:
    """The task of every predictor, with the rows that it claims."""
    begun = []
    left = [*rows]
    for predictor in predictors:
        claimed = predictor.claims(left)
        begun.append(predictor.begin([row for row, is_mine in zip(left, claimed, strict=True) if is_mine]))
        left = [row for row, is_mine in zip(left, claimed, strict=True) if not is_mine]
    return begun


def _predicted(
    task: PredictionTask, tested: AbstractSet[int], folds: Mapping[int, str], progress: Progress | None
) -> Iterator[_PredictedExecution]:
    """The predictions of one predictor for its tested executions."""
    aims = task.aims(tested)
    if not len(aims):
        return
    names = [folds[task.rows[at].execution] for at in aims]
    found, half = held_out(task, aims=aims, folds=names, fitted=task.others(tested), progress=progress)
    low_s, high_s = found.seconds * np.exp(-half), found.seconds * np.exp(half)
    for at, name in zip(aims, names, strict=True):
        if not np.isfinite(found.seconds[at]):
            continue
        yield _PredictedExecution(
            row=task.rows[at],
            by=task.by,
            fold=name,
            seconds=float(found.seconds[at]),
            low_s=float(low_s[at]),
            high_s=float(high_s[at]),
            memory_bytes=float(found.memory_bytes[at]) if np.isfinite(found.memory_bytes[at]) else None,
            basis=found.bases[at],
        )


def _errors(some: Sequence[_PredictedExecution]) -> TimeErrors:
    return time_errors(
        measured_s=np.array([each.row.seconds for each in some], dtype=float),
        predicted_s=np.array([each.seconds for each in some]),
        low_s=np.array([each.low_s for each in some]),
        high_s=np.array([each.high_s for each in some]),
        clusters=np.array([each.row.cluster for each in some]),
    )


def _validation(
    tested: Sequence[PublishedRow],
    outcomes: _Outcomes,
    found: Sequence[_PredictedExecution],
    *,
    split: str,
    calibrated_on: tuple[str, ...],
    in_sample: bool,
) -> Validation:
    """The verdicts of all rows, and the errors with each execution counted once."""
    verdicts = tuple(_verdict(row, outcomes) for row in tested)
    by_file = by_key((each.row.file, each) for each in found)
    by_fold = by_key((each.fold, each) for each in found)
    unexpressed = Counter(each.reason for each in verdicts if each.reason is not None and not each.is_given)
    return Validation(
        split=split,
        level=LEVEL,
        calibrated_on=calibrated_on,
        in_sample=in_sample,
        verdicts=verdicts,
        num_modelled=sum(each.predicted is not None for each in verdicts),
        num_given=sum(each.is_given for each in verdicts),
        num_executions=len(found),
        errors=_errors(found),
        by_file={name: _errors(some) for name, some in by_file.items()},
        by_fold={name: _errors(some) for name, some in by_fold.items()} if split != "none" else {},
        reasons=tuple(unexpressed.most_common()),
        memory=memory_errors(
            [each.row.memory_bytes for each in found], [each.memory_bytes for each in found]
        ),
        regret=regret([each.row for each in found], [each.seconds for each in found]),
    )


def _verdict(row: PublishedRow, outcomes: _Outcomes) -> ValidatedRow:
    """The prediction of one row."""
    found = outcomes.get(row.execution, _NO_ESTIMATE)
    if isinstance(found, str) or row.conversion is None or row.seconds is None:
        return ValidatedRow(row=row, reason=_reason(row, outcomes), is_given=found == _GIVEN)
    bounds = sorted((row.conversion.figure(found.low_s), row.conversion.figure(found.high_s)))
    return ValidatedRow(
        row=replace(row, notes=(*row.notes, *_does_not_fit(row, found.memory_bytes))),
        predicted=row.conversion.figure(found.seconds),
        low=bounds[0],
        high=bounds[1],
        error=abs(found.seconds / row.seconds - 1.0),
        memory_bytes=found.memory_bytes,
        by=found.by,
        calibration=None if found.basis is None else found.basis.name,
        fold=found.fold or None,
        is_counted=(row.file, row.row) == (found.row.file, found.row.row),
    )


def _does_not_fit(row: PublishedRow, needed_bytes: float | None) -> Iterator[str]:
    """A reason if a row cannot have run with the strategy that it states or that was assumed."""
    nodes = nodes_of(row)
    held = None if nodes is None else nodes.accelerator.memory_bytes
    if held is not None and needed_bytes is not None and needed_bytes > _TOO_LARGE * held:
        needed, whole = format_si_apart(needed_bytes, held, "B")
        yield f"needs {needed} of {whole} by the model: it ran otherwise than stated or assumed"


AUTO = "auto"
# The profile for rows without a known software and with unfused attention. Its errors there are those of
# others' code relative to Hugging Face's: docs/experiments/0080.
_UNFUSED_SOFTWARE = "megatron"
_CHANNELS_FIRST = "ngc"
_OF_TORCH = re.compile(r"\b(?:py)?torch", re.IGNORECASE)
# Image models that multiply matrices of tokens, which are stored with channels last.
_ATTENDS = re.compile(r"swin|\bvit|\bdeit|\bdit\b|mixer|former", re.IGNORECASE)
_CHANNELS_LAST = re.compile(r"channels[- ]?last|\bnhwc\b", re.IGNORECASE)
# Frameworks that run operations one by one, as written. For 10 of 12 such sources outside all fits, Hugging
# Face's parameters predict better than the priors (mean of the median errors 26 %, not 34 %):
# docs/experiments/0059; on chips of other vendors: 0080.
_EAGER_FRAMEWORKS = re.compile(
    r"\b(?:py)?torch\b|paddle|llama[- ]?factory|\blit-?gpt\b|lightning fabric", re.IGNORECASE
)
_EAGER_SOFTWARE = software("hf")


def basis_of(name: str) -> BasisOf:
    """The choice of profiles if nothing is fitted: `auto`, `priors`, or the name of a software.

    Raises SpecError for unknown software.
    """
    if name == PRIORS_ONLY:
        return lambda _: None
    if name == AUTO:
        return _profile_of
    if name not in profiles():
        expected = ", ".join((*profiles(), AUTO, PRIORS_ONLY))
        raise SpecError(f"software {name!r} is not known; expected one of {expected}")
    return lambda _: profiles()[name]


def _profile_of(row: PublishedRow) -> Profile | None:
    """The profile of a row's own software, or of the default one for a run; None for the priors."""
    if nodes_of(row) is None or row.strategy is None:
        return None
    if (usual := usual_software(row)) is not None:
        return profiles()[usual]
    ran = software_of(row)
    if ran is None and _runs_as_written(row, row.strategy):
        ran = _EAGER_SOFTWARE
    if ran is None and row.model is not None and row.model.transformer is None:
        return profiles()[_CHANNELS_FIRST] if _transposes(row, row.strategy) else None
    if ran is None:
        return None if row.strategy.fused_attention else _unfused_profile()
    return profiles()[ran.name]


@cache
def _unfused_profile() -> Profile:
    return replace(
        profiles()[_UNFUSED_SOFTWARE], log_half_width=profiles()[_EAGER_SOFTWARE.name].log_half_width
    )


def usual_software(row: PublishedRow) -> str | None:
    """The software that `advise` uses for a run that names none; None for other rows, and for the priors."""
    nodes, model, ran = nodes_of(row), row.model, row.strategy
    if not row.is_own or nodes is None or model is None or model.known is None or ran is None:
        return None
    if row.cells.get("framework") or software_of(row) is not None:
        return None
    about = model.known
    if ran.trained not in {"full", about.trained}:  # with other adapters it is not the benchmark
        about = replace(about, trained=ran.trained, first_round=None)
    return software_for(nodes.accelerator, about)


def _runs_as_written(row: PublishedRow, strategy: Strategy) -> bool:
    """Whether code of an unknown software launched a transformer's kernels one by one on the chip."""
    nodes, model = nodes_of(row), row.model and row.model.transformer
    text = row.cells.get("parallel_config", "")
    named = _EAGER_FRAMEWORKS.search(text) or _EAGER_SOFTWARE.is_named_in(text)
    can = (
        nodes is not None
        and runs_on(_EAGER_SOFTWARE.name, nodes.accelerator)
        and has_axes(_EAGER_SOFTWARE, strategy)
    )
    return bool(can and named and model) and strategy.implementation == "eager"


def _transposes(row: PublishedRow, strategy: Strategy) -> bool:
    """Whether PyTorch runs 16-bit convolutions with channels first, and transposes them for tensor cores.

    Source: NVIDIA, Convolutional Layers User's Guide, tensor layouts; docs/experiments/0072.
    """
    text, nodes = row.cells.get("parallel_config", ""), nodes_of(row)
    is_nvidia = nodes is not None and nodes.accelerator.vendor == software(_CHANNELS_FIRST).vendor
    of_torch = _OF_TORCH.search(text) and not (_CHANNELS_LAST.search(text) or _ATTENDS.search(row.workload))
    return bool(is_nvidia and of_torch) and strategy.precision in {"fp16", "bf16"}


# --- published steps that ship


class StepPrediction(Struct, frozen=True, kw_only=True):
    """The prediction for a published step: seconds with their interval at LEVEL.

    calibration: the profile or software whose parameters were used; None for the priors. in_sample: whether
    they were fitted to this row.
    """

    step_s: float
    low_s: float
    high_s: float
    calibration: str | None
    in_sample: bool


def predictions(rows: Sequence[PublishedRow]) -> tuple[StepPrediction | None, ...]:
    """The predictions of rows with the calibrations that `validate` uses; None for rows not modelled."""
    task = step_predictor(basis_of(AUTO)).begin(rows)
    found = task.predict(np.array([], dtype=np.intp))
    half = DEVIATE * found.prior_log_sd
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
    """A filter of published steps; None matches all.

    model: part of the name, as published or in the catalogue. accelerator: a name in the catalogue, or a chip
    in all its forms (`h100`). software: a name in spec/strategy.py, or a word that rows use (`nemo`).
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


# Columns that predictions add to the table. model_ratio: predicted over measured time.
PREDICTED: Final[Mapping[str, type[pl.DataType]]] = {
    "predicted_step_s": pl.Float64,
    "predicted_low_s": pl.Float64,
    "predicted_high_s": pl.Float64,
    "model_ratio": pl.Float64,
    "calibration": pl.String,
    "in_sample": pl.Boolean,
}


def listed_steps(wanted: StepFilter, catalogue: Catalogue) -> pl.DataFrame:
    """The rows of the table that pass a filter, with the columns of PREDICTED.

    Raises UsageError if there are none.
    """
    frame = published_steps().sort("workload", "accelerator", "num_accelerators", "row_id")
    applied: list[str] = []
    for name, column, rule in (
        ("model", "workload", _of_model),
        ("accelerator", "accelerator", lambda value, held: held["accelerator"].is_in(catalogue.forms(value))),
        ("software", "software", _of_software),
        (
            "source",
            "repository",
            lambda value, held: held["repository"].str.contains(value.strip().lower(), literal=True),
        ),
    ):
        value = getattr(wanted, name)
        if value is None:
            continue
        there = frame[column].drop_nulls().unique().sort().to_list()
        frame = frame.filter(rule(value, frame))
        if frame.is_empty():
            among = f" with {', '.join(applied)}" if applied else ""
            raise UsageError(
                f"--{name} {value!r}: no published step{among} has it; there are {quoted(there)}"
            )
        applied.append(f"{name} {value}")
    return with_predictions(frame, catalogue)


def with_predictions(frame: pl.DataFrame, catalogue: Catalogue) -> pl.DataFrame:
    """Rows of the table, with the columns of PREDICTED."""
    found = zip(predictions(rows_of_table(frame, catalogue)), frame["step_s"], strict=True)
    made = [
        (each.step_s, each.low_s, each.high_s, each.step_s / step_s, each.calibration, each.in_sample)
        if each is not None and step_s is not None
        else (None,) * len(PREDICTED)
        for each, step_s in found
    ]
    return frame.hstack(pl.DataFrame(made, schema=PREDICTED, orient="row"))


def _squeezed(text: str) -> str:
    return canonical(text).replace(" ", "")


def _of_model(name: str, frame: pl.DataFrame) -> pl.Series:
    part = _squeezed(name)
    names = zip(frame["workload"].fill_null(""), frame["model"].fill_null(""), strict=True)
    return pl.Series([any(part in _squeezed(each) for each in pair) for pair in names], dtype=pl.Boolean)


def _of_software(name: str, frame: pl.DataFrame) -> pl.Series:
    names = [name] if name in SOFTWARE_NAMES else [one.name for one in SOFTWARE if one.is_named_in(name)]
    if not names:
        raise UsageError(f"--software {name!r}: not known; expected one of {', '.join(SOFTWARE_NAMES)}")
    return frame["software"].is_in(names)
