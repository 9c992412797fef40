"""The rule of thumb of a field report, by parameters alone: a baseline with a name, not advice."""

from typing import Literal, TypeAlias

from equipoise.units import SI_PREFIXES

Words: TypeAlias = Literal["never", "one GPU", "case by case", "consider", "yes"]
_MILLION = SI_PREFIXES["M"]
# Up to so many parameters, what the rule says of a second GPU.
LIMITS: tuple[tuple[float, Words], ...] = (
    (1 * _MILLION, "never"),
    (5 * _MILLION, "one GPU"),
    (10 * _MILLION, "case by case"),
    (50 * _MILLION, "consider"),
    (float("inf"), "yes"),
)
# How its open words are read where something must be done: as the measurements it came from.
TWO: frozenset[Words] = frozenset({"consider", "yes"})


def said(num_params: float) -> Words:
    """What the rule says of a model of so many parameters.

    Source: the field report: below 1 M never; 1 to 5 M one GPU; 5 to 10 M case by case; 10 to 50 M consider;
    above 50 M yes.

    >>> said(3.5e6), said(25e6)
    ('one GPU', 'consider')
    """
    return next(words for limit, words in LIMITS if num_params < limit)


def choice(num_params: float) -> str:
    """`one` or `two`: what following the rule does; `case by case` stays with one."""
    return "two" if said(num_params) in TWO else "one"
