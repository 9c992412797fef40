"""The page Advice: one answer from what was published, measured and modelled, with its reasons."""

import math
from typing import Final

from equipoise.advice.answer.asked import Request
from equipoise.report.pages import ADVICE
from equipoise.report.words import printable
from equipoise.study import advice
from equipoise.units import HOUR_S
from equipoise.web.answer import Answer, shown
from equipoise.web.asked import AskedAdvice, AskedRuns
from equipoise.web.choices import known_workload, plan_fields
from equipoise.web.fields import Choice, Field, Given, Select, first
from equipoise.web.screen import Screen
from equipoise.web.screens.plan import terms_of
from equipoise.web.screens.runs import chosen, own_folders, state
from equipoise.web.sources import Sources


def _fields(given: Given, sources: Sources) -> tuple[Field, ...]:
    found = own_folders(sources)
    if not found:
        return plan_fields(given)
    own = Select(
        name="runs",
        label="Your own runs",
        choices=(
            Choice(value="", label="none"),
            *(Choice(value=name, label=printable(name)) for name in found),
        ),
        value=first(given, "runs"),
    )
    return plan_fields(given, own)


def _stamp(asked: AskedAdvice, sources: Sources) -> str:
    """What was measured counts too: own runs grow while the dashboard runs."""
    own = "" if asked.runs is None else state(AskedRuns(sweep=asked.runs), sources)
    return f"{sources.stamp()};{own}" if own else sources.stamp()


def _answer(asked: AskedAdvice, sources: Sources) -> Answer:
    machines = dict.fromkeys(each for each in (asked.accelerator, asked.other) if each)
    runs = None if asked.runs is None else chosen(AskedRuns(sweep=asked.runs), sources)
    request = Request(
        workload=known_workload(asked.workload),
        accelerators=tuple(machines),
        most=asked.most,
        objective=asked.objective,
        deadline_s=math.inf if asked.deadline is None else asked.deadline * HOUR_S,
        budget_usd=math.inf if asked.budget is None else asked.budget,
        terms=terms_of(asked),
        runs=runs,
        global_batch_samples=asked.global_batch,
        training_tokens=asked.tokens,
        precision=tuple(asked.precision.split(",")),
    )
    return shown(ADVICE, advice(request, data=sources.data, also=sources.also))


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
