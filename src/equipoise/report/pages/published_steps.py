"""Published training steps: the nearest ones of an answer, and the page of `list steps`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from equipoise.decide.answer import Answer
from equipoise.decide.published_steps import NearStep, near_published_steps
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Block,
    Cell,
    Column,
    ColumnOf,
    Fold,
    bullets,
    code,
    named,
    note,
    number,
    short_page,
    table_of,
)
from equipoise.report.format import TIMES, accelerator_name, count, plural, printable, sentence
from equipoise.units import format_percent

_NUM_SHOWN: Final = 2  # in a sentence each; the table has all
_MOST_ROWS: Final = 40
_CHIP_COLUMNS, _FIGURE_COLUMNS = 15, 20
_NOT_COMBINED: Final = (
    "They change no estimate: correcting the model by its error on such a step made it worse on others "
    "(docs/experiments/0030)."
)


def near_blocks(answer: Answer | None) -> tuple[Block, ...]:
    """The published steps nearest to the candidate shown: the first in words, all in a table."""
    near = near_published_steps(answer)
    if not near:
        return ()
    return (
        note("Nearest published steps:"),
        bullets(step_words(each) for each in near[:_NUM_SHOWN]),
        Fold(
            name="published-steps",
            title=f"{plural(len(near), 'published step')} near to this one",
            blocks=(table_of("published-steps-table", _NEAR_COLUMNS, near), note(_NOT_COMBINED)),
            is_aside=True,
        ),
    )


def step_words(step: NearStep) -> str:
    """A published step and what the model predicts of it, in one sentence."""
    what = [
        printable(step.workload),
        f"{count(step.num_accelerators)} {TIMES} {accelerator_name(step.accelerator)}",
        step.software,
        None if step.sequence_tokens is None else plural(step.sequence_tokens, "token"),
        step.precision,
    ]
    rate = f"{step.measured:,.6g} {printable(step.unit)}"
    if step.tokens_per_s_per_accelerator is not None:
        rate = f"{step.tokens_per_s_per_accelerator:,.0f} tokens/s per accelerator"
    mfu = "" if step.mfu is None else f", {amounts.share(step.mfu)} MFU"
    return f"{', '.join(filter(None, what))}: {rate}{mfu}{_model_words(step)}."


def _model_words(step: NearStep) -> str:
    if step.model_ratio is None:
        return ""
    off = abs(step.model_ratio - 1.0)
    way = "shorter" if step.model_ratio < 1.0 else "longer"
    fitted = ", fitted to it" if step.in_sample else ""
    return f"; the model's time is {format_percent(round(off, 2))} {way} there{fitted}"


_NEAR_COLUMNS: Final[tuple[ColumnOf, ...]] = (
    (Column(title="Step", is_header=True), lambda step: named(step.workload, detail=step.url)),
    (Column(title="Accelerator"), lambda step: named(accelerator_name(step.accelerator))),
    (Column(title="N", is_number=True), lambda step: number(step.num_accelerators)),
    (Column(title="Software"), lambda step: named(step.software or amounts.ABSENT)),
    (Column(title="Precision"), lambda step: named(step.precision)),
    (Column(title="Tokens", is_number=True), lambda step: number(step.sequence_tokens)),
    (Column(title="Step time", is_number=True), lambda step: number(step.step_s, amounts.duration)),
    (
        Column(title="Tokens/s each", is_number=True, meaning="per accelerator"),
        lambda step: number(step.tokens_per_s_per_accelerator, lambda rate: f"{rate:,.0f}"),
    ),
    (Column(title="MFU", is_number=True), lambda step: number(step.mfu, amounts.share)),
    (
        Column(title="Model", is_number=True, meaning="predicted over measured time; *: fitted to the row"),
        lambda step: _ratio(step.model_ratio, in_sample=step.in_sample),
    ),
)


def _ratio(value: float | None, *, in_sample: bool) -> Cell:
    return number(value, lambda ratio: f"{ratio:.2f}{'*' if in_sample else ''}")


# --- list steps


class StepListing(Struct, frozen=True, kw_only=True):
    """Rows of the table of published steps with what the model predicts of each, as `list steps` shows them.

    rows: by column of the table, and of predictions. filters: in words.
    """

    rows: list[dict[str, Any]]
    filters: str

    @property
    def counted(self) -> list[dict[str, Any]]:
        """One row of each execution."""
        return [row for row in self.rows if row["row_id"] == row["execution"]]


def _headline(found: StepListing) -> str:
    counted = found.counted
    sources = len({row["repository"] for row in counted})
    num_predicted = sum(row["model_ratio"] is not None for row in counted)
    filters = f"; {found.filters}" if found.filters else ""
    return sentence(
        f"{plural(len(counted), 'published step')} of {plural(sources, 'source')}, {count(num_predicted)} "
        f"predicted{filters}."
    )


def _what(row: Mapping[str, Any]) -> Cell:
    """The model, and why it is not predicted where it is not."""
    reason = "" if row["reason"] is None else f" ({printable(row['reason'])})"
    return named(f"{printable(row['workload'] or amounts.ABSENT)}{reason}")


def _measured(row: Mapping[str, Any]) -> Cell:
    """The figure as published."""
    return named(printable(f"{row['measured']} {row['unit']}")[:_FIGURE_COLUMNS])


def _precision(row: Mapping[str, Any]) -> Cell:
    return named(row["dtype"] or printable(row["precision"] or amounts.ABSENT))


_LIST_COLUMNS: Final[tuple[ColumnOf, ...]] = (
    (Column(title="N", is_number=True), lambda row: number(row["num_accelerators"])),
    (
        Column(title="Accelerator", is_header=True),
        lambda row: named(printable(row["accelerator"] or row["hardware"] or amounts.ABSENT)[:_CHIP_COLUMNS]),
    ),
    (
        Column(title="Software", is_header=True),
        lambda row: named(row["software"] or amounts.ABSENT),
    ),
    (Column(title="Measured", is_header=True), _measured),
    (
        Column(title="Model", is_number=True),
        lambda row: _ratio(row["model_ratio"], in_sample=row["in_sample"]),
    ),
    (Column(title="Step", is_cut=True), _what),
    (
        Column(title="Tokens/s each", is_number=True, is_wide=True, meaning="per accelerator"),
        lambda row: number(row["tokens_per_s_per_accelerator"], lambda rate: f"{rate:,.0f}"),
    ),
    (Column(title="MFU", is_number=True, is_wide=True), lambda row: number(row["mfu"], amounts.share)),
    (Column(title="Precision", is_wide=True), _precision),
    (Column(title="Source", is_wide=True, is_cut=True), lambda row: named(row["repository"])),
)


def _list_blocks(found: StepListing) -> Iterator[Block]:
    counted: Sequence[dict[str, Any]] = found.counted
    yield table_of("steps", _LIST_COLUMNS, counted[:_MOST_ROWS])
    more = len(counted) - _MOST_ROWS
    yield note(
        *(
            ()
            if more <= 0
            else (f"And {plural(more, 'more step')}: ", code("--format csv"), " or --json has all. ")
        ),
        "Model: predicted over measured time, * fitted to the row.",
    )


STEPS: Final = short_page(headline=_headline, blocks=_list_blocks)
