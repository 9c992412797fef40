"""The verbs that decide: `advise`, `plan`, `predict`, `allocate`, `record` and `serve`.

Options of questions are made from the declarations of the fields: decide/question/fields.toml.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast

import typer
from msgspec import Struct

from equipoise.cli.interrupts import count_interrupts, was_interrupted
from equipoise.cli.options import (
    AllowCode,
    Also,
    AsHtml,
    AsJson,
    Data,
    Full,
    Hardware,
    JsonOut,
    LaunchFolder,
    Recorded,
    Workloads,
    catalogue_of,
    clusters_from,
    option_of,
    rounds_from,
    trained_from,
)
from equipoise.cli.output import answering, answers_only, printable, progress_line, say, write
from equipoise.decide.question.field import Field, Verb
from equipoise.decide.question.query import FIELDS, fields_of
from equipoise.errors import DataError, UsageError
from equipoise.files import expect_folder
from equipoise.units import duration_s

if TYPE_CHECKING:
    from equipoise.decide.ledger import Ledger, LedgerEntry, MeasuredResult
    from equipoise.decide.question.query import TrainingQuery
    from equipoise.library import Result
    from equipoise.library.decisions import DecisionVerb


_COMPLETIONS: Final[Mapping[str, Callable[[str], list[str]]]] = {
    "workload": trained_from,
    "systems": clusters_from,
    "round": rounds_from,
}


class Output(Struct, frozen=True, kw_only=True):
    """Where an answer goes and how much of it is printed: the same options for every question.

    html: a page of it is written there too. full: all of it is printed, not one screen. recorded: its
    predictions are kept in the user's ledger. launch: the folder of files that run what is recommended.
    allow_code: files may name code, which is run.
    """

    html: Path | None = None
    as_json: bool = False
    json_out: Path | None = None
    full: bool = False
    recorded: bool = False
    launch: Path | None = None
    allow_code: bool = False


Options: TypeAlias = Mapping[str, object]  # by option, as typed; None, False and empty: not given


def asks(
    verb: Verb, *, argument: str | None = None, outputs: Collection[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a function `(asked, output, *, own options)` the options of a verb.

    argument: the attribute that is given by position. outputs: of _OUTPUTS, those that the verb has.
    """

    def with_options(answer: Callable[..., None]) -> Callable[..., None]:
        declared = [*inspect.signature(answer, eval_str=True).parameters.values()][2:]
        shown = {name: each for name, each in _OUTPUTS.items() if outputs is None or name in outputs}
        declared_fields = fields_of(verb)

        def run(**options: Any) -> None:  # noqa: ANN401 - each option has its own type
            output = Output(**{name: options.pop(name) for name in shown})
            given = {FIELDS[name].key: options.pop(name) for name in declared_fields}
            answer(given, output, **options)

        parameters = [
            *declared,
            *(_parameter(name, each, is_argument=name == argument) for name, each in declared_fields.items()),
            *shown.values(),
        ]
        parameters.sort(key=lambda each: each.default is not inspect.Parameter.empty)
        run.__name__ = run.__qualname__ = answer.__name__
        run.__doc__, run.__module__ = answer.__doc__, answer.__module__
        run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as inspect reads it
        return run

    return with_options


def _output(name: str, annotation: object, *, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_OUTPUTS: Final[Mapping[str, inspect.Parameter]] = {
    "html": _output("html", AsHtml, default=None),
    "full": _output("full", Full, default=False),
    "recorded": _output("recorded", Recorded, default=False),
    "launch": _output("launch", LaunchFolder, default=None),
    "as_json": _output("as_json", AsJson, default=False),
    "json_out": _output("json_out", JsonOut, default=None),
    "allow_code": _output("allow_code", AllowCode, default=False),
}


def _parameter(name: str, field: Field, *, is_argument: bool) -> inspect.Parameter:
    """A field as a parameter that typer reads; its value is text, which the field reads."""
    if is_argument:
        argument = typer.Argument(
            metavar=f"{field.metavar}|CONFIG.toml",
            autocompletion=_COMPLETIONS.get(name),
            help="What to train, or a TOML file with it and these options.",
        )
        annotation: Any = Annotated[str | None, argument]
        default: Any = None
    else:
        kind: Any = bool if field.kind == "flag" else list[str] | None if field.is_repeated else str | None
        annotation = Annotated[kind, option_of(name, completion=_COMPLETIONS.get(name))]
        default = False if field.kind == "flag" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@asks("advise", argument="workload")
def advise(options: Options, output: Output) -> None:
    """Combine all evidence: how many accelerators, how, and why."""
    _answer("advise", options, output)


@asks("plan", argument="workload")
def plan(options: Options, output: Output) -> None:
    """Find the best parallel strategy, and where returns diminish."""
    _answer("plan", options, output)


@asks("predict", outputs=tuple(name for name in _OUTPUTS if name != "launch"))
def predict(
    options: Options,
    output: Output,
    *,
    training: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD|CONFIG.toml",
            autocompletion=_COMPLETIONS["workload"],
            help="The same as --workload, or a TOML file with it and these options.",
        ),
    ] = None,
) -> None:
    """Predict times and costs at sizes nobody ran."""
    if training is not None and options["workload"] is not None:
        raise UsageError(f"{training!r} and --workload {options['workload']}: expected one of the two")
    _answer("predict", options if training is None else {**options, "workload": training}, output)


def _answer(verb: "DecisionVerb", options: Options, output: Output) -> None:
    """Answer a question and show it as the options ask."""
    # Far down the imports of the library, NumPy's own would go past the 16 KB of frames that CPython 3.11
    # takes from the system at once, and thousands of calls would each take and return the next 16 KB.
    import numpy as np  # noqa: F401

    if output.launch is not None:
        _expect_folder(output.launch)
    with answering(verb, as_json=output.as_json, json_out=output.json_out, html=output.html) as answer:
        from equipoise.library.decisions import read_question, result_of

        question = read_question(options, verb=verb, allow_code=output.allow_code)
        with answers_only(), progress_line() as line:
            found = result_of(verb, question, progress=line.update)
        if output.recorded:
            _record(verb, question, found)
        elif output.launch is not None and _not_launched(found) is None:
            try:
                _record(verb, question, found)
            except DataError as err:  # the scripts run without it
                say(f"equipoise: {printable(str(err))}; the scripts are written all the same\n")
        shown = found.presentation
        answer.give_page(shown.page, found.record, shown.fields, full=output.full)
        if output.launch is not None:
            _write_launch(output.launch, found)


def _expect_folder(folder: Path) -> None:
    """Raises UsageError for a folder that has something in it already, which may have been edited."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--launch {folder}: exists already; expected a new or empty folder")
    expect_folder(folder)


def _not_launched(found: "Result[Any]") -> str | None:
    """Why there is nothing to write of a result; None where there is."""
    from equipoise.decide.answer import Answer

    answer = found.record
    if not isinstance(answer, Answer):
        return "--ask finds an amount to train on, not a strategy"
    return answer.why_not_launched


def _write_launch(folder: Path, found: "Result[Any]") -> None:
    """Write the files that run what is recommended."""
    from equipoise.launch import launch_files, write_launch_files

    why = _not_launched(found)
    if why is not None:
        raise UsageError(f"--launch: {why}; nothing is written")
    best = found.record.recommended
    write_launch_files(folder, launch_files(best.strategy, found.record.snippets))


def _record(verb: "DecisionVerb", query: "TrainingQuery", found: "Result[Any]") -> None:
    """Keep the predictions of a result in the user's ledger."""
    from equipoise.decide.ledger import add_predictions, ledger_path
    from equipoise.decide.prediction import answer_predictions, time_predictions

    if query.ask is not None:
        raise UsageError("--record stores predicted times; --ask finds an amount to train on")
    predictions = (
        time_predictions(found.record) if verb == "predict" else answer_predictions(found.record, verb=verb)
    )
    add_predictions(ledger_path(), predictions)


@asks("allocate", outputs=("html", "full", "as_json", "json_out", "allow_code"))
def allocate(
    options: Options,
    output: Output,
    *,
    jobs: Annotated[
        Path,
        typer.Argument(metavar="JOBS.toml", help="The trainings, in the form of docs/decide/allocate.md."),
    ],
    objective: Annotated[
        Literal["time", "makespan", "cost", "energy"],
        typer.Option(help="What to minimise: total time, end of the last job, money or energy."),
    ] = "time",
    electricity_by_hour: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="CSV of electricity prices: hour (0 to 23), usd_per_kwh."),
    ] = None,
    begin: Annotated[
        str | None, typer.Option(metavar="HH:MM", help="Time of day at which the plan begins; default 00:00.")
    ] = None,
) -> None:
    """Share a pool of accelerators between trainings."""
    with answering("allocate", as_json=output.as_json, json_out=output.json_out, html=output.html) as answer:
        from equipoise.library.allocation import allocate as allocated

        with answers_only():
            found = allocated(
                jobs,
                objective=objective,
                electricity_by_hour=electricity_by_hour,
                begin=begin,
                allow_code=output.allow_code,
                **cast("Any", options),
            )
        shown = found.presentation
        answer.give_page(shown.page, found.record, shown.fields, full=output.full)


_PORT = 8731
_NEEDED = ("fastapi", "jinja2", "uvicorn")


def serve(
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = _PORT,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A sweep, a watched loop, or a folder of such; may be repeated."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="EQUIPOISE_TOKEN", help="Access token; generated when other hosts can connect."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Another host name that browsers may use; may be repeated."),
    ] = None,
    warm: Annotated[bool, typer.Option(help="Compute the first page before it is requested.")] = True,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
) -> None:
    """Open the dashboard to a browser on this machine."""
    catalogue = catalogue_of(hardware, workloads)
    missing = [library for library in _NEEDED if find_spec(library) is None]
    if missing:
        raise UsageError(f"serve needs {', '.join(missing)}: pip install 'equipoise[web]'")
    from equipoise.web.guard import ListenAddress, listening, token_for

    count_interrupts()  # even where the shell started it in the background and has them ignored
    for folder in (*(runs or ()), *(also or ()), *([data] if data else [])):
        if not folder.is_dir():
            raise UsageError(f"{folder}: not a directory; expected an existing one")
    asked_token = token_for(host, token)
    opened = listening(host, port)
    place = ListenAddress(host=host, port=opened.getsockname()[1], token=asked_token, names=tuple(name or ()))
    write(f"The dashboard is at {place.url}\nCtrl-C stops it.\n")
    # A browser that asks already waits on the socket until the rest is loaded.
    from equipoise.web import DataSources
    from equipoise.web.app import serve as answer

    sources = DataSources(data=data, also=tuple(also or ()), runs=tuple(runs or ()), catalogue=catalogue)
    answer(opened, place, sources, was_interrupted=was_interrupted, warms=warm)


def record(
    action: Annotated[
        Literal["list", "add"] | None, typer.Argument(help="list (what is there) or add (a measurement).")
    ] = None,
    measured: Annotated[
        str | None, typer.Argument(metavar="MEASURED", help='What was measured: "3.1 h", "1200 samples/s".')
    ] = None,
    *,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="ID", help="The prediction that MEASURED is of.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Add what runs there measured; may be repeated."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The ledger; $EQUIPOISE_LEDGER unless given.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Show this workload alone.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Show this accelerator alone.")] = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Compare your own predictions with what was measured."""
    with answering("record", as_json=as_json, json_out=json_out) as answer:
        from equipoise.decide.ledger import LedgerReport, add_measured, ledger_path, read_ledger
        from equipoise.report.json import ledger_fields
        from equipoise.report.pages.ledger import LEDGER

        adds = action == "add" or bool(runs)
        if (action == "list" and runs) or (not adds and (measured or for_)):
            raise UsageError("record list shows what is there; to add say `record add MEASURED --for ID`")
        path = ledger or ledger_path()
        found = read_ledger(path)
        new: tuple[tuple[str, MeasuredResult], ...] = ()
        if adds:
            new = (
                _from_runs(found, runs)
                if runs and not measured and not for_
                else _stated(found, measured, for_)
            )
            add_measured(path, new)
            found = read_ledger(path)
        chosen = tuple(each for each in found.entries if _is_of(each, workload, accelerator))
        shown = LedgerReport(ledger=found, entries=chosen, num_added=len(new) if adds else None)
        answer.give_page(LEDGER, shown, ledger_fields, full=False)


def _is_of(entry: "LedgerEntry", workload: str | None, accelerator: str | None) -> bool:
    """Whether an entry is of the workload and accelerator asked for, by any of their names."""
    from equipoise.spec.hardware import slug_typed
    from equipoise.spec.workload import shipped_workloads

    about = entry.prediction
    wanted = {workload, workload and shipped_workloads().slug(workload)}
    on = {accelerator, accelerator and slug_typed(accelerator)}
    return (workload is None or about.workload in wanted) and (accelerator is None or about.accelerator in on)


def _from_runs(found: "Ledger", folders: list[Path]) -> tuple[tuple[str, "MeasuredResult"], ...]:
    """What runs measured of the ledger's predictions."""
    from equipoise.decide.ledger import matches
    from equipoise.decide.user_evidence.folders import tables_below
    from equipoise.runs.store import RUNS, read_table

    file = next((each for each in folders if each.is_file()), None)
    if file is not None:
        raise UsageError(
            f"--runs {file}: expected a folder, of `bench --out` or of `ingest --into`; a measured value is "
            "added by `record add MEASURED --for ID`"
        )
    rows = (
        row
        for folder in folders
        for path in tables_below(folder) or [folder / f"{RUNS.name}.parquet"]
        for row in read_table(path, RUNS).iter_rows(named=True)
    )
    return tuple(matches(found, rows))


def _stated(
    found: "Ledger", measured: str | None, id_: str | None
) -> tuple[tuple[str, "MeasuredResult"], ...]:
    """The measurement of the command line."""
    from equipoise.decide.ledger import MeasuredResult

    if measured is None or id_ is None:
        raise UsageError(
            "record add needs MEASURED and --for ID, or --runs DIR; `equipoise record` lists the ids"
        )
    entry = found.entry(id_)
    quantity = entry.prediction.quantity
    value = _rate(measured) if quantity == "samples_per_s" else duration_s(measured)
    if value is None:
        expected = (
            "a rate such as '1200 samples/s'" if quantity == "samples_per_s" else "a time such as '3.1 h'"
        )
        raise UsageError(f"MEASURED {measured!r}: {entry.id} predicts {quantity}; expected {expected}")
    return ((entry.id, MeasuredResult(quantity=quantity, value=value)),)


def _rate(text: str) -> float | None:
    """Samples per second of a text such as `1200 samples/s`."""
    amount, slash, _ = text.strip().lower().partition("/s")
    number = amount.removesuffix("samples").strip()
    # The number is read as that of a duration in seconds is.
    return duration_s(f"{number}s") if slash and not any(map(str.isalpha, number)) else None
