"""The verbs for evidence (read results, list scores, write the study, export tables) and for accuracy.

`backtest` tests predictions on published results, `validate` the performance model on measured rows.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec.structs import replace

from equipoise.cli.options import Accelerator, Columns, Currency, Round, SeveralWorkloads, Workload
from equipoise.cli.output import NAMES, PAGE, RESULTS, InputFiles, Output, progress_line, stated, verb
from equipoise.errors import DataError, UsageError
from equipoise.files import expect_folder

if TYPE_CHECKING:
    import polars as pl


@verb(reads=NAMES)
def ingest(
    inputs: InputFiles,
    output: Output,
    *,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Checkout, git repository, archive or log (also .gz, .xz, .zst), or a tracker's export.",
        ),
    ],
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write runs.parquet and scores.parquet to DIR.")
    ] = None,
    column: Columns = None,
    workload: Annotated[str | None, typer.Option(help="Workload, if an export has no such column.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Accelerator, likewise.")] = None,
    max_members: Annotated[
        int | None, typer.Option(metavar="N", help="Most files and folders read per source; default 50,000.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(metavar="N", help="Most bytes read per source, unpacked; default 4 GiB.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(metavar="N", help="Most seconds per source; default 120.")
    ] = None,
) -> None:
    """Read MLPerf Training results, or runs exported by trackers."""
    # The shipped catalogue is read together with the results.
    catalogue = inputs.own_catalogue
    with output.answering():
        from equipoise.report.pages.orientation import ingest_fields, ingest_page
        from equipoise.runs.ingest import ingest as read
        from equipoise.runs.sources.gate import ReadLimits

        if into is not None:
            expect_folder(into)
        limits = ReadLimits(**stated(max_members=max_members, max_bytes=max_bytes, max_seconds=max_seconds))
        with progress_line() as line:
            report = read(
                paths,
                into=into,
                column=column or (),
                workload=workload,
                accelerator=accelerator,
                progress=line.update,
                catalogue=catalogue,
                limits=limits,
            )
        output.give_page(ingest_page(into), report, ingest_fields)
        if not report.num_entries_kept:
            read_from = ", ".join(map(str, paths))
            raise DataError(
                f"{read_from}: no entry found; expected MLPerf Training results, or a table of runs "
                "(.csv, .tsv, .jsonl, .parquet)"
            )


@verb(reads=RESULTS)
def scores(
    inputs: InputFiles,
    output: Output,
    *,
    round_: Round = None,
    workload: Workload = None,
    accelerator: Accelerator = None,
    submitter: Annotated[str | None, typer.Option(help="An organisation, by its folder's name.")] = None,
    division: Annotated[str | None, typer.Option(help="closed or open; default both.")] = None,
    sort: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Sort by a column; -COLUMN in descending order.")
    ] = None,
    format_: Annotated[
        Literal["table", "csv", "parquet", "jsonl"] | None,
        typer.Option("--format", help="Output format; default a table."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there instead of printing.")] = None,
) -> None:
    """List entries with score, speedup and efficiency."""
    with output.answering():
        from equipoise.report.pages.orientation import score_fields, scores_page
        from equipoise.study import scores as scored

        frame = scored(
            round=round_,
            workload=workload,
            accelerator=accelerator,
            submitter=submitter,
            division=division,
            sort=sort,
            data=inputs.data,
            also=inputs.also,
            catalogue=inputs.catalogue,
        )
        if format_ == "table" or (format_ is None and out is None):
            output.give_page(scores_page(is_sorted=sort is not None), frame, score_fields)
        else:
            output.give_table(frame, format_, out, score_fields)


@verb(reads=RESULTS)
def report(
    inputs: InputFiles,
    output: Output,
    *,
    round_: Round = None,
    workload: SeveralWorkloads = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write the study as one HTML file.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="Number of groups; default: chosen by silhouette.")] = None,
    currency: Currency = None,
) -> None:
    """Study how training scales in a round."""
    output = replace(output, html=out, full=out is None)
    with output.answering():
        from equipoise.decide.question.query import currency_of
        from equipoise.report.pages.study import report_fields, study_page
        from equipoise.study.rounds import study

        own = None if currency is None else currency_of(currency)
        findings = study(
            round_, workload, k=k, data=inputs.data, also=inputs.also, catalogue=inputs.catalogue
        )
        output.give_page(study_page(out, own), findings, report_fields)


@verb(reads=("data", "also"))
def export(
    inputs: InputFiles,
    output: Output,
    *,
    table: Annotated[
        Literal["runs", "scores", "steps"], typer.Argument(help="The table, as in docs/reference/tables.md.")
    ],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", help="csv, parquet, jsonl, extra-p or prometheus; default: by FILE's name, or csv."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there instead of printing.")] = None,
    round_: Round = None,
    workload: Workload = None,
    accelerator: Accelerator = None,
) -> None:
    """Export a table as CSV, Parquet, JSON lines, Extra-P or Prometheus."""
    with output.answering():
        from equipoise.runs.embedded import tables
        from equipoise.runs.store import RUNS, SCORES, as_stored

        if table == "steps":
            frame = _steps([folder for folder in (inputs.data, *inputs.also) if folder])
        else:
            both = tables(data=inputs.data, also=inputs.also)
            frame = as_stored(both.runs, RUNS) if table == "runs" else as_stored(both.scores, SCORES)
        frame = _chosen(frame, stated(round=round_, workload=workload, accelerator=accelerator))
        output.give_table(frame, format_, out, lambda kept: {"table": table, "rows": kept.to_dicts()})


def _chosen(frame: "pl.DataFrame", wanted: Mapping[str, str]) -> "pl.DataFrame":
    """The rows of the requested round, workload and accelerator, by any of their names."""
    from equipoise.study import named, spellings

    spelt = spellings(wanted.get("round"))
    for option, name in wanted.items():
        column = "campaign" if option == "round" else option
        if column not in frame.columns:
            raise UsageError("export steps: steps have no round, workload or accelerator; use --data DIR")
        found = named(name, frame[column].alias(f"--{option}"), spelt[option], where="the rows of the table")
        frame = frame.filter(frame[column] == found)
    return frame


def _steps(folders: list[Path]) -> "pl.DataFrame":
    """The timed steps of sweeps; published results have no steps."""
    import polars as pl

    from equipoise.runs.store import STEPS, read_table

    if not folders:
        raise UsageError(
            "export steps: published results have no steps; name a sweep of `bench` with --data DIR"
        )
    return pl.concat([read_table(folder / f"{STEPS.name}.parquet", STEPS) for folder in folders])


@verb(reads=RESULTS, outputs=PAGE)
def backtest(
    inputs: InputFiles,
    output: Output,
    *,
    rounds: Annotated[
        str | None, typer.Option(metavar="R[,R...]", help="Rounds to predict; default all.")
    ] = None,
    given: Annotated[
        Literal["batch"] | None, typer.Option(help="Give the law the batch of the held-out results.")
    ] = None,
    new_round: Annotated[
        bool, typer.Option("--new-round", help="Hold out all sizes but a group's smallest, not the largest.")
    ] = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="Test the advised number of accelerators, not the times.")
    ] = False,
) -> None:
    """Predict past results from earlier ones; report the errors."""
    if advice and (given or new_round):
        raise UsageError(
            f"--advice with {'--given' if given else '--new-round'}: a backtest of advice uses no "
            "batch and chooses the held-out sizes itself; give one of the two"
        )
    with output.answering():
        from equipoise.calibration.advice_backtest import held_out_advice
        from equipoise.report.pages.backtest import (
            ADVICE_BACKTEST,
            BACKTEST,
            advice_backtest_fields,
            backtest_fields,
        )
        from equipoise.runs.embedded import scores
        from equipoise.scaling.backtest import backtest as hold_out
        from equipoise.spec.mlperf import best_per_size
        from equipoise.stats import one_thread

        entries = scores(data=inputs.data, also=inputs.also).entries
        held = sorted({each.campaign for each in entries})
        chosen = _rounds(rounds, held)
        with progress_line() as line, one_thread():
            done: list[str] = []

            def show(round_: str) -> None:
                done.append(round_)
                line.update(round_, len(done) - 1, len(chosen or held))

            if advice:
                advised = held_out_advice(entries, rounds=chosen, progress=show)
                output.give_page(ADVICE_BACKTEST, advised, advice_backtest_fields)
                return
            result = hold_out(
                best_per_size(entries),
                protocol="new_round" if new_round else "largest",
                rounds=chosen,
                given_batch=given == "batch",
                progress=show,
            )
        output.give_page(BACKTEST, result, backtest_fields)


def _rounds(listed: str | None, held: list[str]) -> list[str] | None:
    """The rounds on the command line, as spelt in the data."""
    import polars as pl

    from equipoise.spec.mlperf import round_name
    from equipoise.study import named

    if listed is None:
        return None
    return [named(item.strip(), pl.Series("round", held), round_name) for item in listed.split(",")]


@verb(reads=NAMES)
def validate(
    inputs: InputFiles,
    output: Output,
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...",
            help="Measurements (CSV, Parquet), one row per figure; default: the shipped published steps.",
        ),
    ] = None,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Fit the model to this file's rows first; may be repeated."),
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="none|leave-COLUMN-out",
            help="Hold out all rows of one value of a column in turn: n_gpus, hidden, strategy, model ...",
        ),
    ] = "none",
    software: Annotated[
        str,
        typer.Option(
            metavar="auto|priors|NAME",
            help="Software whose parameters predict rows without a fit; auto: each row's own, "
            "or the default of advise.",
        ),
    ] = "auto",
    worst: Annotated[int, typer.Option(min=0, max=1000, help="Number of worst rows to print.")] = 8,
) -> None:
    """Compare the performance model with measured steps."""
    output = replace(output, full=True)
    with output.answering():
        from equipoise.calibration.validate import basis_of
        from equipoise.calibration.validate import validate as hold_against
        from equipoise.report.pages.backtest import validation_fields, validation_page
        from equipoise.stats import one_thread

        with progress_line() as line, one_thread():
            found = hold_against(
                files or (),
                calibrate_on=calibrate or (),
                split=split,
                basis_of=basis_of(software),
                progress=line.update,
                catalogue=inputs.catalogue,
            )
        output.give_page(
            validation_page(worst), found, lambda record: validation_fields(record, num_worst=worst)
        )
