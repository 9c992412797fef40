"""The published steps nearest to what an answer shows, and what the model predicts of them.

They are shown and change no estimate: docs/experiments/0030. Nothing is read before somebody asks for them.
"""

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from equipoise.calibration.profiles import default_software
from equipoise.decide.answer import Answer, Candidate
from equipoise.spec.catalogue import shipped

if TYPE_CHECKING:
    from equipoise.calibration.published.nearest import PlannedStep
    from equipoise.calibration.published_steps import StepPrediction

MOST = 5


class NearStep(Struct, frozen=True, kw_only=True):
    """A published step near to the candidate that is shown.

    distance: calibration/published/nearest.py. trust: as in the table. measured, unit: the figure as
    published; step_s and what follows from it as read. predicted_step_s: of the model, with the calibration
    for the row's own software and chip; in_sample: which was fitted to this row. model_ratio: predicted over
    measured time.
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
    """The published steps nearest to the recommended candidate, the nearest first; to the fastest, where none
    is recommended. Empty where no such candidate is, or nothing is near.
    """
    shown = None if answer is None else answer.shown
    return () if answer is None or shown is None else _near(_planned(answer, shown))


@lru_cache(maxsize=64)
def _near(planned: "PlannedStep") -> tuple[NearStep, ...]:
    """The same of what is planned: most answers of one training plan the same step."""
    # Loaded where they are shown: most answers show none, and loading takes a hundredth of a second.
    from equipoise.calibration.published.nearest import nearest_steps  # noqa: PLC0415
    from equipoise.calibration.published.table import published_steps  # noqa: PLC0415

    catalogue = shipped()
    found = nearest_steps(published_steps(), planned, catalogue, most=MOST)
    steps = []
    for row in found.iter_rows(named=True):
        step = _predicted(row["row_id"])
        steps.append(
            NearStep(
                **{name: row[name] for name in NearStep.__struct_fields__ if name in _OF_TABLE},
                precision=row["dtype"],
                measured=float(row["measured"].replace(",", "")),
                predicted_step_s=None if step is None else step.step_s,
                model_ratio=None if step is None else step.step_s / row["step_s"],
                calibration=None if step is None else step.calibration,
                in_sample=step is not None and step.in_sample,
            )
        )
    return tuple(steps)


@cache
def _predicted(row_id: str) -> "StepPrediction | None":
    """What the model predicts of a row of the table; kept, for most answers show the same few rows."""
    from equipoise.calibration.published.table import published_steps, rows_of_table  # noqa: PLC0415 - above
    from equipoise.calibration.published_steps import predictions  # noqa: PLC0415 - as above

    return predictions(rows_of_table(published_steps().filter(row_id=row_id), shipped()))[0]


_OF_TABLE = frozenset(
    (
        *("row_id", "distance", "workload", "model", "params", "accelerator", "num_accelerators", "software"),
        *("sequence_tokens", "strategy", "unit", "step_s", "tokens_per_s_per_accelerator", "mfu"),
        *("memory_bytes", "repository", "url", "date", "trust"),
    )
)


def _planned(answer: Answer, shown: Candidate) -> "PlannedStep":
    """What published steps are compared with: the candidate with its software."""
    from equipoise.calibration.published.nearest import PlannedStep  # noqa: PLC0415 - as above
    from equipoise.calibration.published.table import model_kind_of  # noqa: PLC0415 - as above

    workload, transformer = answer.workload, answer.workload.transformer
    cluster = next((each.cluster for each in answer.systems if each.name == shown.system), None)
    software = answer.question.software
    if software is None and cluster is not None:
        software = default_software(cluster.accelerator, workload)
    return PlannedStep(
        model=workload.slug,
        model_kind=model_kind_of(transformer),
        trained=workload.trained,
        active_params=workload.params if transformer is None else transformer.active_params,
        sequence_tokens=workload.sequence_tokens,
        accelerator=shown.accelerator,
        num_accelerators=shown.num_accelerators,
        software=software,
        dtype=None if shown.strategy is None else shown.strategy.precision,
    )
