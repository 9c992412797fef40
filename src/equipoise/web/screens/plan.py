"""The page Plan: the best strategy for a workload on machines to choose from, anew with every change."""

import math
from typing import Final

from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.compared import comparison
from equipoise.advice.plans.planned import Question
from equipoise.report.pages import PLAN
from equipoise.study import plan_findings
from equipoise.units import HOUR_S
from equipoise.web.answer import Answer, shown
from equipoise.web.asked import AskedPlan
from equipoise.web.choices import known_workload, plan_fields
from equipoise.web.fields import Field, Given
from equipoise.web.screen import Screen
from equipoise.web.sources import Sources


def _fields(given: Given, _: Sources) -> tuple[Field, ...]:
    return plan_fields(given)


def terms_of(asked: AskedPlan) -> Terms:
    """What money and electricity are worth to who asks."""
    return Terms(usd_per_accelerator_hour=asked.price, region=asked.region, price_terms=asked.terms)


def _answer(asked: AskedPlan, sources: Sources) -> Answer:
    name = known_workload(asked.workload)
    machines = dict.fromkeys(each for each in (asked.accelerator, asked.other) if each)
    plans = [sources.planned(_question(asked, name, machine), terms_of(asked)) for machine in machines]
    return shown(PLAN, plan_findings(comparison(plans)))


def _question(asked: AskedPlan, name: str, machine: str) -> Question:
    return Question(
        workload=name,
        accelerator=machine,
        fewest=1,
        most=asked.most,
        objective=asked.objective,
        global_batch_samples=asked.global_batch,
        training_tokens=asked.tokens,
        deadline_s=math.inf if asked.deadline is None else asked.deadline * HOUR_S,
        budget_usd=math.inf if asked.budget is None else asked.budget,
        choices={"precision": tuple(asked.precision.split(","))},
    )


SCREEN: Final = Screen(
    path="/plan",
    title="Plan",
    about="the best strategy, and where more accelerators stop paying",
    verb="Plan",
    fields=_fields,
    answer=_answer,
    is_transient=True,
)
