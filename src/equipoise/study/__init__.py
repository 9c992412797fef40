"""What a published study of results claims, and what the results show: tables in, findings out."""

from equipoise.study.rounds import MIN_ENTRIES, accuracy, compared, default_round, scores, study

__all__ = [
    "MIN_ENTRIES",
    "accuracy",
    "compared",
    "default_round",
    "scores",
    "study",
]
