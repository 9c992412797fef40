"""What time saved is worth against what it costs more: forward, and back from returns to assumptions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

_ROUNDING = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """An amount known by its ends: of a rounded figure, what rounds to it."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Consistent:
    """Values and costs with which returns follow from savings.

    usd_per_unit: of what one unit of saving is worth. costs_usd: what each return has less, the same for all.
    corners: (cost, value) at the corners of the set.
    """

    usd_per_unit: Range
    costs_usd: Range
    corners: tuple[tuple[float, float], ...]

    def holds(self, costs_usd: float) -> bool:
        """Whether these costs are in the set."""
        return self.costs_usd.low <= costs_usd <= self.costs_usd.high


def consistent(returns_usd: Mapping[str, Range], saved: Mapping[str, Range]) -> Consistent | None:
    """All pairs of value and cost for which every return follows from its saving; None where there are none.

    returns_usd, saved: by name, what was stated with its rounding. Values and costs are not negative.
    Assumes one value of a unit and one cost for all names.
    Source: linear programming: the corners of return <= value x saving - cost <= return over their ranges,
    found by crossing every pair of edges.

    >>> found = consistent({"a": Range(low=10.0, high=10.0)}, {"a": Range(low=5.0, high=5.0)})
    >>> found.corners[0]
    (0.0, 2.0)
    """
    edges = [*_edges(returns_usd, saved), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)]
    corners = sorted(
        {
            (round(cost, 9), round(value, 9))
            for value, cost in _crossings(edges)
            if _keeps(edges, value=value, cost=cost)
        }
    )
    if not corners:
        return None
    costs, values = [each[0] for each in corners], [each[1] for each in corners]
    return Consistent(
        usd_per_unit=Range(low=min(values), high=max(values)),
        costs_usd=Range(low=min(costs), high=max(costs)),
        corners=tuple(corners),
    )


def _edges(
    returns_usd: Mapping[str, Range], saved: Mapping[str, Range]
) -> Iterator[tuple[float, float, float]]:
    """Inequalities a value + b cost >= c, two for each name.

    The worth of a saving is at most value x its upper end and at least value x its lower one.
    """
    for name, stated in returns_usd.items():
        yield saved[name].high, -1.0, stated.low
        yield -saved[name].low, 1.0, -stated.high


def _crossings(edges: Sequence[tuple[float, float, float]]) -> Iterator[tuple[float, float]]:
    """Where two edges cross: value and cost."""
    for (a, b, c), (d, e, f) in combinations(edges, 2):
        determinant = a * e - b * d
        if determinant:
            yield (c * e - b * f) / determinant, (a * f - c * d) / determinant


def _keeps(edges: Sequence[tuple[float, float, float]], *, value: float, cost: float) -> bool:
    """Whether every inequality holds, up to rounding."""
    return all(
        a * value + b * cost >= c - _ROUNDING * (1.0 + abs(a * value) + abs(cost)) for a, b, c in edges
    )
