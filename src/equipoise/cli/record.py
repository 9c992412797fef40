"""The verb `record`: predictions that were made, what was measured later, and how wrong they were."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec import Struct, to_builtins

from equipoise.cli.options import AsJson, JsonOut
from equipoise.cli.output import answering, counted, paragraph, table_text
from equipoise.errors import UsageError
from equipoise.units import format_count, format_duration, format_percent, format_si, significant

if TYPE_CHECKING:
    from equipoise.decide.ledger import Ledger, LedgerEntry, MeasuredResult, Quantity, RecordedPrediction

_MOST_SHOWN = 20


class Shown(Struct, frozen=True, kw_only=True):
    """What to show of a ledger. num_added: measurements that this call added; None where it was not to."""

    ledger: "Ledger"
    entries: "tuple[LedgerEntry, ...]"
    num_added: int | None


def fields(shown: Shown) -> dict[str, Any]:
    """The fields of the document."""
    from equipoise.decide.ledger import running_of

    running = running_of(shown.ledger.path, shown.entries)
    whole = {
        "ledger": str(shown.ledger.path),
        "predictions": [_prediction(each) for each in shown.entries],
        "running": None
        if running is None
        else {
            "num_predictions": running.num_predictions,
            "num_measured": running.num_measured,
            **to_builtins(running.record),
            "bias": running.bias,
            "level": running.level,
        },
        "num_added": shown.num_added,
        "num_damaged_lines": shown.ledger.num_damaged,
    }
    return {name: significant(value) for name, value in whole.items()}


def _prediction(each: "LedgerEntry") -> dict[str, Any]:
    return {
        "id": each.id,
        "made": each.made,
        **to_builtins(each.prediction),
        "measured": each.outcome,
        "num_measured": len(each.measured),
        "error": each.error,
        "held": each.is_covered,
        "sources": [one.source for one in each.measured],
    }


def text(shown: Shown) -> str:
    """The same for people."""
    return "".join(part for part in (_added(shown), _table(shown), *map(paragraph, _running(shown))) if part)


def _added(shown: Shown) -> str:
    if shown.num_added is None:
        return ""
    if not shown.num_added:
        return paragraph(
            "Nothing new was measured of any prediction: workload, accelerator and number must agree."
        )
    return f"{counted(shown.num_added, 'measurement', 'measurements')} added.\n"


def _table(shown: Shown) -> str:
    if not shown.entries:
        return paragraph(
            f"{shown.ledger.path} holds no such prediction. `equipoise predict`, `plan` and `advise` write "
            "theirs there when given --record."
        )
    rows = [
        (
            each.id,
            format_count(each.prediction.num_accelerators),
            _amount(each.prediction.quantity, each.prediction.value),
            _range(each.prediction),
            "-" if each.outcome is None else _amount(each.prediction.quantity, each.outcome),
            "-" if each.error is None else _signed(each.error),
            f"{each.prediction.verb} {each.prediction.workload or 'own'}",
        )
        for each in shown.entries[-_MOST_SHOWN:]
    ]
    head = ("id", "N", "predicted", "range", "measured", "off", "what")
    earlier = len(shown.entries) - len(rows)
    more = f"... and {counted(earlier, 'earlier one', 'earlier ones')}: --json lists all\n" if earlier else ""
    return table_text(head, rows, align="<>>>>><") + more


def _signed(error: float) -> str:
    return f"{'+' if error >= 0 else '-'}{format_percent(abs(round(error, 3)))}"


def _range(about: "RecordedPrediction") -> str:
    return f"{_amount(about.quantity, about.low)} to {_amount(about.quantity, about.high)}"


def _amount(quantity: "Quantity", value: float) -> str:
    return f"{format_si(value)}/s" if quantity == "samples_per_s" else format_duration(value)


def _running(shown: Shown) -> Iterator[str]:
    """The running error in words."""
    from equipoise.decide.ledger import running_of

    running = running_of(shown.ledger.path, shown.entries)
    if running is not None:
        record = running.record
        median = format_percent(round(record.median_abs_error, 3))
        most = ""
        if record.p90_abs_error is not None:
            most = f", 90 % of them by at most {format_percent(round(record.p90_abs_error, 3))}"
        side = "longer" if running.bias >= 1.0 else "shorter"
        yield (
            f"Measured {running.num_measured} of {running.num_predictions}: off by {median} (median){most}; "
            f"predicted times were {format_percent(round(abs(running.bias - 1.0), 3))} {side} (median); the "
            f"{format_percent(running.level)} interval covered "
            f"{format_percent(round(record.coverage, 3))} of them."
        )
    elif shown.entries:
        yield (
            "Nothing was measured of them yet: `equipoise record add MEASURED --for ID`, or "
            "`equipoise record --runs DIR`."
        )
    if shown.ledger.num_damaged:
        lines = counted(shown.ledger.num_damaged, "line", "lines")
        yield f"{lines} of {shown.ledger.path} cannot be read and count for nothing."


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
        from equipoise.decide.ledger import add_measured, ledger_path, read_ledger

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
        shown = Shown(ledger=found, entries=chosen, num_added=len(new) if adds else None)
        answer.give(lambda: fields(shown), lambda: text(shown))


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
    value = _rate(measured) if quantity == "samples_per_s" else _duration_s(measured)
    if value is None:
        expected = (
            "a rate such as '1200 samples/s'" if quantity == "samples_per_s" else "a time such as '3.1 h'"
        )
        raise UsageError(f"MEASURED {measured!r}: {entry.id} predicts {quantity}; expected {expected}")
    return ((entry.id, MeasuredResult(quantity=quantity, value=value)),)


def _duration_s(text: str) -> float | None:
    from equipoise.units import duration_s

    return duration_s(text)


def _rate(text: str) -> float | None:
    """Samples per second of a text such as `1200 samples/s`."""
    from equipoise.units import duration_s

    amount, slash, _ = text.strip().lower().partition("/s")
    number = amount.removesuffix("samples").strip()
    # The number is read as that of a duration in seconds is.
    return (
        duration_s(f"{number}s")
        if slash and not number.endswith(tuple("abcdefghijklmnopqrstuvwxyz"))
        else None
    )
