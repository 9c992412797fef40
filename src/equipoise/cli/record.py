"""The verb `record`: predictions that were made, what was measured later, and how wrong they were."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from equipoise.cli.options import AsJson, JsonOut
from equipoise.cli.output import answering
from equipoise.errors import UsageError
from equipoise.units import duration_s

if TYPE_CHECKING:
    from equipoise.decide.ledger import Ledger, LedgerEntry, MeasuredResult


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
    from equipoise.spec.workload import workload_slug

    about = entry.prediction
    wanted = {workload, workload and workload_slug(workload)}
    on = {accelerator, accelerator and slug_typed(accelerator)}
    return (workload is None or about.workload in wanted) and (accelerator is None or about.accelerator in on)


def _from_runs(found: "Ledger", folders: list[Path]) -> tuple[tuple[str, "MeasuredResult"], ...]:
    """What runs measured of the ledger's predictions."""
    from equipoise.decide.ledger import matches
    from equipoise.runs.store import RUNS, read_table

    rows = (
        row
        for folder in folders
        for row in read_table(folder / f"{RUNS.name}.parquet", RUNS).iter_rows(named=True)
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
    return (
        duration_s(f"{number}s")
        if slash and not number.endswith(tuple("abcdefghijklmnopqrstuvwxyz"))
        else None
    )
