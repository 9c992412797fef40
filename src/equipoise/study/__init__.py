"""The whole pipeline: tables in; metrics, factors, groups, claims and answers; findings out."""

from equipoise.runs.queries import DIVISION
from equipoise.study.answers import accuracy
from equipoise.study.of_round import compared, study
from equipoise.study.scored import scores
from equipoise.study.subject import MIN_ENTRIES, default_round

__all__ = [
    "DIVISION",
    "MIN_ENTRIES",
    "accuracy",
    "compared",
    "default_round",
    "scores",
    "study",
]
