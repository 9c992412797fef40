"""The advice: machines looked over, evidence weighed, the choice with its reasons and what would beat it."""

from collections.abc import Sequence
from typing import NoReturn

import polars as pl
from threadpoolctl import threadpool_limits

from equipoise.advice.answer.about import Subject, subject_of
from equipoise.advice.answer.advice import Advice, Standing
from equipoise.advice.answer.alternatives import alternatives
from equipoise.advice.answer.asked import Request
from equipoise.advice.answer.caveats import caveats
from equipoise.advice.answer.chosen import worth
from equipoise.advice.answer.machines import Machine, machines
from equipoise.advice.answer.next_doubling import next_doubling
from equipoise.advice.answer.own_files import OwnFiles, own_files
from equipoise.advice.answer.own_runs import OwnRuns, own_runs
from equipoise.advice.answer.own_standing import own_standing
from equipoise.advice.answer.own_traces import silent, with_traces
from equipoise.advice.answer.priced import owned, rented
from equipoise.advice.answer.reasons import reasons
from equipoise.advice.answer.records import records
from equipoise.advice.answer.run import settings_of, snippets_of
from equipoise.advice.answer.standing import standing
from equipoise.advice.answer.swing import swing
from equipoise.advice.answer.to_measure import to_measure
from equipoise.economics.owning import Ownership
from equipoise.errors import EvidenceError
from equipoise.spec.cluster import cluster


def advise(request: Request, *, scores: pl.DataFrame | None) -> Advice:
    """What to take for a training, with its evidence, reasons, alternatives and record.

    scores: the table `scores`; None where no published result may be used.
    Raises EvidenceError, naming what is missing, where no machine has any evidence; SpecError and UsageError
    for what names nothing.
    """
    with threadpool_limits(limits=1):  # the matrices are small: threads would only wait for each other
        return _advise(request, scores)


def _advise(request: Request, scores: pl.DataFrame | None) -> Advice:
    about = subject_of(request.workload)
    known = machines(request)
    slugs = [cluster(each.name).accelerator.slug if each.is_known else each.name for each in known]
    files = own_files(request, about.workload, slugs)
    own = None if request.runs is None else own_runs(request.runs, about.workload.slug, slugs)
    own = with_traces(own, files.traces, about.workload.slug)
    found: list[Standing] = []
    refused: list[EvidenceError] = []
    for each in known:
        try:
            found.append(_standing(request, about, each, scores=scores, own=own, files=files))
        except EvidenceError as err:
            refused.append(err)
    if not found:
        _refuse(refused, silent(files.traces))
    best = _best(request, found)
    others = tuple(each for each in found if each is not best)
    choice = best.recommended
    doubled = None
    if choice is not None:
        everyone = {each.num_accelerators: each for each in best.everyone}
        doubled = next_doubling(choice, everyone.get(2 * choice.num_accelerators))
    bought, unbought = _bought(request, best)
    risks = rented(request, best, about.workload)
    return Advice(
        request=request,
        workload=about.workload.slug,
        title=about.workload.title,
        standing=best,
        others=others,
        next_doubling=doubled,
        alternatives=alternatives(request, best, others),
        reasons=reasons(request, best, doubled),
        to_measure=to_measure(request, best),
        records=records(request, best),
        swing=None if choice is None else swing(best, choice),
        risks=risks,
        ownership=bought,
        snippets=snippets_of(best, choice),
        settings=settings_of(best, choice),
        notes=(
            *caveats(request, best, others, risks),
            *about.notes,
            *best.notes,
            *(() if own is None else own.notes),
            *(f"Not compared: {each}." for each in refused),
            *unbought,
        ),
    )


def _bought(request: Request, standing: Standing) -> tuple[Ownership | None, tuple[str, ...]]:
    """Buying beside renting where that was asked, or the sentence that says why not."""
    if request.owning is None or standing.recommended is None:
        return None, ()
    try:
        return owned(request.owning, standing, standing.recommended), ()
    except EvidenceError as err:
        missing = f": give {', '.join(err.missing)}" if err.missing else ""
        return None, (f"Buying was not compared: {err}{missing}.",)


def _standing(
    request: Request,
    about: Subject,
    machine: Machine,
    *,
    scores: pl.DataFrame | None,
    own: OwnRuns | None,
    files: OwnFiles,
) -> Standing:
    """By all evidence; by the user's own runs alone where ranks are cores, or nothing is known of it."""
    if machine.is_known and not (machine.is_cpu and own is not None):
        return standing(request, about, machine, scores=scores, own=own, files=files)
    return own_standing(request, about, machine, scores=scores, own=own, files=files)


def _best(request: Request, found: Sequence[Standing]) -> Standing:
    """The machine whose choice serves the objective best; the first where none has one.

    With the objective `balance`, the cheaper training where all prices are known, else the faster: numbers
    of unlike accelerators do not compare.
    """
    able = [each for each in found if each.recommended is not None]
    if not able:
        return found[0]
    objective = request.objective
    if objective == "balance":
        objective = "cost" if all(each.rates.price is not None for each in able) else "time"

    def value(each: Standing) -> float:
        assert each.recommended is not None
        return worth(each.recommended, objective)

    return min(able, key=value)


def _refuse(refused: Sequence[EvidenceError], silent: Sequence[str]) -> NoReturn:
    if len(refused) == 1 and not silent:
        raise refused[0]
    raise EvidenceError(
        "; ".join(map(str, refused)),
        missing=(*dict.fromkeys(item for each in refused for item in each.missing), *silent),
    )
