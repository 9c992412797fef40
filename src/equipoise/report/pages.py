"""Every kind of page there is: the study of a round, a plan, a topology, a sweep or loop of one's own."""

from typing import Final

from equipoise.advice.links.links import Meaning
from equipoise.advice.measured.sweep_now import SweepNow
from equipoise.advice.measured.watched_now import WatchedNow
from equipoise.findings import (
    AccuracyFindings,
    AdviceFindings,
    ComparedFindings,
    Findings,
    PlanFindings,
    ReachFindings,
)
from equipoise.report.page import Page
from equipoise.report.sections import SECTIONS
from equipoise.report.sections.accuracy import SECTIONS as ACCURACY_SECTIONS
from equipoise.report.sections.accuracy import head as accuracy
from equipoise.report.sections.advice import SECTIONS as ADVICE_SECTIONS
from equipoise.report.sections.advice import answer as advised
from equipoise.report.sections.compare import SECTIONS as COMPARED_SECTIONS
from equipoise.report.sections.compare import side
from equipoise.report.sections.method import NOT_VERIFIED
from equipoise.report.sections.plan import SECTIONS as PLAN_SECTIONS
from equipoise.report.sections.plan import answer
from equipoise.report.sections.reach import SECTIONS as REACH_SECTIONS
from equipoise.report.sections.reach import answer as reached
from equipoise.report.sections.sweep import SECTIONS as SWEEP_SECTIONS
from equipoise.report.sections.sweep import head as sweep
from equipoise.report.sections.topology import SECTIONS as TOPOLOGY_SECTIONS
from equipoise.report.sections.topology import matrix
from equipoise.report.sections.watched import SECTIONS as WATCHED_SECTIONS
from equipoise.report.sections.watched import head as watched
from equipoise.report.words import printable, sentence


def _about_round(findings: Findings) -> str:
    return f"MLPerf Training {printable(findings.round)}, {printable(findings.division)} division"


STUDY: Final[Page[Findings]] = Page(
    title=lambda findings: f"Training at scale: MLPerf {printable(findings.round)}",
    about=_about_round,
    headline=lambda findings: sentence(findings.headline),
    summary=lambda findings: tuple(map(sentence, findings.summary)),
    sections=SECTIONS,
    closing=lambda findings: (
        NOT_VERIFIED,
        f"Dataset {printable(findings.dataset)}. {sentence(findings.sources)}",
    ),
)

PLAN: Final[Page[PlanFindings]] = Page(
    title=lambda findings: f"Plan: {answer.headline(findings)}",
    about=answer.about,
    headline=answer.headline,
    summary=answer.summary,
    sections=PLAN_SECTIONS,
    closing=lambda findings: (
        "Times are predicted by a model, not measured: try the first steps before you book the machines.",
        *((NOT_VERIFIED,) if findings.plan.length.evidence else ()),
        f"Dataset {printable(findings.dataset)}.",
    ),
)

ADVICE: Final[Page[AdviceFindings]] = Page(
    title=lambda findings: f"Advice: {advised.headline(findings)}",
    about=advised.about,
    headline=advised.headline,
    summary=advised.summary,
    sections=ADVICE_SECTIONS,
    closing=lambda findings: (
        "Times nobody has measured are predictions: try the first steps before you book the machines.",
        NOT_VERIFIED,
        f"Dataset {printable(findings.dataset)}.",
    ),
)

REACH: Final[Page[ReachFindings]] = Page(
    title=lambda findings: f"Advice: {reached.headline(findings)}",
    about=reached.about,
    headline=reached.headline,
    summary=reached.summary,
    sections=REACH_SECTIONS,
    closing=lambda findings: (
        "Times are predicted by a model, not measured: try the first steps before you spend the money.",
        f"Dataset {printable(findings.dataset)}.",
    ),
)

TOPOLOGY: Final[Page[Meaning]] = Page(
    title=lambda found: f"Topology: {matrix.headline(found)}",
    about=matrix.about,
    headline=matrix.headline,
    summary=matrix.summary,
    sections=TOPOLOGY_SECTIONS,
    closing=lambda found: (
        "Read from what tools say; rates are those of like machines, not measured here.",
        f"Origin: {printable(found.topology.origin)}.",
    ),
)

SWEEP: Final[Page[SweepNow]] = Page(
    title=lambda now: f"Sweep: {printable(now.swept.name)}",
    about=sweep.about,
    headline=sweep.headline,
    summary=sweep.summary,
    sections=SWEEP_SECTIONS,
    closing=sweep.closing,
)

WATCHED: Final[Page[WatchedNow]] = Page(
    title=lambda now: f"Watched: {printable(now.name)}",
    about=watched.about,
    headline=watched.headline,
    summary=watched.summary,
    sections=WATCHED_SECTIONS,
    closing=watched.closing,
)

COMPARED: Final[Page[ComparedFindings]] = Page(
    title=lambda findings: f"Side by side: {printable(findings.name)}",
    about=side.about,
    headline=side.headline,
    summary=side.summary,
    sections=COMPARED_SECTIONS,
    closing=lambda findings: (
        NOT_VERIFIED,
        f"Dataset {printable(findings.dataset)}. {sentence(findings.sources)}",
    ),
)

ACCURACY: Final[Page[AccuracyFindings]] = Page(
    title=lambda _: "How wrong answers were",
    about=lambda _: "The record of every kind of answer",
    headline=accuracy.headline,
    summary=accuracy.summary,
    sections=ACCURACY_SECTIONS,
    closing=lambda findings: (f"Dataset {printable(findings.dataset)}.",),
)
