"""What the query of a URL may say: one model a page, every value bounded. Nothing is looked up here."""

from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

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
Amount: TypeAlias = Annotated[float | None, _BLANK, Field(gt=0, le=1e15, allow_inf_nan=False)]


class Asked(BaseModel):
    """A query: what is not a field of the page is refused, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AskedStudy(Asked):
    """Any round, any of its workloads; the published study's unless given."""

    round: OptionalName = None
    workload: Names = []
