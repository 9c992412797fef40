"""The trainings that share a pool, as their user states them in TOML or CSV; docs/decide/allocate.md."""

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
_MOST_S = 10.0**12
_MOST_NAMED = 5
_MOST_USD_PER_KWH = 1e3
_ECHO = 60
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_OF_JOB = frozenset({"name", "workload", "times", "file", "sizes", "start", "deadline", "weight"})
# What is trained and how, as `advise` takes it.
_OF_QUESTION: Final = frozenset(OF_JOB.values())
# Of a file of measured times they choose rows; nothing else that is trained matters to times.
_CHOOSING_ROWS: Final = frozenset({"precision", "global_batch"})
_OF_FILE = frozenset({"job", "electricity_usd_per_kwh", "begin"})


class JobRequest(Struct, frozen=True, kw_only=True):
    """One training as stated. where: the file and job, for messages.

    times: measured seconds by size; file: measured times; else workload, or a model's config.json among
    `training`, is what to estimate. sizes: numbers of accelerators it may have; empty for all. training:
    the fields of a question that it states, by attribute; without a budget it trains to the published target.
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
    """What a JOBS.toml states. usd_per_kwh, begin_s (after midnight): None where it does not."""

    jobs: tuple[JobRequest, ...]
    usd_per_kwh: tuple[float, ...] | None
    begin_s: float | None


def read_jobs(path: Path) -> JobsFile:
    """The jobs of a file, TOML or CSV; files of measured times that it names are in its own folder.

    Raises DataError with file, job and field, what was found and what was expected.
    """
    content = read_input(path, _MAX_FILE_BYTES, expected="a TOML or CSV file of jobs")
    try:
        text = content.decode("utf-8")
    except ValueError as err:
        raise DataError(f"{path.name}: not text: {err}; expected a file of [[job]] tables") from err
    return jobs_of(jobs_document(text, where=path.name), where=path.name, folder=path.parent)


def jobs_of(document: Mapping[str, Any], *, where: str, folder: Path | None) -> JobsFile:
    """The jobs of a document with tables `job`. Raises DataError as `read_jobs` does.

    folder: that of files which jobs name; None where they may name none.
    """
    whole = _JobFields(where=where, fields=document, known=_OF_FILE)
    listed = whole.fields.get("job")
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
        raise DataError(f"{where}: no [[job]]; expected a table [[job]] for each training")
    if len(listed) > MAX_JOBS:
        raise DataError(f"{where}: {len(listed):,} jobs; at most {MAX_JOBS} share a pool at once")
    jobs = tuple(_job(each, f"{where}: job {number}", folder) for number, each in enumerate(listed, 1))
    jobs = _numbered(jobs, [each.get("name") is not None for each in listed])
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


def _numbered(jobs: Sequence[JobRequest], is_named: Sequence[bool]) -> tuple[JobRequest, ...]:
    """The jobs; names that were not stated and occur earlier get a number: several may train one model."""
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
    """The document of a text: TOML, or CSV whose first line names fields of a job.

    Raises DataError where it is neither.
    """
    text = text.removeprefix("\ufeff")
    header = re.split(r"[,;\t]", text.lstrip().partition("\n")[0])
    named = {column_name(each) for each in header}
    known = _OF_JOB | _OF_QUESTION
    # A line of TOML with such marks has brackets, an equals sign or a comment.
    is_table = len(header) > 1 and (named & known or not re.search(r"[\[=#]", "".join(header)))
    if is_table and named - known:
        unknown = listed([_echo(each) for each in sorted(named - known)], _MOST_NAMED)
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
    """A table `job` of texts: sizes as `8 16`, times as `8=3h 16=1.7h`, amounts as `1T`.

    Blanks are not given. A text that cannot be read stays as it is: it is refused where it is looked at.
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
    """A cell as a number, which may be below 0; as it is written where it is none."""
    sign = -1.0 if written.strip().startswith("-") else 1.0
    value = sign * amount_of(written.strip().removeprefix("-"))
    return written if math.isnan(value) else value


def read_prices(path: Path) -> tuple[float, ...]:
    """24 prices of electricity from a table with the columns hour and usd_per_kwh. Raises DataError."""
    header, rows = rows_of(path)
    if not {"hour", "usd_per_kwh"} <= set(header):
        raise DataError(f"{path.name}: columns {', '.join(header)[:_ECHO]}; expected hour and usd_per_kwh")
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
    """The prices of the command line, else of the file; None where neither states any.

    Raises UsageError for a time of day without them: nothing else depends on it.
    """
    prices = own or file.usd_per_kwh
    begin = begin_s if begin_s is not None else file.begin_s
    if prices is None:
        if begin is not None:
            raise UsageError(
                "--begin counts only with prices of electricity by the hour: add --electricity-by-hour "
                "FILE.csv, or electricity_usd_per_kwh to the file of jobs, or leave it out"
            )
        return None
    return Tariff(usd_per_kwh=prices, begin_s=begin or 0.0)


def clock_s(text: object, *, where: str) -> float:
    """Seconds after midnight of a time such as `22:30`. Raises DataError for anything else."""
    found = _CLOCK.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise DataError(f"{where} {_echo(text)}; expected a time of day such as 22:30")
    return int(found[1]) * HOUR_S + int(found[2]) * MINUTE_S


_ZERO = re.compile(r"[+-]?(?:0+\.?0*|\.0+)")  # which is a price, and no amount


def _price(row: TextRow) -> float:
    text = row.cells["usd_per_kwh"].strip()
    value = 0.0 if _ZERO.fullmatch(text) else _number(text)
    if isinstance(value, str) or abs(value) > _MOST_USD_PER_KWH:
        raise row.refusal("usd_per_kwh", "US dollars per kWh")
    return value


def hourly_prices(found: object) -> tuple[float, ...] | None:
    """The prices of a list of as many numbers as a day has hours; None for anything else."""
    numbers = found if isinstance(found, list | tuple) else []
    right = [each for each in numbers if _is_number(each) and abs(each) <= _MOST_USD_PER_KWH]
    return tuple(map(float, right)) if len(right) == HOURS == len(numbers) else None


def _prices(found: object, whole: "_JobFields") -> tuple[float, ...]:
    right = hourly_prices(found)
    if right is None:
        raise whole.refuse("electricity_usd_per_kwh", f"{HOURS} numbers, US dollars per kWh in each hour")
    return right


class _JobFields(Struct, frozen=True, kw_only=True):
    """One table of the file: where it is, and its fields, all known."""

    where: str
    fields: Mapping[str, Any]
    known: frozenset[str]

    def __post_init__(self) -> None:
        """Refuse a field that nothing reads: a slip would otherwise be lost in silence."""
        for key in self.fields:
            if key not in self.known:
                near, expected = meant(key, self.known), f"expected one of {', '.join(sorted(self.known))}"
                raise DataError(f"{self.where}: unknown field {_echo(key)}; {hint(near, expected)}")

    def refuse(self, key: str, expected: str) -> DataError:
        """The error for a field."""
        return DataError(f"{self.where}: {key} = {_echo(self.fields.get(key))}; expected {expected}")

    def text(self, key: str) -> str | None:
        """A text that is not blank; None where absent."""
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
        """A finite number above 0; None where absent."""
        value: Any = self.fields.get(key)
        if value is None:
            return None
        if not _is_number(value) or not 0 < value < _MOST:
            raise self.refuse(key, "a finite number above 0")
        return float(value)

    def moment_s(self, key: str) -> float | None:
        """Seconds of a text such as `8 h`, or of hours; None where absent."""
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
_MOST = 1e24


def _job(found: Mapping[str, Any], where: str, folder: Path | None) -> JobRequest:
    job = _JobFields(where=where, fields=found, known=_OF_JOB | _OF_QUESTION)
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
        what, used = ("times", frozenset[str]()) if times else ("file", _CHOOSING_ROWS)
        unused = [key for key in found if key in _OF_QUESTION - used]
        if unused:
            raise DataError(
                f"{job.where}: has {what} and {' and '.join(unused)}; {what} states how long the complete "
                f"training takes, whatever it is: leave {'it' if len(unused) == 1 else 'them'} out"
            )
    training = values({key: each for key, each in found.items() if key in _OF_QUESTION}, where=where)
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
    """Measured seconds by size; one or several repetitions each."""
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
    """Seconds of a text such as `3 h`; None for what is none or too long to be meant."""
    seconds = duration_s(value) if isinstance(value, str) and len(value) <= _MAX_TEXT else None
    return seconds if seconds is not None and seconds <= _MOST_S else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _echo(value: object) -> str:
    """A value of the file, short and on one line."""
    text = ascii(value) if not isinstance(value, int) or abs(value) < _MOST else "a very large number"
    return text if len(text) <= _ECHO else f"{text[:_ECHO]}..."
