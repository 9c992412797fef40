"""Reads the trainings that share a pool from TOML or CSV; docs/decide/allocate.md."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.decide.allocation.problem import HOURS, Tariff
from equipoise.decide.question.field import MAX_ACCELERATORS, MAX_SIZES
from equipoise.decide.question.query import OF_JOB, meant, values
from equipoise.errors import DataError, UsageError, hint
from equipoise.files import parsed_toml, read_input
from equipoise.runs.readers.cells import TextRow, amount_of, column_name, rows_of, table
from equipoise.units import HOUR_S, MIB, MINUTE_S, duration_s, listed

MAX_JOBS: Final = 50
_MAX_FILE_BYTES = MIB
_MAX_S = 10.0**12
_MAX_NAMED = 5
_MAX_USD_PER_KWH = 1e3
_MAX_ECHO = 60
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_JOB_FIELDS = frozenset({"name", "workload", "times", "file", "sizes", "start", "deadline", "weight"})
# Fields of the training, as in `advise`.
_QUESTION_FIELDS: Final = frozenset(OF_JOB.values())
# Fields that select rows of a file of measured times; no other field of the training affects these times.
_ROW_FILTERS: Final = frozenset({"precision", "global_batch"})
_FILE_FIELDS = frozenset({"job", "electricity_usd_per_kwh", "begin"})


class JobRequest(Struct, frozen=True, kw_only=True):
    """One training as stated. where: file and job, for messages.

    times: measured seconds by size. file: of measured times. Without either, times are estimated for
    workload, or for a model's config.json in `training`. sizes: allowed numbers of accelerators; empty for
    all. training: fields of a question, by attribute; without a budget it trains to the published target.
    """

    where: str
    name: str
    workload: str | None
    times: Mapping[int, tuple[float, ...]]
    file: Path | None
    sizes: tuple[int, ...] = ()
    start_s: float = 0.0
    deadline_s: float = math.inf
    weight: float = 1.0
    training: Mapping[str, Any] = {}


class JobsFile(Struct, frozen=True, kw_only=True):
    """Content of a JOBS.toml. usd_per_kwh, begin_s (after midnight): None if not stated."""

    jobs: tuple[JobRequest, ...]
    usd_per_kwh: tuple[float, ...] | None
    begin_s: float | None


def read_jobs(path: Path) -> JobsFile:
    """The jobs of a TOML or CSV file; files of measured times that it names are relative to its folder.

    Raises DataError with file, job, field, the value found and what was expected.
    """
    content = read_input(path, _MAX_FILE_BYTES, expected="a TOML or CSV file of jobs")
    try:
        text = content.decode("utf-8")
    except ValueError as err:
        raise DataError(f"{path.name}: not text: {err}; expected a file of [[job]] tables") from err
    return jobs_of(jobs_document(text, where=path.name), where=path.name, folder=path.parent)


def jobs_of(document: Mapping[str, Any], *, where: str, folder: Path | None) -> JobsFile:
    """The jobs of a document with tables `job`. Raises DataError as `read_jobs` does.

    folder: of files named by jobs; None if jobs may not name files.
    """
    whole = _JobFields(where=where, fields=document, known=_FILE_FIELDS)
    listed = whole.fields.get("job")
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
        raise DataError(f"{where}: no [[job]]; expected a table [[job]] for each training")
    if len(listed) > MAX_JOBS:
        raise DataError(f"{where}: {len(listed):,} jobs; at most {MAX_JOBS} share a pool at once")
    jobs = tuple(_job(each, f"{where}: job {number}", folder) for number, each in enumerate(listed, 1))
    jobs = _with_unique_names(jobs, [each.get("name") is not None for each in listed])
    names = [each.name for each in jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{where}: two jobs are named {_echo(twice)}; give each its own name")
    prices, begin = whole.fields.get("electricity_usd_per_kwh"), whole.fields.get("begin")
    return JobsFile(
        jobs=jobs,
        usd_per_kwh=None if prices is None else _prices(prices, whole),
        begin_s=None if begin is None else clock_s(str(begin), where=f"{where}: begin ="),
    )


def _with_unique_names(jobs: Sequence[JobRequest], is_named: Sequence[bool]) -> tuple[JobRequest, ...]:
    """The jobs with unique names: default names that repeat get a number, because jobs may share a model."""
    taken = {job.name for job, is_stated in zip(jobs, is_named, strict=True) if is_stated}
    found = []
    for job, is_stated in zip(jobs, is_named, strict=True):
        name, number = job.name, 1
        while not is_stated and name in taken:
            number += 1
            name = f"{job.name} {number}"
        taken.add(name)
        found.append(replace(job, name=name))
    return tuple(found)


def jobs_document(text: str, *, where: str) -> dict[str, Any]:
    """The document of a text: TOML, or CSV with fields of a job in its header.

    Raises DataError for anything else.
    """
    text = text.removeprefix("\ufeff")
    header = re.split(r"[,;\t]", text.lstrip().partition("\n")[0])
    named = {column_name(each) for each in header}
    known = _JOB_FIELDS | _QUESTION_FIELDS
    # A first line of TOML with separators also has brackets, an equals sign or a comment.
    is_table = len(header) > 1 and (named & known or not re.search(r"[\[=#]", "".join(header)))
    if is_table and named - known:
        unknown = listed([_echo(each) for each in sorted(named - known)], _MAX_NAMED)
        raise DataError(
            f"{where}: no field of a job is called {unknown}; expected {', '.join(sorted(known))}"
        )
    if named <= known:
        return {"job": [job_of_cells(row.cells) for row in table(text.lstrip(), where)[1]]}
    try:
        return parsed_toml(text)
    except RecursionError as err:
        raise DataError(f"{where}: nested too deeply; expected [[job]] tables") from err
    except ValueError as err:
        raise DataError(f"{where}: not valid TOML: {err}; expected [[job]] tables, or CSV") from err


def job_of_cells(cells: Mapping[str, str]) -> dict[str, Any]:
    """A table `job` from text cells: sizes as `8 16`, times as `8=3h 16=1.7h`, amounts as `1T`.

    Blank cells are omitted. Invalid text is unchanged, and rejected by later validation.
    """
    found: dict[str, Any] = {}
    for name, written in cells.items():
        words = written.split()
        if not words:
            continue
        if name == "sizes":
            found[name] = [
                int(each) if each.isdecimal() else each for each in re.split(r"[\s;,]+", written.strip())
            ]
        elif name == "times":
            times: dict[str, list[str]] = {}
            for size, _, seconds in (each.partition("=") for each in words):
                times.setdefault(size, []).append(seconds)
            found[name] = times
        elif name == "weight":
            found[name] = _number(written)
        else:
            found[name] = written
    return found


def _number(written: str) -> float | str:
    """A cell as a number, which may be negative; the text itself if it is not a number."""
    sign = -1.0 if written.strip().startswith("-") else 1.0
    value = sign * amount_of(written.strip().removeprefix("-"))
    return written if math.isnan(value) else value


def read_prices(path: Path) -> tuple[float, ...]:
    """24 hourly electricity prices from a table with the columns hour and usd_per_kwh. Raises DataError."""
    header, rows = rows_of(path)
    if not {"hour", "usd_per_kwh"} <= set(header):
        raise DataError(
            f"{path.name}: columns {', '.join(header)[:_MAX_ECHO]}; expected hour and usd_per_kwh"
        )
    found: dict[int, float] = {}
    for row in rows:
        hour = row.cells["hour"].strip()
        if not re.fullmatch(r"[01]?[0-9]|2[0-3]", hour, re.ASCII) or int(hour) in found:
            raise row.refusal("hour", "each hour of the day once, 0 to 23")
        found[int(hour)] = _price(row)
    if len(found) != HOURS:
        missing = [str(hour) for hour in range(HOURS) if hour not in found]
        raise DataError(f"{path.name}: no price for hour {', '.join(missing)}; expected 0 to 23")
    return tuple(found[hour] for hour in range(HOURS))


def tariff_of(file: JobsFile, own: tuple[float, ...] | None, begin_s: float | None) -> Tariff | None:
    """The prices of the command line, else of the file; None if neither states any.

    Raises UsageError for a start time of day without prices, on which nothing else depends.
    """
    prices = own or file.usd_per_kwh
    begin = begin_s if begin_s is not None else file.begin_s
    if prices is None:
        if begin is not None:
            raise UsageError(
                "--begin matters only with electricity prices by the hour: add --electricity-by-hour "
                "FILE.csv, or electricity_usd_per_kwh to the file of jobs, or leave it out"
            )
        return None
    return Tariff(usd_per_kwh=prices, begin_s=begin or 0.0)


def clock_s(text: object, *, where: str) -> float:
    """Seconds after midnight of a time such as `22:30`. Raises DataError otherwise."""
    found = _CLOCK.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise DataError(f"{where} {_echo(text)}; expected a time of day such as 22:30")
    return int(found[1]) * HOUR_S + int(found[2]) * MINUTE_S


_ZERO = re.compile(r"[+-]?(?:0+\.?0*|\.0+)")  # a valid price, but not a valid amount


def _price(row: TextRow) -> float:
    text = row.cells["usd_per_kwh"].strip()
    value = 0.0 if _ZERO.fullmatch(text) else _number(text)
    if isinstance(value, str) or abs(value) > _MAX_USD_PER_KWH:
        raise row.refusal("usd_per_kwh", "US dollars per kWh")
    return value


def hourly_prices(found: object) -> tuple[float, ...] | None:
    """The prices of a list of 24 numbers; None for anything else."""
    numbers = found if isinstance(found, list | tuple) else []
    right = [each for each in numbers if _is_number(each) and abs(each) <= _MAX_USD_PER_KWH]
    return tuple(map(float, right)) if len(right) == HOURS == len(numbers) else None


def _prices(found: object, whole: "_JobFields") -> tuple[float, ...]:
    right = hourly_prices(found)
    if right is None:
        raise whole.refuse("electricity_usd_per_kwh", f"{HOURS} numbers, US dollars per kWh in each hour")
    return right


class _JobFields(Struct, frozen=True, kw_only=True):
    """One table of the file: its place, its fields and the names of known fields."""

    where: str
    fields: Mapping[str, Any]
    known: frozenset[str]

    def __post_init__(self) -> None:
        """Reject unknown fields, because a misspelled field would otherwise be ignored silently."""
        for key in self.fields:
            if key not in self.known:
                near, expected = meant(key, self.known), f"expected one of {', '.join(sorted(self.known))}"
                raise DataError(f"{self.where}: unknown field {_echo(key)}; {hint(near, expected)}")

    def refuse(self, key: str, expected: str) -> DataError:
        """The error for a field."""
        return DataError(f"{self.where}: {key} = {_echo(self.fields.get(key))}; expected {expected}")

    def text(self, key: str) -> str | None:
        """A non-blank text; None if absent."""
        value = self.fields.get(key)
        if value is None:
            return None
        if (
            not isinstance(value, str)
            or not value.strip()
            or len(value) > _MAX_TEXT
            or not value.isprintable()
        ):
            raise self.refuse(key, "text in quotes")
        return value.strip()

    def number(self, key: str) -> float | None:
        """A finite number above 0; None if absent."""
        value: Any = self.fields.get(key)
        if value is None:
            return None
        if not _is_number(value) or not 0 < value < _MAX_NUMBER:
            raise self.refuse(key, "a finite number above 0")
        return float(value)

    def moment_s(self, key: str) -> float | None:
        """Seconds of a text such as `8 h`, or of a number of hours; None if absent."""
        value = self.fields.get(key)
        if value is None:
            return None
        text = repr(value) if _is_number(value) else value
        seconds = _seconds(text)
        if seconds is None:
            seconds = _seconds(f"{text} h")
        if seconds is None:
            raise self.refuse(key, 'hours, or a time such as "90 min", from the beginning of the plan')
        return seconds


_MAX_TEXT = 200
_MAX_NUMBER = 1e24


def _job(found: Mapping[str, Any], where: str, folder: Path | None) -> JobRequest:
    job = _JobFields(where=where, fields=found, known=_JOB_FIELDS | _QUESTION_FIELDS)
    workload, file, config = job.text("workload"), job.text("file"), job.text("config")
    if file is not None and folder is None:
        raise DataError(f"{where}: file = {_echo(file)}; expected the times themselves, as times")
    if config is not None and folder is None:
        raise DataError(f"{where}: config = {_echo(config)}; expected the name of a workload")
    times = _times(job)
    stated = (("workload", workload), ("config", config), ("times", times), ("file", file))
    given = [key for key, value in stated if value]
    if not given or {"times", "file"} <= set(given) or {"workload", "config"} <= set(given):
        raise DataError(
            f"{job.where}: has {' and '.join(given) or 'nothing'}; expected workload, config, times or file"
        )
    if times or file is not None:
        what, used = ("times", frozenset[str]()) if times else ("file", _ROW_FILTERS)
        unused = [key for key in found if key in _QUESTION_FIELDS - used]
        if unused:
            raise DataError(
                f"{job.where}: has {what} and {' and '.join(unused)}; {what} already states how long the "
                f"complete training takes: leave {' and '.join(unused)} out"
            )
    training = values({key: each for key, each in found.items() if key in _QUESTION_FIELDS}, where=where)
    if config is not None and folder is not None:
        training["config"] = folder / config
    start_s = job.moment_s("start") or 0.0
    deadline_s = job.moment_s("deadline")
    if deadline_s is not None and deadline_s <= start_s:
        raise job.refuse("deadline", f"a time after its start, {start_s / HOUR_S:g} h")
    return JobRequest(
        where=job.where,
        name=job.text("name") or workload or config or where.rpartition(": ")[2],
        workload=workload,
        times=times,
        file=None if file is None or folder is None else folder / file,
        sizes=_sizes(job),
        start_s=start_s,
        deadline_s=math.inf if deadline_s is None else deadline_s,
        weight=job.number("weight") or 1.0,
        training=training,
    )


def _times(job: _JobFields) -> Mapping[int, tuple[float, ...]]:
    """Measured seconds by size, with one or several repetitions each."""
    table = job.fields.get("times", {})
    if not isinstance(table, dict) or len(table) > MAX_SIZES:
        raise job.refuse("times", f'at most {MAX_SIZES} sizes with times, as {{8 = "3 h", 16 = "1.7 h"}}')
    found: dict[int, tuple[float, ...]] = {}
    for key, value in table.items():
        listed = value if isinstance(value, list) else [value]
        seconds = [_seconds(each) for each in listed[:MAX_SIZES]]
        right = [each for each in seconds if each]
        size = int(key) if re.fullmatch(r"[0-9]{1,9}", key, re.ASCII) else 0
        if not 1 <= size <= MAX_ACCELERATORS or not right or len(right) < len(listed):
            raise DataError(
                f"{job.where}: times {_echo(key)} = {_echo(value)}; expected a number of accelerators and "
                'a time above 0, as 8 = "3 h"'
            )
        found[size] = (*found.get(size, ()), *right)
    return dict(sorted(found.items()))


def _sizes(job: _JobFields) -> tuple[int, ...]:
    listed = job.fields.get("sizes", [])
    if not isinstance(listed, list) or len(listed) > MAX_SIZES:
        raise job.refuse("sizes", f"a list of at most {MAX_SIZES} numbers of accelerators")
    right = [
        each
        for each in listed
        if isinstance(each, int) and not isinstance(each, bool) and 1 <= each <= MAX_ACCELERATORS
    ]
    if len(right) < len(listed):
        raise job.refuse("sizes", "whole numbers of accelerators, as [8, 16]")
    return tuple(sorted(set(right)))


def _seconds(value: object) -> float | None:
    """Seconds of a text such as `3 h`; None if invalid or implausibly long."""
    seconds = duration_s(value) if isinstance(value, str) and len(value) <= _MAX_TEXT else None
    return seconds if seconds is not None and seconds <= _MAX_S else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _echo(value: object) -> str:
    """A value of the file, shortened to one line."""
    text = ascii(value) if not isinstance(value, int) or abs(value) < _MAX_NUMBER else "a very large number"
    return text if len(text) <= _MAX_ECHO else f"{text[:_MAX_ECHO]}..."
