"""What is asked of an advice: the workload, the machines to choose from, what counts, what is the limit."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.advice.forecast.answer import MAX_ACCELERATORS, Terms
from equipoise.advice.plans.planned import ObjectiveName
from equipoise.advice.reach import TOKENS_PER_PARAM, Ask
from equipoise.errors import UsageError
from equipoise.units import HOUR_S

# Where nothing tells a limit: what users of clusters ask about, more where more was published.
USUAL_MOST = 512
USUAL_HORIZON_MONTHS = 36.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owning:
    """Buying the accelerators, to compare with renting them; None: as is usual.

    purchase_usd: of one accelerator with its share of host and network. hosting_usd_per_month: of its room,
    without power; 0 where it stands in one's own. utilisation: share of all hours that it works.
    horizon_months: by when owning has to pay.
    """

    purchase_usd: float | None = None
    hosting_usd_per_month: float | None = None
    utilisation: float | None = None
    horizon_months: float = USUAL_HORIZON_MONTHS


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked.

    workload: a name of the catalogue, or `module:function`. accelerators: names to choose from; empty where
    `here` looks the machine over. most: accelerators that may be taken; chosen unless given. runs: a folder
    of the user's own measurements; collectives, traces: files of what they timed and traced; traced_as: what
    these do not say of their strategy. deadline_s, budget_usd: the training may not exceed them. queue_s:
    until the accelerators are there; None is not known. owning: None where buying is not asked about.
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
    collectives: tuple[Path, ...] = ()
    traces: tuple[Path, ...] = ()
    traced_as: str | None = None
    queue_s: float | None = None
    owning: Owning | None = None

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
        if self.queue_s is not None and not 0.0 <= self.queue_s < math.inf:
            raise UsageError(f"--queue is {self.queue_s / HOUR_S:g} hours; expected hours, at least 0")
        if not self.within_s > 0.0:
            raise UsageError(
                f"--queue of {(self.queue_s or 0.0) / HOUR_S:g} hours leaves nothing of the --deadline of "
                f"{self.deadline_s / HOUR_S:g}"
            )

    @property
    def within_s(self) -> float:
        """What training may take: what the queue leaves of the deadline."""
        return self.deadline_s - (self.queue_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """What budget and deadline are enough for is asked, in place of how many accelerators to take.

    request: its length and objective say nothing here.
    """

    request: Request
    ask: Ask
    tokens_per_param: float = TOKENS_PER_PARAM

    def __post_init__(self) -> None:
        """Refuse what asks for two answers."""
        if self.request.owning is not None:
            raise UsageError(f"--ask {self.ask} and --buy ask for two answers; keep one")
