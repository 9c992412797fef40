"""Published training steps: those nearest to an answer, and the page of `list steps`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from equipoise.decide.answer import Answer
from equipoise.decide.explanation.published_nearby import (
    NearPretraining,
    NearStep,
    near_published_pretrainings,
    near_published_steps,
)
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Block,
    Cell,
    Code,
    ColumnOf,
    Fold,
    bullets,
    named,
    names,
    note,
    number,
    numbers,
    short_page,
    table_of,
    words,
)
from equipoise.report.format import TIMES, accelerator_name, count, printable, sentence
from equipoise.units import format_si, plural, whole_percent

Near = TypeVar("Near", NearPretraining, NearStep)

_NUM_SHOWN: Final = 2  # with a sentence each; the table has all
_MOST_ROWS: Final = 40
_CHIP_COLUMNS, _FIGURE_COLUMNS = 15, 20
_NOT_COMBINED: Final = (
    "They change no estimate: correcting the model by its error on such a step made it worse on others "
    "(docs/experiments/0030)."
)


def near_blocks(answer: Answer | None) -> tuple[Block, ...]:
    """The published pretrainings and steps nearest to the shown candidate: two in words, all in tables."""
    pretrainings, steps = near_published_pretrainings(answer), near_published_steps(answer)
    return (
        *_nearest("pretraining", pretrainings, pretraining_words, _PRETRAINING_COLUMNS),
        *_nearest("step", steps, step_words, _NEAR_COLUMNS, note(_NOT_COMBINED)),
    )


def _nearest(
    noun: str,
    near: Sequence[Near],
    sentence_of: Callable[[Near], str],
    columns: Sequence[ColumnOf],
    *last: Block,
) -> tuple[Block, ...]:
    """The nearest published items: sentences for the first, a table of all. last: blocks after the table."""
    if not near:
        return ()
    return (
        note(f"Nearest published {noun}s:"),
        bullets(sentence_of(each) for each in near[:_NUM_SHOWN]),
        Fold(
            name=f"published-{noun}s",
            title=f"{plural(len(near), f'published {noun}')} near to this one",
            blocks=(table_of(f"published-{noun}s-table", columns, near), *last),
            is_aside=True,
        ),
    )


def pretraining_words(each: NearPretraining) -> str:
    """A published pretraining and the model's prediction for it, in one sentence."""
    size = "" if each.num_accelerators is None else f"{count(each.num_accelerators)} {TIMES} "
    where = f"{size}{accelerator_name(each.accelerator)}"
    return (
        f"{printable(each.title)}, {format_si(each.tokens)} tokens, {where}: "
        f"{amounts.digits(each.accelerator_hours)} accelerator-hours, "
        f"{amounts.digits(each.accelerator_hours_per_t_tokens)} per 1 T tokens"
        f"{_ratio_words(each.model_ratio)} there."
    )


def step_words(step: NearStep) -> str:
    """A published step and the model's prediction for it, in one sentence."""
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
    return f"{_ratio_words(step.model_ratio)} there{' (fitted to it)' if step.in_sample else ''}"


def _ratio_words(ratio: float) -> str:
    way = "shorter" if ratio < 1.0 else "longer"
    return f"; the model's time is {whole_percent(abs(ratio - 1.0))} {way}"


_tokens_per_s: Final = "{:,.0f}".format
_NEAR_COLUMNS: Final = (
    names("Step", lambda step: named(step.workload, detail=step.url)),
    words("Accelerator", lambda step: accelerator_name(step.accelerator)),
    numbers("N", "num_accelerators"),
    words("Software", "software"),
    words("Precision", "precision"),
    numbers("Tokens", "sequence_tokens"),
    numbers("Step time", "step_s", amounts.duration),
    numbers("Tokens/s each", "tokens_per_s_per_accelerator", _tokens_per_s, meaning="per accelerator"),
    numbers("MFU", "mfu", amounts.share),
    numbers(
        "Model",
        lambda step: _ratio(step.model_ratio, in_sample=step.in_sample),
        meaning="predicted over measured time; *: fitted to the row",
    ),
)


_PRETRAINING_COLUMNS: Final = (
    names("Pretraining", lambda each: named(each.title, detail=each.source)),
    words("Accelerator", lambda each: accelerator_name(each.accelerator)),
    numbers("N", "num_accelerators"),
    numbers("Tokens", "tokens", format_si),
    numbers("Hours", "accelerator_hours", amounts.digits, meaning="accelerator-hours"),
    numbers("Hours per 1 T", "accelerator_hours_per_t_tokens", amounts.digits, meaning="of 1e12 tokens"),
    numbers("Model", "model_ratio", lambda ratio: f"{ratio:.2f}", meaning="planned over published hours"),
)


def _ratio(value: float | None, *, in_sample: bool) -> Cell:
    return number(value, lambda ratio: f"{ratio:.2f}{'*' if in_sample else ''}")


# --- list steps


class StepListing(Struct, frozen=True, kw_only=True):
    """Published steps with the model's prediction for each, as `list steps` shows them.

    rows: values by column of the table and of the predictions. filters: in words.
    """

    rows: list[dict[str, Any]]
    filters: str

    @property
    def counted(self) -> list[dict[str, Any]]:
        """One row per execution."""
        return [row for row in self.rows if row["row_id"] == row["execution"]]


def _headline(found: StepListing) -> str:
    counted = found.counted
    sources = len({row["repository"] for row in counted})
    num_predicted = sum(row["model_ratio"] is not None for row in counted)
    filters = f"; {found.filters}" if found.filters else ""
    # Some steps have several published figures, such as memory, or the speed in another unit.
    figures = f" ({count(len(found.rows))} figures)" if len(found.rows) > len(counted) else ""
    return sentence(
        f"{plural(len(counted), 'published step')}{figures} of {plural(sources, 'source')}, "
        f"{count(num_predicted)} predicted{filters}."
    )


def _what(row: Mapping[str, Any]) -> str:
    """The model, followed by the reason if it is not predicted."""
    reason = "" if row["reason"] is None else f" ({printable(row['reason'])})"
    return f"{printable(row['workload'] or amounts.ABSENT)}{reason}"


def _measured(row: Mapping[str, Any]) -> str:
    return printable(f"{row['measured']} {row['unit']}", _FIGURE_COLUMNS)


def _chip(row: Mapping[str, Any]) -> str:
    return printable(row["accelerator"] or row["hardware"] or amounts.ABSENT, _CHIP_COLUMNS)


_LIST_COLUMNS: Final = (
    numbers("N", "num_accelerators"),
    names("Accelerator", _chip),
    names("Software", "software"),
    names("Measured", _measured),
    numbers("Model", lambda row: _ratio(row["model_ratio"], in_sample=row["in_sample"])),
    words("Step", _what, is_cut=True),
    numbers(
        "Tokens/s each",
        "tokens_per_s_per_accelerator",
        _tokens_per_s,
        is_wide=True,
        meaning="per accelerator",
    ),
    numbers("MFU", "mfu", amounts.share, is_wide=True),
    words("Precision", lambda row: row["dtype"] or row["precision"], is_wide=True),
    words("Source", "repository", is_wide=True, is_cut=True),
)


def _list_blocks(found: StepListing) -> Iterator[Block]:
    counted: Sequence[dict[str, Any]] = found.counted
    yield table_of("steps", _LIST_COLUMNS, counted[:_MOST_ROWS])
    more = len(counted) - _MOST_ROWS
    yield note(
        *(
            ()
            if more <= 0
            else (f"And {plural(more, 'more step')}: ", Code("--format csv"), " or --json has all. ")
        ),
        "Model: predicted over measured time, * fitted to the row.",
    )


STEPS: Final = short_page(headline=_headline, blocks=_list_blocks)
