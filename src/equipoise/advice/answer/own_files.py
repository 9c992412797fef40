"""The files of a request that hold what the user measured beside runs: timed collectives, and traces."""

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.advice.answer.asked import Request
from equipoise.advice.answer.checked_traces import possible
from equipoise.advice.answer.own_traces import OwnTrace, own_traces, traced_as
from equipoise.advice.answer.own_traces import refuse_unnamed as refuse_unnamed_traces
from equipoise.advice.links.spoken import TimedCollectives, given_collectives, refuse_unnamed
from equipoise.errors import UsageError
from equipoise.spec.hardware import Accelerator, accelerator, accelerator_slug
from equipoise.spec.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFiles:
    """What the files hold. collectives: None where none were given."""

    collectives: TimedCollectives | None = None
    traces: tuple[OwnTrace, ...] = ()


def own_files(request: Request, workload: Workload, accelerators: Sequence[str]) -> OwnFiles:
    """The files of a request, read once for all machines.

    accelerators: slugs asked about. Raises DataError for what cannot be read, EvidenceError where nothing in
    it can be used, UsageError where several accelerators are asked about and a file does not say its own.
    """
    if request.traced_as is not None and not request.traces:
        raise UsageError("--traced-as says how traces ran; give them: --trace FILE")
    told = traced_as(request.traced_as)
    timed = given_collectives(request.collectives) if request.collectives else None
    if timed is not None:
        refuse_unnamed(timed, accelerators)
    traces = own_traces(request.traces, told) if request.traces else ()
    refuse_unnamed_traces(traces, accelerators)
    return OwnFiles(
        collectives=timed,
        traces=tuple(possible(each, workload, _chip(each.accelerator or accelerators[0])) for each in traces),
    )


def _chip(name: str) -> Accelerator | None:
    """The accelerator of a slug; None for a machine that the catalogue lacks."""
    return accelerator(name) if accelerator_slug(name) is not None else None
