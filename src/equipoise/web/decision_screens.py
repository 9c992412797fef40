"""The pages Advice, Plan and Allocate, which answer questions with `decide`."""

from collections.abc import Iterable
from typing import Any, Final, cast, get_args

from msgspec.structs import replace

from equipoise.decide.allocation import Allocation
from equipoise.decide.allocation.jobs import JobsFile, job_of_cells, jobs_document, jobs_of
from equipoise.decide.answer import Answer, SystemAnswer
from equipoise.decide.question.query import IN_JOB, OWN_TIMES, TrainingQuery
from equipoise.decide.solve_for import Reaches
from equipoise.errors import SpecError, UsageError
from equipoise.library import Result
from equipoise.library.allocation import AllocationObjective, allocation_of
from equipoise.library.decisions import DecisionVerb, result_of
from equipoise.notes import Note
from equipoise.report.format import printable
from equipoise.runs.embedded import scores
from equipoise.runs.store import neutralised
from equipoise.spec.catalogue import counted_name
from equipoise.web import (
    MOST_FORM_ACCELERATORS,
    Area,
    Choice,
    Control,
    DataSources,
    Given,
    More,
    PageQuery,
    Rows,
    RunsFields,
    Screen,
    Select,
    Text,
    checked,
    first,
    workload_choices,
)
from equipoise.web.answers import FileKind, PageAnswer, shown
from equipoise.web.evidence_screens import called, chosen, run_folders, state
from equipoise.web.question import QuestionFields, in_form, label_of, question, question_controls


def _decision(verb: DecisionVerb, *, title: str, about: str) -> Screen:
    """The page of a decision verb. Its answer may use the user's runs, which grow while it is open."""

    def read(given: Given, sources: DataSources) -> QuestionFields:
        return question(given, verb, sources.catalogue, at_first=sources.at_first)

    def fields(given: Given, sources: DataSources) -> tuple[Control, ...]:
        runs = tuple(run_folders(sources)) if verb == "advise" else ()
        return question_controls(given, verb, sources.catalogue, at_first=sources.at_first, runs=runs)

    def found(asked: QuestionFields, sources: DataSources) -> Result[Any]:
        published = scores(data=sources.data, also=sources.also)
        query = _with_runs(asked, sources)
        with called(query.runs, asked.runs):
            return result_of(verb, query, scores=published, known=sources.catalogue)

    return Screen(
        path=f"/{title.lower()}",
        title=title,
        about=about,
        verb=verb.capitalize(),
        read=read,
        fields=fields,
        answer=lambda asked, sources: _shown(found(asked, sources)),
        file=lambda asked, sources, kind: _saved(found(asked, sources), kind),
        stamp=_stamp,
        depends=("accelerator",),
        is_transient=True,
        reads_disk=verb == "advise",
    )


def _stamp(fields: QuestionFields, sources: DataSources) -> str:
    """The stamp of the data, including the user's runs, which grow while the dashboard runs."""
    runs = "" if fields.runs is None else state(RunsFields(sweep=fields.runs), sources)
    return f"{sources.stamp()};{runs}" if runs else sources.stamp()


def _notes_in_form(notes: Iterable[Note]) -> tuple[Note, ...]:
    return tuple(replace(each, words=in_form(each.words)) for each in notes)


def _shown(found: Result[Any]) -> PageAnswer:
    """The page of a result, in which options are called by the labels of the form."""
    record = found.record
    if isinstance(record, Reaches):
        record = replace(
            record,
            notes=_notes_in_form(record.notes),
            chosen_for_you=tuple(map(in_form, record.chosen_for_you)),
        )
    if isinstance(record, Answer) and record.recommended is None:
        record = replace(
            record,
            notes=_notes_in_form(record.notes),
            chosen_for_you=tuple(map(in_form, record.chosen_for_you)),
            systems=tuple(map(_with_ways_in_form, record.systems)),
        )
    if isinstance(record, Allocation):
        system = record.pool.system
        system = replace(system, chosen_for_you=tuple(map(in_form, system.chosen_for_you)))
        record = replace(record, pool=replace(record.pool, system=system))
    return shown(found.presentation.page, record)


def _with_ways_in_form(system: SystemAnswer) -> SystemAnswer:
    short = system.shortfall
    if short is None:
        return system
    return replace(system, shortfall=replace(short, ways=tuple(map(in_form, short.ways))))


def _saved(found: Result[Any], kind: FileKind) -> bytes:
    if kind == "json":
        return found.to_json()
    return (found.to_html() if kind == "html" else neutralised(found.frame()).write_csv()).encode()


def _with_runs(fields: QuestionFields, sources: DataSources) -> TrainingQuery:
    """The question, with the name of the runs resolved to their folder."""
    if fields.runs is None:
        return fields.training
    return replace(fields.training, runs=chosen(RunsFields(sweep=fields.runs), sources))


ADVICE: Final = _decision("advise", title="Advice", about="how many accelerators to take, and why")
PLAN: Final = _decision("plan", title="Plan", about="the best strategies for a number of accelerators")


_OBJECTIVES: Final = (
    Choice(value="time", label="The least time over all jobs"),
    Choice(value="makespan", label="The earliest end of the last job"),
    Choice(value="cost", label="The least money"),
    Choice(value="energy", label="The least energy"),
)
_MOST_ROWS: Final = 12
_MOST_PASTED: Final = 6000
_PASTED: Final = "pasted"
# The columns of a job in the form: name of the field, heading, and what an empty field means.
_COLUMNS: Final = (
    ("workload", "Train", ""),
    ("name", "Name", "the workload"),
    ("train", "Which weights", "all; lora, qlora"),
    ("tokens", "Tokens", "to the target"),
    ("examples", "Examples", "its data; 10k"),
    ("sizes", "Sizes", "any; 8 16 32"),
    ("deadline", "Deadline", "none; 8 h, 2 d"),
    ("weight", "Weight", "1"),
)
_POOL_LABEL: Final = "The pool"
_POOL_FIELDS: Final = ("price", "node_size", "region")
_POOL_AT_FIRST: Final = "32x h100"
_JOBS_AT_FIRST: Final[Given] = {
    "workload-1": ("gpt2",),
    "tokens-1": ("1B",),
    "deadline-1": ("1 h",),
    "sizes-2": ("8 16 32",),
    "weight-2": ("2",),
    "workload-3": ("llama31_8b",),
    "tokens-3": ("10B",),
}


class AllocationFields(PageQuery, frozen=True, kw_only=True):
    """The query for trainings that share a pool. given: the fields of the pool, by option."""

    jobs: JobsFile
    given: tuple[tuple[str, str], ...]
    objective: AllocationObjective


def _asked_first(given: Given, sources: DataSources) -> Given:
    """The values in an address; if there are none, an example that these data can answer."""
    return given or {
        "accelerator": (_POOL_AT_FIRST,),
        **_JOBS_AT_FIRST,
        "workload-2": (sources.at_first["workload"],),
    }


def _job_rows(given: Given) -> dict[int, dict[str, str]]:
    """The non-empty rows of the form, by index."""
    rows: dict[int, dict[str, str]] = {}
    for name, _, _ in _COLUMNS:
        for place in range(1, _MOST_ROWS + 1):
            text = first(given, f"{name}-{place}").strip()
            if text:
                rows.setdefault(place, {})[name] = text
    return dict(sorted(rows.items()))


def read_allocation(given: Given, sources: DataSources) -> AllocationFields:
    """Parse the trainings in an address, from rows and from pasted text. Raises InputError if invalid."""
    asked = _asked_first(given, sources)
    known = {"accelerator", *_POOL_FIELDS, "objective"}
    known |= {f"{name}-{place}" for name, _, _ in _COLUMNS for place in range(1, _MOST_ROWS + 1)}
    checked({name: texts for name, texts in asked.items() if name != _PASTED}, known)
    objective = first(asked, "objective") or "time"
    if objective not in get_args(AllocationObjective):
        raise UsageError(
            f"objective {printable(objective)!r} is not one of {', '.join(get_args(AllocationObjective))}"
        )
    pasted = first(asked, _PASTED).strip()
    document = jobs_document(pasted, where="pasted") if pasted else {}
    rows = [job_of_cells(cells) for cells in _job_rows(asked).values()]
    if not rows and not pasted:
        raise UsageError("no job is stated: fill a row, or paste a table")
    listed = document.get("job", [])
    if rows and isinstance(listed, list):
        document = {**document, "job": [*rows, *listed]}
    jobs = jobs_of(document, where="jobs", folder=None)
    for job in jobs.jobs:
        if job.workload is not None:  # otherwise a MODULE:FUNCTION would be run
            _expect_known(job.workload, job.where, sources)
    fields = (
        ("accelerator", first(asked, "accelerator").strip() or _POOL_AT_FIRST),
        *((name, first(asked, name)) for name in _POOL_FIELDS if first(asked, name).strip()),
    )
    count, _ = counted_name(fields[0][1])
    if not count or count > MOST_FORM_ACCELERATORS:
        raise UsageError(
            f"the pool is {printable(fields[0][1])!r}; expected how many and which, such as 32x h100, "
            f"at least 1 and at most {MOST_FORM_ACCELERATORS:,}"
        )
    return AllocationFields(jobs=jobs, given=fields, objective=cast("AllocationObjective", objective))


def _expect_known(workload: str, where: str, sources: DataSources) -> None:
    """Raise SpecError for a workload that is not in the catalogue. where: its job."""
    try:
        sources.catalogue.workload(workload)
    except SpecError as err:
        raise err.within(where) from err


def _allocation_fields(given: Given, sources: DataSources) -> tuple[Control, ...]:
    asked = _asked_first(given, sources)
    held = _job_rows(asked)
    places = [*range(1, min(_MOST_ROWS, max(held, default=0) + 1) + 1)]
    return (
        Text(
            name="accelerator",
            label=_POOL_LABEL,
            value=first(asked, "accelerator"),
            unset=_POOL_AT_FIRST,
            meaning="How many accelerators, and which: 32x h100",
        ),
        Select(
            name="objective",
            label="Choose by",
            choices=_OBJECTIVES,
            value=first(asked, "objective") or "time",
        ),
        Text(name="price", label=label_of("price"), value=first(asked, "price"), unset="price table; 2"),
        Text(
            name="node_size", label=label_of("node_size"), value=first(asked, "node_size"), unset="as sold; 4"
        ),
        Rows(
            name="jobs",
            label="Jobs",
            of="job",
            rows=tuple(
                tuple(
                    Text(
                        name=f"{name}-{place}",
                        label=label,
                        value=held.get(place, {}).get(name, ""),
                        unset=unset,
                        suggestions=workload_choices(sources.catalogue) if name == "workload" else (),
                        listed="" if place == 1 else "workload-1",
                    )
                    for name, label, unset in _COLUMNS
                )
                for place in places
            ),
        ),
        More(
            name="more-pasted",
            label="Paste jobs as TOML or CSV",
            fields=(
                Area(
                    name=_PASTED,
                    label="Jobs, besides those of the rows",
                    value=first(asked, _PASTED),
                    most=_MOST_PASTED,
                    hint="[[job]] tables as in docs/decide/allocate.md, also with measured times; or CSV: "
                    "name,workload,train,examples,tokens,sizes,start,deadline,weight,times",
                ),
            ),
            is_open=bool(first(asked, _PASTED)),
        ),
    )


def _allocation(fields: AllocationFields, sources: DataSources) -> Result[Any]:
    published = scores(data=sources.data, also=sources.also)
    given = {name: [text] if name in {"accelerator", "price"} else text for name, text in fields.given}
    return allocation_of(
        fields.jobs, given, objective=fields.objective, scores=published, known=sources.catalogue
    )


ALLOCATE: Final = Screen(
    path="/allocate",
    title="Allocate",
    about="several trainings on one pool of accelerators: who gets how many, and when",
    verb="Allocate",
    fields=_allocation_fields,
    read=read_allocation,
    answer=lambda fields, sources: _shown(_allocation(fields, sources)),
    file=lambda fields, sources, kind: _saved(_allocation(fields, sources), kind),
    depends=("jobs",),
    is_transient=True,
    labels={
        **{option: f"{name} of a pasted job" for option, name in IN_JOB.items()},
        **{name: label for name, label, _ in _COLUMNS},
        **dict.fromkeys(("accelerator", "max-accelerators"), _POOL_LABEL),
        OWN_TIMES: "times of a pasted job",
    },
)
