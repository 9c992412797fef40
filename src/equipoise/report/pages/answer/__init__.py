"""The page of an answer of `advise` or `plan`: first what to take, then everything behind it."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import Final

from msgspec.structs import replace

from equipoise.decide.answer import Alternative, Answer
from equipoise.decide.evidence import NOT_COMPARED, NOTHING_FITS
from equipoise.report.blocks import (
    LEAST_ROWS,
    Block,
    Page,
    Section,
    Strong,
    bullets,
    more_note,
    note,
    page_within,
    prose,
)
from equipoise.report.format import TIMES, count, listed, printable, sentence, written_in
from equipoise.report.pages.answer import basis, compare, head, overview, resources
from equipoise.units import plural

_MOST_NAMED: Final = 2  # systems on which nothing fits
_MOST_ALTERNATIVES: Final = 2
_MOST_NOTES: Final = 2

SECTIONS: Final[tuple[Section[Answer], ...]] = (
    Section("answer", "The answer", overview.overview_blocks),
    Section(
        "choice", "The recommendation in detail", head.answer_blocks, needs=("recommended",), is_extra=True
    ),
    Section("sizes", "All systems and sizes", compare.comparison_blocks, needs=("candidates",)),
    Section("changes", "What would change the answer", compare.changes_blocks, needs=("recommended",)),
    Section("why", "Why", basis.why_blocks, needs=("reasons",)),
    Section("step", "Where time and memory go", resources.step_blocks, needs=("candidates",)),
    Section(
        "strategies", "Strategies", resources.strategies_blocks, needs=("num_considered",), is_extra=True
    ),
    Section("renting", "Renting, with interruptions", resources.money_blocks, needs=("renting",)),
    Section("buying", "Buying or renting", resources.buying_blocks, needs=("ownership",), is_extra=True),
    Section("accuracy", "Accuracy on held-out data", basis.accuracy_blocks, needs=("records",)),
    Section(
        "measure", "How to reduce the uncertainty", basis.measure_blocks, needs=("to_measure",), is_extra=True
    ),
    Section("run", "How to run it", basis.run_blocks, needs=("snippets",)),
    Section("assumed", "What is assumed", basis.assumed_blocks),
    Section("notes", "Notes", basis.notes_blocks, needs=("notes",), is_extra=True),
)


def _written(answer: Answer) -> AbstractContextManager[None]:
    """Money, in the currency of the question, and times in digits that show which keep its limits."""
    usd = (each.usd.value for each in answer.candidates if each.usd is not None)
    question = answer.question
    return written_in(
        question.own_currency, limit_usd=question.budget_usd, usd=usd, limit_s=question.within_s
    )


def _headline(answer: Answer) -> str:
    """What to take, or why there is nothing to take."""
    return overview.headline(answer) if answer.recommended is None else head.headline(answer)


def _screen(answer: Answer, num_rows: int) -> tuple[Block, ...]:
    """The answer on one screen: figures, sizes around the choice, the nearest change or the alternatives."""
    shown = compare.around_choice(answer, max(num_rows, LEAST_ROWS))
    alternatives = [each for each in answer.alternatives if not _is_shown(answer, each)][:_MOST_ALTERNATIVES]
    change: Block = bullets(compare.alternative_spans(answer, each) for each in alternatives)
    if answer.flips:
        change = prose(Strong("Would change it: "), f"{compare.flip_words(answer, answer.flips[0])}.")
    # Where another system is recommended, one on which nothing fits has a line of its own below.
    has_no_room = answer.refusal is not None and overview.is_of_memory(answer)
    begin = NOT_COMPARED if answer.refusal is None or has_no_room else (NOTHING_FITS, NOT_COMPARED)
    why = [each for each in answer.notes if each.startswith(begin)][:_MOST_NOTES]
    further = [each for each in answer.notes if each not in why]
    if has_no_room:  # the first lines have what such notes say
        further = [each for each in further if not each.startswith(NOTHING_FITS)]
    known = {each.system for each in answer.candidates}
    others = known - {each.system for each in shown} if len(shown) > 1 else ()
    unfit = [
        head.chip_of(each.title) for each in answer.systems if each.name not in known and not answer.refusal
    ]
    where = listed(unfit) if len(unfit) <= _MOST_NAMED else f"{len(unfit)} systems"
    figures = head.answer_blocks(answer, is_brief=True, is_tight=num_rows < LEAST_ROWS)
    left_out = head.left_out(answer, figures)
    strategies = answer.system.best_strategies
    counted = ((len(answer.candidates), "candidate"), "how to run it" if answer.is_launched else "")
    return (
        *(overview.refusal_blocks(answer) if answer.recommended is None else ()),
        *(note(sentence(each)) for each in why),
        *figures,
        *((compare.sizes_table(answer, shown, is_brief=True),) if len(shown) > 1 else ()),
        *((prose(f"Nothing fits on {where}: see the notes."),) if unfit else ()),
        *(() if answer.refusal else _sizes_that_do_not_fit(answer, known)),
        *compare.unpriced_blocks(answer),
        change,
        more_note(
            left_out,
            plural(len(strategies), "strategy", "strategies") if answer.question.states_strategies else "",
            (len(others), "other system"),
            (len(further), "note"),
            (0 if left_out else len(answer.reasons), "reason"),  # one line has no room for both
            *(() if left_out and others else counted),  # nor for these
        ),
    )


def _sizes_that_do_not_fit(answer: Answer, known: Collection[str]) -> Iterator[Block]:
    """The sizes that the question names and on which nothing runs. known: systems on which others do."""
    asked = answer.question.sizes
    if asked is None or asked.is_range:
        return
    unfit = [
        (each, sizes)
        for each in answer.systems
        if each.name in known
        and (sizes := [one.num_accelerators for one in each.unfit if one.num_accelerators in asked.listed])
    ]
    if len(unfit) > _MOST_NAMED:
        all_sizes = sorted({size for _, sizes in unfit for size in sizes})
        yield prose(
            f"Does not fit: {listed([*map(count, all_sizes)])} on some of {len(answer.systems)} systems."
        )
    elif unfit:
        named = (
            f"{listed([*map(count, sizes)])} {TIMES} {head.chip_of(each.title)}" for each, sizes in unfit
        )
        yield prose(f"Does not fit: {'; '.join(named)}.")


def _is_shown(answer: Answer, each: Alternative) -> bool:
    """Whether the facts or the table show already when an alternative is better, or that it never is."""
    valued = {value.candidate for value in answer.time_values}
    one, best = each.candidate, answer.recommended
    is_same = best is not None and one.group == best.group
    is_cheaper = best is not None and best.usd and one.usd and one.usd.value <= best.usd.value
    return one.id in valued or bool(one.broken) or bool(valued and (is_same or is_cheaper))


ANSWER: Final[Page[Answer]] = page_within(
    Page(
        title=lambda answer: f"{printable(answer.workload.title)}: {_headline(answer)}",
        about=head.about,
        headline=_headline,
        sections=(SECTIONS[0], *(replace(each, is_folded=True) for each in SECTIONS[1:])),
        closing=lambda answer: (
            "Times that nobody has measured are predictions: try the first steps before you book machines.",
            f"Dataset {printable(answer.dataset)}.",
        ),
        absence=lambda answer: "for lack of data" if answer.refusal is None else "as nothing is recommended",
        brief=_screen,
    ),
    _written,
)
