"""The whole pipeline: tables in; metrics, factors, groups, claims and answers; findings out."""

from equipoise.study.answers import accuracy, advice, advice_findings, plan_findings, reach, reach_findings
from equipoise.study.of_round import compared, study
from equipoise.study.scored import scores
from equipoise.study.subject import DIVISION, MIN_ENTRIES, default_round

__all__ = [
    "DIVISION",
    "MIN_ENTRIES",
    "accuracy",
    "advice",
    "advice_findings",
    "compared",
    "default_round",
    "plan_findings",
    "reach",
    "reach_findings",
    "scores",
    "study",
]
