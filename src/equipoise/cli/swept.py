"""What `equipoise bench` says to people: steps, speedups, where a step goes, what it means, what failed."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from equipoise.advice.measured.sweep_words import Swept, told_apart
from equipoise.advice.measured.swept import Judgement
from equipoise.bench.phases import EXPOSED, OVERLAPPED, PARTS, TOTAL
from equipoise.bench.summary import LEVEL, Spread, Summary, interval_method
from equipoise.cli.output import counted, paragraph, printable, table_text, width_columns
from equipoise.cli.swept_fields import USES, energy_reason, training
from equipoise.units import MIB, MILLISECOND_S, SI_PREFIXES, format_count, format_percent

_MOST_REASONS = 8
_DASH = "-"
_UNSTEADY, _FAILED, _OUTLYING, _UNEQUAL = "~", "!", "*", "="
_MARKS = {
    _UNSTEADY: "~ warm-up ended before steps were steady",
    _FAILED: "! some repetitions failed",
    _OUTLYING: "* an outlying repetition is among them, kept",
    _UNEQUAL: "= phases do not sum to steps within 5 %",
}
_TITLES = {EXPOSED: "exposed", "optimizer": "update"}


def text(found: Swept) -> str:
    """The whole answer."""
    parts = [_head(found)]
    for _, group in groupby(found.judgements, attrgetter("subject")):
        rows = list(group)
        timed = [each for each in rows if each.summary.timed]
        trained = [each for each in rows if each.summary.trained]
        if timed:
            parts += [f"{_titled(rows)}\n{_steps(timed)}", _phases(timed), _used(timed)]
        if trained:
            parts.append(f"{_titled(rows)}\n{_trainings(trained)}")
    parts.append(_legend(found))
    parts += [paragraph(f"{each}") for each in found.meanings]
    if found.false_differences is not None:
        parts.append(paragraph(told_apart(found.false_differences)))
    parts.append(_failures(found))
    parts.append(paragraph(f"Cells and tables are in {found.folder}: runs, steps and scores as Parquet."))
    return "\n".join(part for part in parts if part)


def _head(found: Swept) -> str:
    cells = f"{len(found.finished)} of {counted(found.num_planned, 'run', 'runs')}"
    failed = f", {len(found.failed)} of them failed" if found.failed else ""
    settings = ", ".join(f"{name} {value}" for name, value in found.settings.items())
    return paragraph(f"{found.name}: {cells}{failed}; {settings}.")


def _titled(rows: Sequence[Judgement]) -> str:
    batch = _batch(rows)
    shared = "" if batch is None else f", batch {batch}"
    return printable(", ".join(rows[0].subject) + shared)


# --- columns


def _identity(rows: Sequence[Judgement]) -> list[tuple[str, str, Callable[[Judgement], str]]]:
    """What names a row: head, alignment and cell of ranks, strategy and, where it varies, batch."""
    columns: list[tuple[str, str, Callable[[Judgement], str]]] = [
        ("N", ">", lambda each: str(each.summary.cell.num_ranks)),
        ("strategy", "<", lambda each: each.summary.cell.method),
    ]
    if _batch(rows) is None:
        columns.insert(1, ("batch", ">", lambda each: str(each.summary.cell.batch_samples)))
    return columns


def _batch(rows: Sequence[Judgement]) -> int | None:
    """The batch that all rows share; None where they have several."""
    batches = {each.summary.cell.batch_samples for each in rows}
    return batches.pop() if len(batches) == 1 else None


def _table(rows: Sequence[Judgement], columns: Sequence[tuple[str, str, Callable[[Judgement], str]]]) -> str:
    """Rows in those of the columns that say anything."""
    cells = [[printable(fill_(each)) for _, _, fill_ in columns] for each in rows]
    kept = [place for place in range(len(columns)) if any(row[place] not in {"", _DASH} for row in cells)]
    return table_text(
        [columns[place][0] for place in kept],
        [[row[place] for place in kept] for row in cells],
        align="".join(columns[place][1] for place in kept),
    )


def _steps(rows: Sequence[Judgement]) -> str:
    """Step, samples per second, speedup and efficiency, with intervals."""
    columns = [
        *_identity(rows),
        ("step ms", ">", lambda each: _ms(each.summary.step_s)),
        ("samples/s", ">", lambda each: _rate(each.summary)),
        ("of one device", ">", _of_one),
        ("eff.", ">", lambda each: _DASH if each.efficiency is None else f"{each.efficiency:.0%}"),
        ("", "<", lambda each: marks(each.summary)),
    ]
    widest = max(map(len, _table(rows, columns).splitlines()))
    if widest >= width_columns():  # a line that is as wide as the terminal may have been cut
        columns.pop(-2)  # efficiency is the speedup by N
    return _table(rows, columns)


def _phases(rows: Sequence[Judgement]) -> str:
    """Where a step goes, in percent of it; and how much communication computing hides."""

    def share(name: str) -> Callable[[Judgement], str]:
        def cell(each: Judgement) -> str:
            phases, step_s = each.summary.phases, each.summary.step_s
            if name not in phases or not step_s:
                return _DASH
            return f"{100 * phases[name] / step_s.value:.1f}"

        return cell

    def hidden(each: Judgement) -> str:
        total = each.summary.phases.get(TOTAL)
        return f"{each.summary.phases[OVERLAPPED] / total:.0%}" if total else _DASH

    shares = [(_TITLES.get(name, name), ">", share(name)) for name in PARTS]
    return "Where a step goes, in percent of it\n" + _table(
        rows, [*_identity(rows), *shares, ("hidden", ">", hidden)]
    )


def _used(rows: Sequence[Judgement]) -> str:
    """Memory, use and energy; what nobody measured is said in words."""
    columns = [
        ("MiB a rank", ">", _quantity(lambda run: run.memory_bytes, lambda value: f"{value / MIB:,.0f}")),
        ("cores busy", ">", _quantity(USES["cpu_fraction"], format_percent)),
        ("accelerators busy", ">", _quantity(USES["accelerator_fraction"], format_percent)),
        (
            "network MB/s",
            ">",
            _quantity(USES["network_byte_per_s"], lambda value: f"{value / SI_PREFIXES['M']:.3g}"),
        ),
        ("J a step", ">", _quantity(lambda run: run.energy_j, lambda value: f"{value:.3g}")),
    ]
    missing = [head for head, _, cell in columns if all(cell(each) == _DASH for each in rows)]
    why = next((energy_reason(each.summary) for each in rows if energy_reason(each.summary)), None)
    energy = f" (energy: {why})" if "J a step" in missing and why not in {None, "not measured"} else ""
    told = paragraph(f"Not measured: {', '.join(missing)}{energy}.") if missing else ""
    table = _table(rows, [*_identity(rows), *columns]) if len(missing) < len(columns) else ""
    return table + told


def _trainings(rows: Sequence[Judgement]) -> str:
    """Held-out loss and accuracy after the training, and the seconds it took: means and standard errors."""

    def ended(name: str, form: str) -> Callable[[Judgement], str]:
        def cell(each: Judgement) -> str:
            found = (training(each.summary) or {}).get(name)
            if found is None:
                return _DASH
            error = found["standard_error"]
            return format(found["mean"], form) + ("" if error is None else f" ±{error:.2g}")

        return cell

    return _table(
        rows,
        [
            *_identity(rows),
            ("seeds", ">", lambda each: str(len(each.summary.trained))),
            ("samples", ">", lambda each: format_count(each.summary.trained[0].num_samples)),
            ("held-out loss", ">", ended("loss", ".4f")),
            ("accuracy", ">", ended("accuracy", ".4f")),
            ("seconds", ">", ended("seconds", ".3g")),
        ],
    )


def _quantity(of: Callable[[Any], float | None], form: Callable[[float], str]) -> Callable[[Judgement], str]:
    def cell(each: Judgement) -> str:
        value = each.summary.median_of(of)
        return _DASH if value is None else form(value)

    return cell


def _ms(spread: Spread | None) -> str:
    if spread is None:
        return _DASH
    within = ""
    if spread.low is not None and spread.high is not None:
        within = f" ({spread.low / MILLISECOND_S:.3g}..{spread.high / MILLISECOND_S:.3g})"
    return f"{spread.value / MILLISECOND_S:.3g}{within}"


def _rate(summary: Summary) -> str:
    rate = summary.samples_per_s
    return _DASH if rate is None else format_count(float(f"{rate.value:.4g}"))


def _of_one(each: Judgement) -> str:
    if each.is_alone or each.speedup is None:
        return _DASH
    within = "" if each.speedup.low is None else f" ({each.speedup.low:.2f}..{each.speedup.high:.2f})"
    return f"{each.speedup.value:.2f}{within}"


def marks(summary: Summary) -> str:
    """What is to be known of a row, in signs that the legend explains."""
    unsteady = _UNSTEADY if not summary.is_steady else ""
    failed = _FAILED if summary.failed else ""
    unequal = "" if summary.parts_sum else _UNEQUAL
    return unsteady + failed + unequal + (_OUTLYING if any(summary.outlying) else "")


# --- words below the tables


def _legend(found: Swept) -> str:
    timed = [each.summary for each in found.judgements if each.summary.timed]
    if not timed:
        return ""
    methods = Counter(interval_method(len(each.timed)) for each in timed)
    told = [f"at {format_percent(LEVEL)} by {method}" for method in methods if method]
    single = "none from one repetition" if None in methods else ""
    intervals = "; ".join([*told, *([single] if single else [])])
    used = {mark for each in timed for mark in marks(each)}
    num_outlying = sum(run.num_outliers for each in timed for run in each.timed)
    num_steps = sum(run.num_steps for each in timed for run in each.timed)
    return paragraph(
        f"Medians over repetitions in fresh processes; intervals {intervals}. Exposed: communication that "
        "the step waits for; hidden: the share of communication that computing hides. "
        f"{counted(num_outlying, 'outlier', 'outliers')} among {num_steps} steps, kept."
        + "".join(f" {words}." for mark, words in _MARKS.items() if mark in used)
    )


def _failures(found: Swept) -> str:
    """Each reason once, with how many cells it ended and the first of them."""
    reasons: dict[tuple[str, str], int] = {}
    for one in found.failed:
        cell = one.cell
        way = f"{cell.workload}, {cell.method} on {cell.num_ranks} at batch {cell.batch_samples}"
        key = (way, one.reason or "no reason told")
        reasons[key] = reasons.get(key, 0) + 1
    lines = [
        f"Failed {count}x: {way}: {reason}" for (way, reason), count in list(reasons.items())[:_MOST_REASONS]
    ]
    if len(reasons) > _MOST_REASONS:
        lines.append(f"... and {len(reasons) - _MOST_REASONS} more; --json has all.")
    return "".join(map(paragraph, lines))
