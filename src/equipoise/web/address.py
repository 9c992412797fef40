"""The fields in the address of a page: one model per page, every value bounded. Nothing is looked up here.

The pages that ask a question of `decide` are in question.py.
"""

from typing import Annotated, Final, Protocol, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

LONGEST_NAME = 160
MOST_NAMES = 24
MOST_ACCELERATORS = 16_384
MOST_SYSTEMS = 6
# Paths of the server, what reads or describes them, and what would look the server over. `runs` is named from
# the folders that the dashboard was given; a workload is a name of the catalogue, never a MODULE:FUNCTION.
NOT_FROM_BROWSERS: Final = frozenset(
    {
        "here",
        "topology",
        "collectives",
        "traces",
        "traced_as",
        "times_from",
        "columns",
        "rows",
        "data",
        "also",
        "hardware",
        "workloads",
    }
)


class PageQuery(Protocol):
    """The query in the address of a page."""

    @property
    def key(self) -> str:
        """Equal for equal questions."""


def _without_blanks(value: object) -> object:
    """A form sends fields that were left empty as empty text: they were not given."""
    if isinstance(value, list):
        return [each for each in value if each != ""]
    return None if value == "" else value


_BLANK = BeforeValidator(_without_blanks)
Name: TypeAlias = Annotated[str, StringConstraints(max_length=LONGEST_NAME)]
OptionalName: TypeAlias = Annotated[Name | None, _BLANK]
Names: TypeAlias = Annotated[list[Name], _BLANK, Field(max_length=MOST_NAMES)]


class NoFields(BaseModel):
    """A page without a form: what is not a field of a page is refused, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def key(self) -> str:
        """Its fields as JSON."""
        return self.model_dump_json()


class StudyFields(NoFields):
    """Any round, any of its workloads; the published study's unless given."""

    round: OptionalName = None
    workload: Names = []


class CompareFields(NoFields):
    """Entries of one round and workload, side by side; a few of the widest accelerator's unless given."""

    round: OptionalName = None
    workload: OptionalName = None
    entry: Annotated[list[Name], _BLANK, Field(max_length=MOST_SYSTEMS)] = []


class RunsFields(NoFields):
    """One of the sweeps that the dashboard was given, by its name."""

    sweep: OptionalName = None


class LiveFields(RunsFields):
    """What of a sweep changes by itself. seen: the state that the page shows."""

    seen: OptionalName = None
