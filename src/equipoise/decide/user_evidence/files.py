"""All that the user measured for a question, read once for all systems: runs, timed collectives, traces."""

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.advice.links.spoken import TimedCollectives, given_collectives, refuse_unnamed
from equipoise.decide.query import TrainingQuery
from equipoise.decide.user_evidence.runs import UserRuns, user_runs
from equipoise.decide.user_evidence.trace_checks import possible
from equipoise.decide.user_evidence.traces import UserTrace, traced_as, user_traces, with_traces
from equipoise.decide.user_evidence.traces import refuse_unnamed as refuse_unnamed_traces
from equipoise.errors import DataError, UsageError
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.hardware import Accelerator
from equipoise.spec.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEvidence:
    """What the user measured. runs, collectives: None where none were given."""

    runs: UserRuns | None = None
    collectives: TimedCollectives | None = None
    traces: tuple[UserTrace, ...] = ()


def user_evidence(
    asked: TrainingQuery, workload: Workload, accelerators: Sequence[str], catalogue: Catalogue
) -> UserEvidence:
    """The runs and files of a question.

    accelerators: slugs asked about. Raises DataError for what cannot be read, EvidenceError where nothing in
    it can be used, UsageError where several accelerators are asked about and a file does not name its own.
    """
    if asked.traced_as is not None and not asked.traces:
        raise UsageError("--traced-as states how traces ran; give them: --trace FILE")
    for path in asked.collectives:
        if not path.exists():
            raise DataError(
                f"--collectives {path}: no such file; expected output of nccl-tests or rccl-tests"
            )
    timed = given_collectives(asked.collectives, catalogue) if asked.collectives else None
    if timed is not None:
        refuse_unnamed(timed, accelerators)
    traces = user_traces(asked.traces, traced_as(asked.traced_as), catalogue) if asked.traces else ()
    refuse_unnamed_traces(traces, accelerators)
    checked = tuple(
        possible(each, workload, _chip(each.accelerator or accelerators[0], catalogue)) for each in traces
    )
    runs = None if asked.runs is None else user_runs(asked.runs, workload.slug, accelerators)
    return UserEvidence(runs=with_traces(runs, checked), collectives=timed, traces=checked)


def _chip(name: str, catalogue: Catalogue) -> Accelerator | None:
    """The accelerator of a slug; None for a machine that the catalogue does not have."""
    return catalogue.accelerator(name) if catalogue.accelerator_slug(name) is not None else None
