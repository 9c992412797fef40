"""The decision verbs: `advise`, `plan`, `predict`, `allocate`, `record` and `serve`.

Options of questions are generated from the declarations of the fields in decide/question/fields.toml.
"""

import signal
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast

import typer

from equipoise.cli.app import count_interrupts, printable, was_interrupted, write
from equipoise.cli.options import COMPLETIONS
from equipoise.cli.output import (
    JSON,
    PAGE,
    RESULTS,
    InputFiles,
    Options,
    Output,
    answers_only,
    progress_line,
    say,
    verb,
)
from equipoise.errors import DataError, UsageError
from equipoise.files import expect_folder
from equipoise.units import duration_s

if TYPE_CHECKING:
    from equipoise.decide.ledger import Ledger, LedgerEntry, MeasuredResult
    from equipoise.library import Result
    from equipoise.library.decisions import DecisionVerb

_DECISION: Final = ("html", "full", "recorded", "launch", *JSON, "allow_code")


_Training: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="WORKLOAD|CONFIG.toml",
        autocompletion=COMPLETIONS["workload"],
        help="The same as --workload, or a TOML file with these options as keys.",
    ),
]


@verb(asks="advise", outputs=_DECISION)
def advise(options: Options, output: Output, *, training: _Training = None) -> None:
    """Recommend how many accelerators, which strategy, and why, from all evidence."""
    _answer(options, output, training)


@verb(asks="plan", outputs=_DECISION)
def plan(options: Options, output: Output, *, training: _Training = None) -> None:
    """Find the best parallel strategy, and where returns diminish."""
    _answer(options, output, training)


@verb(asks="predict", outputs=("html", "full", "recorded", *JSON, "allow_code"))
def predict(options: Options, output: Output, *, training: _Training = None) -> None:
    """Predict times and costs at sizes nobody ran."""
    _answer(options, output, training)


def _answer(options: Options, output: Output, training: str | None) -> None:
    """Answer a question and output it as the options request. training: the positional argument."""
    # Imported here, because deep inside the library's imports NumPy's would exceed the first 16 KB chunk of
    # frames in CPython 3.11, and thousands of calls would each allocate and free the next chunk.
    import numpy as np  # noqa: F401

    if output.launch is not None:
        _expect_folder(output.launch)
    with output.answering():
        from equipoise.library.decisions import read_question, result_of

        asked = cast("DecisionVerb", output.verb)
        question = read_question(options, verb=asked, training=training, allow_code=output.allow_code)
        if output.recorded and question.ask is not None:
            raise UsageError("--record stores predicted times; --ask finds an amount to train on")
        with answers_only(), progress_line() as line:
            found = result_of(asked, question, progress=line.update)
        # Steps that may fail come before anything is stored or shown.
        why_not = None if output.launch is None else _not_launched(found)
        is_launched = output.launch is not None and why_not is None
        if output.launch is not None and is_launched:
            _write_launch(output.launch, found)
        if output.recorded:
            _record(asked, found)
        elif is_launched:
            try:
                _record(asked, found)
            except DataError as err:  # the scripts also run without it
                say(f"equipoise: {printable(str(err))}; the scripts are written all the same\n")
        shown = found.presentation
        output.give_page(shown.page, found.record, shown.fields)
        if why_not is not None:
            raise UsageError(f"--launch: {why_not}; nothing is written")


def _expect_folder(folder: Path) -> None:
    """Raise UsageError for a non-empty folder, whose files may have been edited."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--launch {folder}: exists already; expected a new or empty folder")
    expect_folder(folder)


def _not_launched(found: "Result[Any]") -> str | None:
    """Why a result has no launch files; None if it has."""
    from equipoise.decide.answer import Answer

    answer = found.record
    if not isinstance(answer, Answer):
        return "--ask finds an amount to train on, not a strategy"
    return answer.why_not_launched


def _write_launch(folder: Path, found: "Result[Any]") -> None:
    """Write the files that run the recommended strategy."""
    from equipoise.launch import launch_files, write_launch_files

    best = found.record.recommended
    write_launch_files(folder, launch_files(best.strategy, found.record.snippets))


def _record(asked: "DecisionVerb", found: "Result[Any]") -> None:
    """Store the predictions of a result in the user's ledger."""
    from equipoise.decide.ledger import add_predictions, ledger_path
    from equipoise.decide.prediction import answer_predictions, time_predictions

    predictions = (
        time_predictions(found.record) if asked == "predict" else answer_predictions(found.record, verb=asked)
    )
    add_predictions(ledger_path(), predictions)


@verb(asks="allocate", outputs=(*PAGE, "allow_code"))
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
        str | None, typer.Option(metavar="HH:MM", help="Time of day when the schedule begins; default 00:00.")
    ] = None,
) -> None:
    """Share a pool of accelerators between trainings."""
    with output.answering():
        from equipoise.library.allocation import allocate as in_python

        with answers_only():
            found = unwrap(in_python)(  # unwrapped, because its errors name Python arguments
                jobs,
                objective=objective,
                electricity_by_hour=electricity_by_hour,
                begin=begin,
                allow_code=output.allow_code,
                **options,
            )
        shown = found.presentation
        output.give_page(shown.page, found.record, shown.fields)


_PORT = 8731
_NEEDED = ("fastapi", "jinja2", "uvicorn")


@verb(reads=RESULTS, outputs=())
def serve(
    inputs: InputFiles,
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other hosts can connect only with a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = _PORT,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A sweep, a watched loop, or a folder of these; may be repeated."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="EQUIPOISE_TOKEN", help="Access token; generated if other hosts can connect."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Another host name that browsers may use; may be repeated."),
    ] = None,
    warm: Annotated[bool, typer.Option(help="Compute the first page before it is requested.")] = True,
) -> None:
    """Serve the dashboard to browsers on this machine."""
    missing = [library for library in _NEEDED if find_spec(library) is None]
    if missing:
        raise UsageError(f"serve needs {', '.join(missing)}: pip install 'equipoise[web]'")
    from equipoise.runs import RUNS_FILE
    from equipoise.web.guard import ListenAddress, listening, token_for

    count_interrupts(signal.SIGINT)  # even if a shell started it in the background with the signal ignored
    for folder in (*(runs or ()), *inputs.also, *([inputs.data] if inputs.data else [])):
        if not folder.is_dir():
            raise UsageError(f"{folder}: not a directory; expected an existing one")
    for folder in (*inputs.also, *([inputs.data] if inputs.data else [])):
        if not (folder / RUNS_FILE).exists():
            raise UsageError(
                f"{folder}: no {RUNS_FILE}; expected what `equipoise ingest PATH... --into DIR` writes"
            )
    asked_token = token_for(host, token)
    opened = listening(host, port)
    place = ListenAddress(host=host, port=opened.getsockname()[1], token=asked_token, names=tuple(name or ()))
    write(f"The dashboard is at {place.url}\nCtrl-C stops it.\n")
    # Browsers can already connect: they wait on the socket until the rest is loaded.
    from equipoise.web import DataSources
    from equipoise.web.app import serve as answer

    sources = DataSources(
        data=inputs.data, also=inputs.also, runs=tuple(runs or ()), catalogue=inputs.catalogue
    )
    answer(opened, place, sources, was_interrupted=was_interrupted, warms=warm)


@verb()
def record(
    output: Output,
    *,
    action: Annotated[
        Literal["list", "add"] | None, typer.Argument(help="list (the predictions) or add (a measurement).")
    ] = None,
    measured: Annotated[
        str | None, typer.Argument(metavar="MEASURED", help='The measured value: "3.1 h", "1200 samples/s".')
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="ID", help="Id of the prediction that was measured.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Add the measurements of the runs in DIR; may be repeated."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The ledger; default $EQUIPOISE_LEDGER or a data folder."),
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Show only this workload.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Show only this accelerator.")] = None,
) -> None:
    """Compare your own predictions with what was measured."""
    with output.answering():
        from equipoise.decide.ledger import (
            LedgerReport,
            add_measured,
            ledger_path,
            matches,
            nearest_differences,
            read_ledger,
        )
        from equipoise.report.json import ledger_fields
        from equipoise.report.pages.ledger import LEDGER

        adds = action == "add" or bool(runs)
        if (action == "list" and runs) or (not adds and (measured or for_)):
            raise UsageError("record list shows what is there; to add say `record add MEASURED --for ID`")
        path = ledger or ledger_path()
        if ledger is not None and not ledger.exists():
            raise UsageError(f"--ledger {ledger}: no such file; expected one with predictions")
        found = read_ledger(path)
        new: tuple[tuple[str, MeasuredResult], ...] = ()
        differing: tuple[str, ...] = ()
        if adds:
            if runs and not measured and not for_:
                rows = _rows_of(runs)
                new = tuple(matches(found, rows))
                differing = () if new else nearest_differences(found, rows)
            else:
                new = _stated(found, measured, for_)
            add_measured(path, new)
            found = read_ledger(path)
        chosen = tuple(each for each in found.entries if _is_of(each, workload, accelerator))
        if found.entries and not chosen:
            raise _in_none(found, workload, accelerator)
        shown = LedgerReport(
            ledger=found, entries=chosen, num_added=len(new) if adds else None, differing=differing
        )
        output.give_page(LEDGER, shown, ledger_fields)


def _in_none(found: "Ledger", workload: str | None, accelerator: str | None) -> UsageError:
    """The error for filters that match no prediction, with what the ledger has."""
    about = [each.prediction for each in found.entries]
    wanted = {
        "--workload": (workload, {each.workload for each in about}),
        "--accelerator": (accelerator, {each.accelerator for each in about}),
    }
    filters = " ".join(f"{option} {name!r}" for option, (name, _) in wanted.items() if name)
    held = "; ".join(
        f"{option} {', '.join(sorted(filter(None, names)))}"
        for option, (name, names) in wanted.items()
        if name
    )
    return UsageError(f"no prediction in the ledger matches {filters}; it has {held}")


def _is_of(entry: "LedgerEntry", workload: str | None, accelerator: str | None) -> bool:
    """Whether an entry matches the requested workload and accelerator, by any of their names."""
    from equipoise.spec.hardware import slug_typed
    from equipoise.spec.workload import shipped_workloads

    about = entry.prediction
    wanted = {workload, workload and shipped_workloads().slug(workload)}
    on = {accelerator, accelerator and slug_typed(accelerator)}
    return (workload is None or about.workload in wanted) and (accelerator is None or about.accelerator in on)


def _rows_of(folders: list[Path]) -> list[dict[str, Any]]:
    """The rows of the run tables in folders."""
    from equipoise.decide.user_evidence.folders import tables_below
    from equipoise.runs.store import RUNS, read_table

    file = next((each for each in folders if each.is_file()), None)
    if file is not None:
        raise UsageError(
            f"--runs {file}: expected a folder, of `bench --out` or of `ingest --into`; a measured value is "
            "added by `record add MEASURED --for ID`"
        )
    return [
        row
        for folder in folders
        for path in tables_below(folder) or [folder / f"{RUNS.name}.parquet"]
        for row in read_table(path, RUNS).iter_rows(named=True)
    ]


def _stated(
    found: "Ledger", measured: str | None, id_: str | None
) -> tuple[tuple[str, "MeasuredResult"], ...]:
    """The measurement stated on the command line."""
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
    """Samples per second from a text such as `1200 samples/s`; None if it is no rate."""
    amount, slash, _ = text.strip().lower().partition("/s")
    number = amount.removesuffix("samples").strip()
    # The number is parsed like that of a duration in seconds.
    return duration_s(f"{number}s") if slash and not any(map(str.isalpha, number)) else None
