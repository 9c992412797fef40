"""What is believed of a calibrated number before anything is measured."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """A log-normal belief: the number lies within a factor exp(log_sd) of its median two times in three.

    name: the field it belongs to. largest: what it cannot exceed, inf where nothing forbids it.
    local: it belongs to how one campaign was run (its software, its settings), not to machines: what is
    learnt of it says nothing about others.
    """

    name: str
    median: float
    log_sd: float
    meaning: str
    source: str
    largest: float = float("inf")
    local: bool = False

    @property
    def factor(self) -> float:
        """How far from the median the number is believed to lie two times in three, up or down."""
        return math.exp(self.log_sd)
