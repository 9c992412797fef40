"""What the user's own collectives and traces say, as reasons: each with its files."""

from collections.abc import Iterator, Sequence

from equipoise.advice.answer.advice import Reason, Standing
from equipoise.advice.answer.checked_traces import TraceCheck
from equipoise.advice.answer.evidence import Source
from equipoise.advice.answer.own_traces import named
from equipoise.advice.plans.linked_words import linked_words
from equipoise.advice.plans.planned import Plan
from equipoise.units import format_count, format_percent, format_step

_LAW = "what was timed as it was; elsewhere the law fitted to it (docs/experiments/0005-collectives.md)"


def own_evidence(standing: Standing) -> Iterator[Reason]:
    """Reasons of the user's own traces and collectives; none where none were given."""
    for each in standing.traces:
        files = tuple(Source(kind="measured", ref=name) for name in each.trace.files)
        yield Reason(words=trace_words(each), sources=files, formula="step = compute + exposed + idle")
    plan = standing.plan
    if plan is None or plan.links is None or standing.cluster is None:
        return
    refs = dict.fromkeys(name for each in plan.links.figures for name in each.files)
    yield Reason(
        words=" ".join(linked_words(plan)),
        sources=tuple(Source(kind="measured", ref=name) for name in refs),
        formula=_LAW,
    )


def own_notes(plan: Plan | None, traces: Sequence[TraceCheck]) -> Iterator[str]:
    """What of the user's own files was not used, or taken for something."""
    if plan is not None and plan.links is not None:
        yield from plan.links.notes
    yield from dict.fromkeys(note for each in traces for note in each.trace.notes)


def trace_words(check: TraceCheck) -> str:
    """A traced run beside the model, and what is missing of it."""
    trace = check.trace
    own = [] if trace.step_s is None else [f"a step of {format_step(trace.step_s)}"]
    if trace.exposed_share is not None:
        own.append(f"{_share(trace.exposed_share)} exposed, {_share(trace.idle_share or 0.0)} idle")
    at = "" if trace.num_ranks is None else f" at {format_count(trace.num_ranks)} ranks"
    parts = [f"Your trace ({named(trace.files)}){at}: {', '.join(own) or 'nothing of its steps'}"]
    if check.modelled_step_s is not None and check.modelled_exposed_share is not None:
        parts.append(
            f"; the model says {format_step(check.modelled_step_s)}, "
            f"{_share(check.modelled_exposed_share)} exposed"
        )
    if trace.strategy is not None:
        told = trace.strategy.text()
        if trace.is_other:
            told = f"batch {format_count(trace.strategy.global_batch_samples)} on all ranks"
        parts.append(f" (taken for {told})")
    told = "".join(parts) + "."
    if trace.missing:
        told += f" It tells no time of a training; missing: {'; '.join(trace.missing)}."
    return told


def _share(share: float) -> str:
    return format_percent(round(share, 2))
