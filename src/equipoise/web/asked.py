"""What the query of a URL may say: one model a page, every value bounded. Nothing is looked up here."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from equipoise.advice.plans.planned import ObjectiveName
from equipoise.economics import DEFAULT_GRID, PriceTerms

LONGEST_NAME = 160
MOST_NAMES = 24
MOST_ACCELERATORS = 16_384
MOST_SYSTEMS = 6


def _without_blanks(value: object) -> object:
    """A form sends fields that were left empty as empty text: they were not given."""
    if isinstance(value, list):
        return [each for each in value if each != ""]
    return None if value == "" else value


_BLANK = BeforeValidator(_without_blanks)
Name: TypeAlias = Annotated[str, StringConstraints(max_length=LONGEST_NAME)]
OptionalName: TypeAlias = Annotated[Name | None, _BLANK]
Names: TypeAlias = Annotated[list[Name], _BLANK, Field(max_length=MOST_NAMES)]
AskName: TypeAlias = Literal["size", "tokens", "model"]
Precision: TypeAlias = Literal["bf16", "bf16,fp8", "fp8", "fp16", "fp32"]
Amount: TypeAlias = Annotated[float | None, _BLANK, Field(gt=0, le=1e15, allow_inf_nan=False)]


class Asked(BaseModel):
    """A query: what is not a field of the page is refused, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AskedStudy(Asked):
    """Any round, any of its workloads; the published study's unless given."""

    round: OptionalName = None
    workload: Names = []


class AskedCompare(Asked):
    """Entries of one round and workload, side by side; a few of the widest accelerator's unless given."""

    round: OptionalName = None
    workload: OptionalName = None
    entry: Annotated[list[Name], _BLANK, Field(max_length=MOST_SYSTEMS)] = []


class AskedPlan(Asked):
    """A training and the machines to choose from. other: a second kind to compare with."""

    workload: Name = "llama2_70b_lora"
    accelerator: Name = "dgx-h100"
    other: OptionalName = None
    most: Annotated[int, Field(ge=1, le=MOST_ACCELERATORS)] = 64
    objective: ObjectiveName = "balance"
    global_batch: Annotated[int | None, _BLANK, Field(ge=1, le=10**9)] = None
    tokens: Amount = None
    deadline: Amount = None
    budget: Amount = None
    price: Amount = None
    terms: PriceTerms = "on_demand"
    region: Name = DEFAULT_GRID
    precision: Precision = "bf16"


class AskedAdvice(AskedPlan):
    """The same for an advice, which joins what was published and the user's own runs. runs: one by name.

    ask: for a number of accelerators, or what budget and deadline are enough for. buy: whether owning is
    compared; each of its amounts asks for it too. queue: hours. hosting: USD a month, of one accelerator.
    """

    ask: AskName = "size"
    tokens_per_param: Annotated[float | None, _BLANK, Field(gt=0, le=1e5)] = None
    queue: Annotated[float | None, _BLANK, Field(ge=0, le=1e6)] = None
    electricity: Annotated[float | None, _BLANK, Field(gt=0, lt=10)] = None
    pue: Annotated[float | None, _BLANK, Field(ge=1, lt=5)] = None
    buy: Literal["no", "yes"] = "no"
    purchase: Annotated[float | None, _BLANK, Field(ge=0, lt=1e8)] = None
    hosting: Annotated[float | None, _BLANK, Field(ge=0, lt=1e8)] = None
    utilisation: Annotated[float | None, _BLANK, Field(gt=0, le=1)] = None
    horizon: Annotated[float | None, _BLANK, Field(gt=0, le=240)] = None
    runs: OptionalName = None


class AskedRuns(Asked):
    """One of the sweeps that the dashboard was given, by its name."""

    sweep: OptionalName = None


class AskedLive(AskedRuns):
    """What of a sweep changes by itself. seen: the state that the page shows."""

    seen: OptionalName = None


class AskedNothing(Asked):
    """A page without a form."""
