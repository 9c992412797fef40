"""What `equipoise validate` says: errors by file and fold, the worst rows, and which rows are not expressed
and why.
"""

from textwrap import fill

from equipoise.advice.validation.accuracy import Errors
from equipoise.advice.validation.validate import Validation
from equipoise.cli.output import counted, printable, table_text, width_columns
from equipoise.report.measured_json import worst
from equipoise.units import format_count, format_percent

_MOST_REASONS = 8
_MOST_FOLDS = 24
_NAME_WIDTH = 29  # with six columns of figures beside it within 80


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
        for each in worst(found, num_worst)
    ]
    return table_text(("worst", "row", "foretold", "was", "unit", "of"), rows, align="><>><<")


def _reasons(found: Validation) -> str:
    rows = [(str(count), reason) for reason, count in found.reasons[:_MOST_REASONS]]
    rest = len(found.reasons) - _MOST_REASONS
    more = f"and {rest} other reasons\n" if rest > 0 else ""
    return table_text(("rows", "not expressed because"), rows, align="><") + more
