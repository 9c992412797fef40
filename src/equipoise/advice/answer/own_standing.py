"""A machine of which only the user's own runs tell: ranks on processors, or what the catalogue lacks."""

from typing import NoReturn

import polars as pl

from equipoise import economics
from equipoise.advice.answer.about import Subject
from equipoise.advice.answer.advice import Standing
from equipoise.advice.answer.asked import Request
from equipoise.advice.answer.checked_traces import TraceCheck, ran_elsewhere
from equipoise.advice.answer.chosen import chosen, kept, obstacle
from equipoise.advice.answer.ground import length_of
from equipoise.advice.answer.joined import joined_curves
from equipoise.advice.answer.machines import Machine
from equipoise.advice.answer.measured_witness import measured_witness
from equipoise.advice.answer.own_evidence import own_notes
from equipoise.advice.answer.own_files import OwnFiles
from equipoise.advice.answer.own_runs import OwnRuns
from equipoise.advice.answer.standing import fastest_of, joint_choice
from equipoise.advice.answer.witnesses import without_beyond
from equipoise.economics import Rates
from equipoise.errors import EvidenceError
from equipoise.scaling.equilibrium import default_answer, equilibria

_MOST_LISTED = 5


def own_standing(
    request: Request,
    about: Subject,
    machine: Machine,
    *,
    scores: pl.DataFrame | None,
    own: OwnRuns | None,
    files: OwnFiles,
) -> Standing:
    """What the user's runs say of a machine, and the number of ranks to take of it.

    Only what ran is told: nothing is known of how this machine's ranks are joined.
    Raises EvidenceError, saying what to measure, where nothing ran.
    """
    runs = () if own is None else own.on(machine.name)
    length = length_of(request, about, scores)
    sizes = sorted({each.num_accelerators for each in runs})
    most = request.most or max(sizes, default=1)
    witness = measured_witness(
        runs, length, [size for size in sizes if size <= most], cluster=None, workload=None
    )
    if witness is None or min(sizes) > most:
        _refuse(request, about, machine, own)
    prices = _rates(request)
    choices = [
        # Not `replace` of what has a strategy: the model knows none here.
        joint_choice(request, machine.name, [witness], prices, size=size, run=fastest_of(runs, size))
        for size in sizes
        if size <= most
    ]
    heard = without_beyond(witness, most)
    traces = tuple(
        TraceCheck(trace=each) for each in files.traces if each.accelerator in {None, machine.name}
    )
    joint = joined_curves([heard], choices[0].time, choices[0].num_accelerators)
    points = equilibria(*joint) if joint is not None else ()
    answer = default_answer(points) if points else None
    return Standing(
        accelerator=machine.name,
        title=f"{machine.title} (ranks)" if machine.is_cpu else machine.title,
        cluster=None,
        plan=None,
        forecast=None,
        rates=prices,
        length=length,
        choices=tuple(choices),
        beyond={},
        recommended=chosen(request, choices, answer),
        layouts=(),
        obstacle=None if kept(request, choices) else obstacle(request, choices, []),
        points=points,
        answer=answer,
        notes=(
            *machine.notes,
            *ran_elsewhere(files.traces, machine.name, machine.title),
            *own_notes(None, traces),
        ),
        traces=traces,
    )


def _rates(request: Request) -> Rates:
    """Of a machine without an entry: what the user states."""
    own = request.terms.usd_per_accelerator_hour
    return Rates(
        price=economics.price("", usd_per_accelerator_hour=own),
        grid=economics.grid(request.terms.region),
        accelerator_power_w=None,
        system_power=economics.SYSTEM_POWER,
        electricity=request.terms.electricity(),
    )


def _refuse(request: Request, about: Subject, machine: Machine, own: OwnRuns | None) -> NoReturn:
    """Say what was found, and what to measure."""
    name = about.workload.slug
    found = "no runs were given (--runs DIR)"
    if own is not None:
        elsewhere = ", ".join(own.machines[:_MOST_LISTED])
        found = f"{own.where} holds no run of {name} on it that tells its batch and rate"
        found += f"; it has runs on {elsewhere}" if elsewhere else ""
        found += f"; {own.num_other} runs are of other workloads" if own.num_other else ""
    raise EvidenceError(
        f"nothing tells how long {about.workload.title} takes on {machine.title}: {found}",
        missing=(
            f"steps of it measured here: equipoise bench {request.workload} --out runs; then --runs runs",
        ),
    )
