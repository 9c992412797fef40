"""Finds published steps and pretrainings nearest to an answer, and the model's predictions for them.

They are only shown and change no estimate (docs/experiments/0030), except through the factor of all
pretrainings (`combine.PlanRecord`). Tables are read when first needed.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.calibration.profiles import software_for
from equipoise.decide.answer import Answer, Candidate
from equipoise.decide.combine import planned_pretrainings, pretraining_kind, record_of
from equipoise.decide.question.training import is_pretraining
from equipoise.errors import SpecError
from equipoise.files import converted, shipped_table
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.hardware import is_same_chip, is_same_family, peak_log2
from equipoise.spec.strategy import SOFTWARE, SOFTWARE_NAMES, Trained, software
from equipoise.units import TRILLION

if TYPE_CHECKING:
    import polars as pl

# Distances between steps: tenths of log MFU by which steps of two sources that differ in this property differ
# more than those that do not (docs/experiments/0030). The model's name, software of one family and the number
# of accelerators have no measurable effect; they count a little, so that among equally near steps those of
# the same model come first.
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
# The largest distance shown: about that of another chip and another precision.
FARTHEST: Final = 2.0
# Rows recalled from memory, or noisy according to their source, are no evidence of a single step.
_TRUSTED_SOURCES: Final = ("stated", "second_hand")
_UNKNOWN_DOUBLINGS: Final = 2.0  # assumed distance if a row does not state a quantity
_PRETRAININGS_FILE: Final = Path(__file__).parents[2] / "data" / "pretrainings.toml"


class PlannedStep(Struct, frozen=True, kw_only=True):
    """The step with which published steps are compared. None if unknown; model: slug in the catalogue.

    model_kind: `dense`, `experts` or `other`; for `other`, only rows of the same model are near. trained: all
    weights or adapters, as in a strategy.
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
    table: "pl.DataFrame", planned: PlannedStep, catalogue: Catalogue, *, most: int
) -> "pl.DataFrame":
    """The nearest rows of the table with their `distance`, the nearest first.

    Only steps that the model can predict, on accelerators of the same maker and kind, that train the same
    part of the model; one row per repository and software.
    """
    import polars as pl  # noqa: PLC0415 - only where such steps are shown

    rows = _trusted(table, planned.trained).filter(
        pl.col("model") == planned.model
        if planned.model_kind == "other"
        else pl.col("model_kind").is_in(("dense", "experts"))
    )
    apart = chips_apart(rows["accelerator"].unique().to_list(), planned.accelerator, catalogue)
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


def _differs(column: Iterable[str | None], value: str | None) -> NDArray[np.float64]:
    return np.array([value is not None and each != value for each in column], dtype=float)


def _doublings(column: Iterable[float | None], value: float | None) -> NDArray[np.float64]:
    if value is None:
        return np.zeros(1)
    unknown = value * 2.0**_UNKNOWN_DOUBLINGS
    found = np.array([unknown if each is None else each for each in column], dtype=float)
    return np.asarray(np.abs(np.log2(found / value)))


def _software_apart(wanted: str | None) -> dict[str | None, float]:
    """Distance of every software from a wanted one; unknown software counts as of another family."""
    if wanted is None:
        return dict.fromkeys((*SOFTWARE_NAMES, None), 0.0)
    family = software(wanted).family
    found: dict[str | None, float] = {
        each.name: OTHER_SOFTWARE if each.family == family else OTHER_FAMILY for each in SOFTWARE
    }
    return found | {None: OTHER_FAMILY, wanted: 0.0}


def chips_apart(slugs: Sequence[str | None], wanted: str, catalogue: Catalogue) -> dict[str, float]:
    """Distances of chips of the same maker and kind from a wanted one; other chips are left out."""
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


MOST_NEAR: Final = 5


class NearStep(Struct, frozen=True, kw_only=True):
    """A published step near to the displayed candidate.

    distance: see `nearest_steps`. trust: as in the table. measured, unit: the figure as published; step_s and
    quantities derived from it as read. predicted_step_s: by the model, with the calibration for the row's own
    software and chip; in_sample: whether that was fitted to this row. model_ratio: predicted over measured
    time.
    """

    row_id: str
    distance: float
    workload: str
    model: str | None
    params: int | None
    accelerator: str
    num_accelerators: int
    software: str | None
    sequence_tokens: int | None
    precision: str
    strategy: str
    measured: float
    unit: str
    step_s: float
    tokens_per_s_per_accelerator: float | None
    mfu: float | None
    memory_bytes: float | None
    predicted_step_s: float | None
    model_ratio: float | None
    calibration: str | None
    in_sample: bool
    repository: str
    url: str | None
    date: str | None
    trust: str


def near_published_steps(answer: Answer | None) -> tuple[NearStep, ...]:
    """The published steps nearest to the recommended candidate, else the fastest one, the nearest first.

    Empty if there is no such candidate, or nothing is near.
    """
    shown = None if answer is None else answer.shown
    return () if answer is None or shown is None else _nearest_to(_planned_step(answer, shown))


@lru_cache(maxsize=64)
def _nearest_to(planned: PlannedStep) -> tuple[NearStep, ...]:
    """The published steps nearest to a planned one; cached, since answers of one training share the step."""
    # Imported here because most answers show none, and loading takes 10 ms.
    from equipoise.calibration.published import published_steps  # noqa: PLC0415
    from equipoise.calibration.validate import with_predictions  # noqa: PLC0415 - as above

    catalogue = shipped()
    found = nearest_steps(published_steps(), planned, catalogue, most=MOST_NEAR)
    steps = []
    for row in with_predictions(found, catalogue).iter_rows(named=True):
        measured, in_sample = float(row["measured"].replace(",", "")), bool(row["in_sample"])
        facts = row | {"precision": row["dtype"], "measured": measured, "in_sample": in_sample}
        steps.append(NearStep(**{name: facts[name] for name in NearStep.__struct_fields__}))
    return tuple(steps)


def _planned_step(answer: Answer, shown: Candidate) -> PlannedStep:
    """The step with which published steps are compared: that of the candidate with its software."""
    from equipoise.calibration.published import model_kind_of  # noqa: PLC0415 - as above

    workload, transformer = answer.workload, answer.workload.transformer
    cluster = next((each.cluster for each in answer.systems if each.name == shown.system), None)
    stated = answer.question.software
    trainer = stated if cluster is None else software_for(cluster.accelerator, workload, stated)
    return PlannedStep(
        model=workload.slug,
        model_kind=model_kind_of(transformer),
        trained=workload.trained,
        active_params=workload.params if transformer is None else transformer.active_params,
        sequence_tokens=workload.sequence_tokens,
        accelerator=shown.accelerator,
        num_accelerators=shown.num_accelerators,
        software=trainer,
        dtype=None if shown.strategy is None else shown.strategy.precision,
    )


# A step on so many times the accelerators, or so many times fewer, is another one.
_OTHER_NUMBER: Final = 2.0


class PublishedStep(Struct, frozen=True, kw_only=True):
    """A published step of an answer's model, on its chip and about as many of them.

    other_form: title of the accelerator if it has another board or memory than the answer's. answer_ratio:
    accelerator time of a sample by the answer, over the published one. is_in_range: whether the published
    time lies in the answer's interval.
    """

    num_accelerators: int
    other_form: str | None
    answer_ratio: float
    is_in_range: bool


def published_step(answer: Answer) -> PublishedStep | None:
    """The published step of the same model and chip nearest to the recommended candidate; None without one.

    A step on the same form of the chip comes first, then the precision; of one precision and number the
    fastest. Only for models of other data than text, whose samples all take the same time.
    """
    best = answer.recommended
    if best is None or answer.workload.area == "language" or not best.num_samples:
        return None
    import polars as pl  # noqa: PLC0415 - only where such steps are shown

    from equipoise.calibration.published import published_steps  # noqa: PLC0415 - as above

    planned, catalogue, steps = _planned_step(answer, best), shipped(), published_steps()
    of_model = _trusted(steps, planned.trained).filter(pl.col("model") == planned.model)
    chips = chips_apart(of_model["accelerator"].unique().to_list(), planned.accelerator, catalogue)
    apart = (pl.col("num_accelerators") / planned.num_accelerators).log(2).abs()
    per_sample_s = pl.col("step_s") * pl.col("num_accelerators") / pl.col("global_batch_samples")
    is_other = pl.col("accelerator") != planned.accelerator
    rows = (
        of_model.filter(
            pl.col("accelerator").is_in([slug for slug, far in chips.items() if far <= OTHER_FORM])
            & (apart <= math.log2(_OTHER_NUMBER))
            & pl.col("global_batch_samples").is_not_null()
        )
        .with_columns(per_sample_s=per_sample_s)
        .sort(is_other, pl.col("dtype").ne_missing(planned.dtype), apart, "per_sample_s", "row_id")
    )
    if rows.is_empty():
        return None
    row = rows.row(0, named=True)
    time, work_s, ran_on = best.known_time_s, best.work_s.value, row["accelerator"]
    ratio = work_s * best.num_accelerators / best.num_samples / row["per_sample_s"]
    return PublishedStep(
        num_accelerators=row["num_accelerators"],
        other_form=None if ran_on == planned.accelerator else catalogue.accelerator(ran_on).title,
        answer_ratio=ratio,
        is_in_range=time.low <= time.value / ratio <= time.high,
    )


def _trusted(table: "pl.DataFrame", trained: Trained) -> "pl.DataFrame":
    """Steps that the model predicts, of sources that are evidence of one, that train as much of the model."""
    import polars as pl  # noqa: PLC0415 - only where such steps are shown

    return table.filter(
        (pl.col("row_id") == pl.col("execution"))
        & pl.col("step_s").is_not_null()
        & pl.col("reason").is_null()
        & pl.col("trust").is_in(_TRUSTED_SOURCES)
        & (pl.col("trained") == trained)
    )


class Pretraining(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A language model whose pretraining was published in accelerator-hours.

    family: trainings of one project. num_accelerators: None if unknown. batch_tokens: None if not published.
    precision: of matrix products, as named in strategies. strategy: other stated parameters, in the form of
    `TrainingQuery.fixed`.
    """

    title: str
    family: str
    workload: str
    tokens: float
    sequence_tokens: int
    accelerator: str
    accelerator_hours: float
    source: str
    num_accelerators: int | None = None
    batch_tokens: int | None = None
    precision: str | None = None
    strategy: str | None = None


class NearPretraining(Struct, frozen=True, kw_only=True):
    """A published pretraining near to the displayed candidate.

    distance: as for published steps, by kind and size of model and by chip. num_accelerators: None if
    unknown. accelerator_hours_per_t_tokens: per 1e12 tokens. model_ratio: planned accelerator-hours,
    including the factor of pretrainings, over published ones.
    """

    title: str
    distance: float
    tokens: float
    active_params: float
    accelerator: str
    num_accelerators: int | None
    accelerator_hours: float
    accelerator_hours_per_t_tokens: float
    model_ratio: float
    source: str


@cache
def pretrainings() -> tuple[Pretraining, ...]:
    """The published pretrainings from data/pretrainings.toml, each with its source."""
    return converted(tuple(shipped_table(_PRETRAININGS_FILE)["pretraining"]), tuple[Pretraining, ...])


def _is_pretraining(answer: Answer) -> bool:
    """Whether the answer is for a pretraining, excluding reinforcement learning."""
    question, about = answer.question, answer.workload
    return about.rollout is None and is_pretraining(
        about, is_to_target=question.is_to_target, counts_examples=question.counts_examples
    )


class PublishedItself(Struct, frozen=True, kw_only=True):
    """The published pretraining of an answer's model on the same chip.

    answer_ratio: accelerator-hours per token of the answer over published ones. is_in_range: whether the
    published ones lie in the interval of the answer.
    """

    title: str
    tokens: float
    num_accelerators: int | None
    precision: str | None
    answer_ratio: float
    is_in_range: bool


def published_itself(answer: Answer) -> PublishedItself | None:
    """The published pretraining of the same model on the displayed candidate's chip; None if there is none.

    Only with the same sequence length, since the time per token depends on it.
    """
    shown = answer.shown
    tokens = answer.question.training_tokens
    if shown is None or not shown.accelerator_hours or tokens is None or not _is_pretraining(answer):
        return None
    # Among several of the same shape, such as Llama 3 and 3.1, prefer the one of the same name.
    for each in sorted(pretrainings(), key=lambda each: each.title != answer.workload.title):
        is_of_sequence = each.sequence_tokens == answer.workload.sequence_tokens
        if is_of_sequence and (each.workload, each.accelerator) == (answer.workload.slug, shown.accelerator):
            ratio = shown.accelerator_hours / tokens / (each.accelerator_hours / each.tokens)
            time = shown.known_time_s
            return PublishedItself(
                title=each.title,
                tokens=each.tokens,
                num_accelerators=each.num_accelerators,
                precision=each.precision,
                answer_ratio=ratio,
                is_in_range=time.low <= time.value / ratio <= time.high,
            )
    return None


def near_published_pretrainings(answer: Answer | None) -> tuple[NearPretraining, ...]:
    """The published pretrainings nearest to the displayed candidate, the nearest first.

    Empty unless a language model is trained in full on a stated amount of text, or if nothing is near.
    """
    shown = None if answer is None else answer.shown
    if answer is None or shown is None or not _is_pretraining(answer):
        return ()
    about = answer.workload.transformer
    assert about is not None
    kind = pretraining_kind(answer.workload)
    apart = chips_apart(
        list(dict.fromkeys(each.accelerator for each in pretrainings())), shown.accelerator, shipped()
    )
    found = []
    for each in pretrainings():
        planned = planned_pretrainings().get(each.title)
        if planned is None or each.accelerator not in apart:
            continue
        distance = apart[each.accelerator] + OTHER_MODEL * (each.workload != answer.workload.slug)
        distance += OTHER_KIND * (planned.kind != kind)
        distance += PER_DOUBLING_OF_PARAMS * abs(math.log2(planned.active_params / about.active_params))
        if distance > FARTHEST:
            continue
        longer = record_of(planned.kind).time_per_step_time(planned.training_flop)
        found.append(
            NearPretraining(
                title=each.title,
                distance=distance,
                tokens=each.tokens,
                active_params=planned.active_params,
                accelerator=each.accelerator,
                num_accelerators=each.num_accelerators,
                accelerator_hours=each.accelerator_hours,
                accelerator_hours_per_t_tokens=each.accelerator_hours / each.tokens * TRILLION,
                model_ratio=planned.step_hours_ratio * longer,
                source=each.source,
            )
        )
    found.sort(key=lambda each: (each.distance, each.title))
    return tuple(found[:MOST_NEAR])
