"""What is asked of an advice: the workload, the machines to choose from, what counts, what is the limit."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.advice.forecast.answer import MAX_ACCELERATORS, Terms
from equipoise.advice.plans.planned import ObjectiveName
from equipoise.errors import UsageError
from equipoise.units import HOUR_S

# Where nothing tells a limit: what users of clusters ask about, more where more was published.
USUAL_MOST = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked.

    workload: a name of the catalogue, or `module:function`. accelerators: names to choose from; empty where
    `here` looks the machine over. most: accelerators that may be taken; chosen unless given. runs: a folder
    of the user's own measurements. deadline_s, budget_usd: the training may not exceed them.
    """

    workload: str
    accelerators: tuple[str, ...] = ()
    here: bool = False
    most: int | None = None
    objective: ObjectiveName = "balance"
    deadline_s: float = math.inf
    budget_usd: float = math.inf
    terms: Terms = field(default_factory=Terms)
    runs: Path | None = None
    global_batch_samples: int | None = None
    training_samples: float | None = None
    training_tokens: float | None = None
    precision: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.here == bool(self.accelerators):
            raise UsageError(
                "--here and --accelerator both name the machine; keep one"
                if self.here
                else "no machine to advise on: give --accelerator NAME (see `equipoise list accelerators`), "
                "or --here on the machine itself"
            )
        if self.most is not None and not 1 <= self.most <= MAX_ACCELERATORS:
            raise UsageError(
                f"--max-accelerators {self.most}; expected a whole number from 1 to {MAX_ACCELERATORS:,}"
            )
        for option, value in (("--deadline", self.deadline_s / HOUR_S), ("--budget", self.budget_usd)):
            if not value > 0:
                raise UsageError(f"{option} {value:g}; expected a number above 0")
