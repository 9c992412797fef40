"""What `equipoise validate` says: errors by file and fold, the worst rows, and which rows are not expressed
and why.
"""

from dataclasses import asdict
from textwrap import fill
from typing import Any

from equipoise.advice.validation.accuracy import Errors
from equipoise.advice.validation.validate import Validation, Verdict
from equipoise.cli.output import counted, printable, table_text, width_columns
from equipoise.units import format_count, format_percent, significant

_MOST_REASONS = 8
_MOST_FOLDS = 24
_NAME_WIDTH = 29  # with six columns of figures beside it within 80


def fields(found: Validation, *, num_worst: int) -> dict[str, Any]:
    """The fields of the document."""
    return {
        "summary": significant(_summary(found)),
        "files": {name: significant(asdict(errors)) for name, errors in found.by_file.items()},
        "folds": {name: significant(asdict(errors)) for name, errors in found.by_fold.items()},
        "reasons": [{"reason": reason, "count": count} for reason, count in found.reasons],
        "worst": [_place(each) for each in _worst(found, num_worst)],
        "rows": [_row(each) for each in found.verdicts],
    }


def _summary(found: Validation) -> dict[str, Any]:
    errors = found.errors
    num_asked = len(found.verdicts) - found.num_given
    return {
        "num_rows": len(found.verdicts),
        "num_expressed": found.num_expressed,
        "num_executions": found.num_executions,
        "num_clusters": errors.num_clusters,
        "mape": errors.mape,
        "median": errors.median,
        "p90": errors.p90,
        "coverage": errors.coverage,
        "split": found.split,
        "level": found.level,
        "num_given": found.num_given,
        "expressed_fraction": found.num_expressed / num_asked if num_asked else None,
        "mape_by_execution": errors.mape_by_execution,
        "median_by_execution": errors.median_by_execution,
        "calibrated_on": list(found.calibrated_on),
        "profiles": [*dict.fromkeys(each.profile for each in found.verdicts if each.profile)],
        "in_sample": found.in_sample,
        "memory": None if found.memory is None else asdict(found.memory),
        "regret": None if found.regret is None else asdict(found.regret),
    }


def _place(verdict: Verdict) -> dict[str, Any]:
    return {"file": verdict.row.file, "row": verdict.row.row, "error": significant(verdict.error)}


def _row(verdict: Verdict) -> dict[str, Any]:
    row = verdict.row
    return {
        "file": row.file,
        "row": row.row,
        "measured": row.measured,
        "predicted": significant(verdict.predicted),
        "low": significant(verdict.low),
        "high": significant(verdict.high),
        "unit": row.unit,
        "reason": verdict.reason,
        "error": significant(verdict.error),
        "measured_s": significant(row.seconds),
        "execution": row.execution if row.execution >= 0 else None,
        "cluster": row.cluster if row.cluster >= 0 else None,
        "fold": verdict.fold,
        "predictor": verdict.by,
        "profile": verdict.profile,
        "memory_bytes": significant(row.memory_bytes),
        "predicted_memory_bytes": significant(verdict.memory_bytes),
        "strategy": row.strategy.text() if row.strategy else None,
        "notes": list(row.notes),
    }


def text(found: Validation, *, num_worst: int) -> str:
    """The same for people."""
    parts = [_head(found), _errors("file", found.by_file, found.errors)]
    if found.by_fold:
        parts.append(_errors("held out", dict([*found.by_fold.items()][:_MOST_FOLDS]), None))
    if found.memory or found.regret:
        parts.append(_besides(found))
    if num_worst:
        parts.append(_worst_text(found, num_worst))
    if found.reasons:
        parts.append(_reasons(found))
    return "\n".join(parts)


def _head(found: Validation) -> str:
    """What was held against what, in sentences."""
    rows = counted(len(found.verdicts), "row", "rows")
    how = f"each value of {found.split[6:-4]} held out" if found.split != "none" else "no split"
    on = f"calibrated on {', '.join(found.calibrated_on)}" if found.calibrated_on else _basis(found)
    sample = ", IN SAMPLE: fitted to these rows" if found.in_sample else ""
    given = f", {found.num_given} given as what others are foretold from" if found.num_given else ""
    executions = counted(found.num_executions, "execution", "executions")
    clusters = counted(found.errors.num_clusters, "cluster", "clusters")
    sentences = (
        f"{rows}: {found.num_expressed} expressed{given}; {executions} in {clusters}; {how}; {on}{sample}.",
        "Error: |predicted time / measured time - 1|, every cluster counted once, every execution once.",
    )
    width = width_columns()
    return "".join(f"{fill(printable(line), width, subsequent_indent='  ')}\n" for line in sentences)


def _basis(found: Validation) -> str:
    """What rows were foretold by where no file was calibrated on: profiles, the priors, or other folds."""
    if found.split != "none":
        return "calibrated on all others"
    names = dict.fromkeys(each.profile for each in found.verdicts if each.predicted is not None)
    told = [f"the profile {name}" if name else "the priors" for name in names]
    return f"foretold by {' and '.join(told)}"


def _besides(found: Validation) -> str:
    """Memory, and what choosing by prediction costs."""
    lines = []
    if found.memory is not None:
        lines.append(
            f"Memory of {counted(found.memory.num_executions, 'run', 'runs')} that state it: off by "
            f"{format_percent(found.memory.mean)} (mean), {format_percent(found.memory.largest)} at most."
        )
    if found.regret is not None:
        lines.append(
            f"Choosing the strategy foretold fastest: {format_percent(found.regret.mean)} slower than the "
            f"best (mean of {counted(found.regret.num_groups, 'choice', 'choices')}), "
            f"{format_percent(found.regret.largest)} at most."
        )
    width = width_columns()
    return "".join(f"{fill(line, width, subsequent_indent='  ')}\n" for line in lines)


def _errors(title: str, by_name: dict[str, Errors], whole: Errors | None) -> str:
    named = [*by_name.items()]
    if whole is not None and len(named) > 1:
        named.append(("all", whole))
    rows = [
        (
            _shortened(name),
            str(each.num_executions),
            str(each.num_clusters),
            format_percent(each.mape),
            format_percent(each.median),
            format_percent(each.p90),
            format_percent(each.coverage),
        )
        for name, each in named
    ]
    head = (title, "runs", "clusters", "mean", "median", "90 %", "in range")
    return table_text(head, rows, align="<>>>>>>")


def _shortened(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _NAME_WIDTH else f"{text[: _NAME_WIDTH - 1]}…"


def _worst(found: Validation, num_worst: int) -> list[Verdict]:
    """The rows foretold worst, one an execution."""
    seen: set[int] = set()
    worst = []
    for each in sorted(
        (each for each in found.verdicts if each.error is not None), key=lambda each: -(each.error or 0.0)
    ):
        if each.row.execution not in seen:
            seen.add(each.row.execution)
            worst.append(each)
    return worst[:num_worst]


def _worst_text(found: Validation, num_worst: int) -> str:
    rows = [
        (
            format_percent(each.error or 0.0),
            f"{each.row.file}:{each.row.row}",
            f"{each.predicted:.4g}",
            f"{each.row.measured:.4g}",
            each.row.unit[:16],
            f"{each.row.workload} x{format_count(each.row.num_accelerators)}",
        )
        for each in _worst(found, num_worst)
    ]
    return table_text(("worst", "row", "foretold", "was", "unit", "of"), rows, align="><>><<")


def _reasons(found: Validation) -> str:
    rows = [(str(count), reason) for reason, count in found.reasons[:_MOST_REASONS]]
    rest = len(found.reasons) - _MOST_REASONS
    more = f"and {rest} other reasons\n" if rest > 0 else ""
    return table_text(("rows", "not expressed because"), rows, align="><") + more
