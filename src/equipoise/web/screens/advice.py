"""The page Advice: one answer from what was published, measured and modelled, with its reasons."""

import math
from dataclasses import replace
from typing import Final

from equipoise.advice.answer.asked import USUAL_HORIZON_MONTHS, Owning, Request, Sought
from equipoise.advice.reach import TOKENS_PER_PARAM
from equipoise.report.pages import ADVICE, REACH
from equipoise.report.words import printable
from equipoise.study import advice, reach
from equipoise.units import HOUR_S
from equipoise.web.answer import Answer, shown
from equipoise.web.asked import AskedAdvice, AskedRuns
from equipoise.web.choices import advice_fields, known_workload
from equipoise.web.fields import Choice, Field, Given, Select, first
from equipoise.web.screen import Screen
from equipoise.web.screens.plan import terms_of
from equipoise.web.screens.runs import chosen, own_folders, state
from equipoise.web.sources import Sources


def _fields(given: Given, sources: Sources) -> tuple[Field, ...]:
    found = own_folders(sources)
    if not found:
        return advice_fields(given)
    own = Select(
        name="runs",
        label="Your own runs",
        choices=(
            Choice(value="", label="none"),
            *(Choice(value=name, label=printable(name)) for name in found),
        ),
        value=first(given, "runs"),
    )
    return advice_fields(given, own)


def _stamp(asked: AskedAdvice, sources: Sources) -> str:
    """What was measured counts too: own runs grow while the dashboard runs."""
    own = "" if asked.runs is None else state(AskedRuns(sweep=asked.runs), sources)
    return f"{sources.stamp()};{own}" if own else sources.stamp()


def _answer(asked: AskedAdvice, sources: Sources) -> Answer:
    request = _request(asked, sources)
    if asked.ask == "size":
        return shown(ADVICE, advice(request, data=sources.data, also=sources.also))
    per_param = TOKENS_PER_PARAM if asked.tokens_per_param is None else asked.tokens_per_param
    sought = Sought(request=request, ask=asked.ask, tokens_per_param=per_param)
    return shown(REACH, reach(sought, data=sources.data, also=sources.also))


def _request(asked: AskedAdvice, sources: Sources) -> Request:
    """The request that a query makes; names of workloads and runs are looked up, no path comes from it."""
    machines = dict.fromkeys(each for each in (asked.accelerator, asked.other) if each)
    return Request(
        workload=known_workload(asked.workload),
        accelerators=tuple(machines),
        most=asked.most,
        objective=asked.objective,
        deadline_s=math.inf if asked.deadline is None else asked.deadline * HOUR_S,
        budget_usd=math.inf if asked.budget is None else asked.budget,
        terms=replace(terms_of(asked), usd_per_kwh=asked.electricity, pue=asked.pue),
        runs=None if asked.runs is None else chosen(AskedRuns(sweep=asked.runs), sources),
        global_batch_samples=asked.global_batch,
        training_tokens=asked.tokens,
        precision=tuple(asked.precision.split(",")),
        queue_s=None if asked.queue is None else asked.queue * HOUR_S,
        owning=_owning(asked),
    )


def _owning(asked: AskedAdvice) -> Owning | None:
    amounts = (asked.purchase, asked.hosting, asked.utilisation, asked.horizon)
    if asked.buy == "no" and amounts == (None,) * len(amounts):
        return None
    return Owning(
        purchase_usd=asked.purchase,
        hosting_usd_per_month=asked.hosting,
        utilisation=asked.utilisation,
        horizon_months=USUAL_HORIZON_MONTHS if asked.horizon is None else asked.horizon,
    )


SCREEN: Final = Screen(
    path="/advice",
    title="Advice",
    about="how many accelerators to take, and why",
    verb="Advise",
    fields=_fields,
    answer=_answer,
    stamp=_stamp,
    is_transient=True,
    reads_disk=True,
)
