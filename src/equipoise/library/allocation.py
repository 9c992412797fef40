"""`allocate` as a function: several trainings on one pool, each with the fields of an `advise` question."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, Unpack, get_args

from equipoise.decide.allocation import Allocation, job_times
from equipoise.decide.allocation import allocate as best_schedule
from equipoise.decide.allocation.jobs import (
    JobsFile,
    clock_s,
    hourly_prices,
    jobs_of,
    read_jobs,
    read_prices,
    tariff_of,
)
from equipoise.decide.allocation.problem import HOURS, pool_of
from equipoise.decide.question.query import values
from equipoise.errors import UsageError, in_a_line
from equipoise.files import one_path
from equipoise.library import Presentation, Result
from equipoise.library.arguments import AllocateFields
from equipoise.library.decisions import CANDIDATE_COLUMNS, candidate_row, given_fields, in_python, plain
from equipoise.report.json import allocation_fields
from equipoise.report.pages.allocate import ALLOCATION
from equipoise.runs.embedded import scores as published
from equipoise.spec.catalogue import Catalogue, catalogue
from equipoise.spec.hardware import DEFAULT_GRID
from equipoise.spec.mlperf import Scores
from equipoise.spec.torch_model.factory import refuse_code

AllocationObjective: TypeAlias = Literal["time", "makespan", "cost", "energy"]


def _shares(found: Allocation) -> list[dict[str, Any]]:
    """One row per job: its start and end, and the columns of its candidate."""
    return [
        {"job": each.job.name, "start_s": each.start_s, "end_s": each.end_s.value}
        | candidate_row(each.candidate, is_best=True)
        | ({} if each.hourly_electricity_usd is None else {**_NO_RANGE, "usd": each.usd})
        for each in found.shares
    ]


# With hourly electricity prices, money has no range, because the prices are known.
_NO_RANGE: Final = {"usd_low": None, "usd_high": None}
_SHARE_COLUMNS: Final[Mapping[str, type]] = {
    "job": str,
    "start_s": float,
    "end_s": float,
    **{name: kind for name, kind in CANDIDATE_COLUMNS.items() if name != "recommended"},
}


def _shown_allocation() -> Presentation[Allocation]:
    return Presentation(
        verb="allocate",
        fields=allocation_fields,
        columns=_SHARE_COLUMNS,
        rows=_shares,
        page=ALLOCATION,
        made_by=_shown_allocation,
    )


@in_python("allocate", own=("begin", "electricity_by_hour"))
def allocate(
    jobs: str | PathLike[str] | Sequence[Mapping[str, Any]],
    *,
    objective: AllocationObjective = "time",
    electricity_by_hour: str | PathLike[str] | Sequence[float] | None = None,
    begin: str | None = None,
    allow_code: bool = False,
    **fields: Unpack[AllocateFields],
) -> Result[Allocation]:
    """Share a pool of accelerators between several trainings: how many accelerators each gets, and when.

    jobs: a TOML file in the form of docs/decide/allocate.md, or one mapping per job. accelerator, among
    `fields`: the pool, e.g. "64x h100". objective: what to minimise. electricity_by_hour: a CSV file of
    prices, or 24 numbers, in US dollars per kWh. begin: the time of day, "HH:MM". allow_code: as in `advise`,
    for the jobs of a file. Raises the same errors as `advise`.
    """
    if objective not in get_args(AllocationObjective):
        expected = ", ".join(get_args(AllocationObjective))
        raise UsageError(f"objective is {str(objective)[:40]!r}; expected one of {expected}")
    given = {
        name: each for name, each in given_fields("allocate", None, fields).items() if name != "workload"
    }
    if isinstance(jobs, str | PathLike):
        file = read_jobs(one_path(jobs))
        if not allow_code:
            refuse_code((job.workload for job in file.jobs), where=jobs)
    else:
        file = jobs_of({"job": _tables_of(jobs)}, where="jobs", folder=Path())
    prices = None if electricity_by_hour is None else _prices_of(electricity_by_hour)
    return allocation_of(file, given, objective=objective, prices=prices, begin=begin)


def _prices_of(stated: str | PathLike[str] | Sequence[float]) -> tuple[float, ...]:
    """24 prices, from a file or a sequence. Raises DataError for a bad file, UsageError for other values."""
    if isinstance(stated, str | PathLike):
        return read_prices(one_path(stated))
    found = hourly_prices(plain(stated))
    if found is None:
        raise UsageError(
            f"--electricity-by-hour is {in_a_line(stated)}; expected the path of a CSV file, or {HOURS} "
            "numbers, US dollars per kWh in each hour"
        )
    return found


def _tables_of(jobs: object) -> list[dict[str, Any]]:
    """Jobs in the form of a file. Raises UsageError for anything but a list of mappings."""
    if isinstance(jobs, Mapping) or not isinstance(jobs, Iterable):
        raise UsageError(f"jobs is a {type(jobs).__name__}; expected a list with a mapping for each job")
    listed = list(jobs)
    wrong = [each for each in listed if not isinstance(each, Mapping)]
    if wrong:
        raise UsageError(f"jobs has {str(wrong[0])[:40]!r}; expected a mapping for each job")
    return [_table_of(each) for each in listed]


def _table_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job in the form of a file: names and the sizes of `times` as text, other sequences as lists."""
    found = {str(name): _as_in_file(each) for name, each in job.items()}
    times = found.get("times")
    if isinstance(times, dict):
        found["times"] = {str(size): _as_in_file(each) for size, each in times.items()}
    return found


def _as_in_file(value: object) -> object:
    stated = plain(value)
    return list(stated) if isinstance(stated, tuple) else stated


def allocation_of(
    file: JobsFile,
    given: Mapping[str, object],
    *,
    objective: AllocationObjective,
    prices: tuple[float, ...] | None = None,
    begin: str | None = None,
    scores: Scores | None = None,
    known: Catalogue | None = None,
) -> Result[Allocation]:
    """The result of `allocate`, after its files have been read.

    given: the fields of its question, as text or values. prices: hourly electricity prices. scores, known: as
    in `result_of`.
    """
    stated = values(given, verb="allocate")
    pools = stated.get("systems", ())
    if len(pools) != 1:
        what = f"--accelerator names {len(pools)} pools" if pools else "no --accelerator is given"
        raise UsageError(f"{what}; expected one pool, such as '64x h100'")
    known = known or catalogue(stated.get("hardware", ()), stated.get("workloads", ()))
    pool = pool_of(
        pools[0],
        known,
        price=stated.get("price", ()),
        node_size=stated.get("node_size"),
        region=stated.get("region", DEFAULT_GRID),
        currency=stated.get("currency"),
        tariff=tariff_of(file, prices, None if begin is None else clock_s(begin, where="--begin is")),
    )
    if scores is None:
        scores = published(data=stated.get("data"), also=stated.get("also", ()))
    times = job_times(file.jobs, pool, scores=scores, catalogue=known)
    found = best_schedule(file.jobs, times, pool, objective=objective)
    return Result(record=found, presentation=_shown_allocation())
