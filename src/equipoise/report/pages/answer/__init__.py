"""The page of an answer of `advise` or `plan`: first what to take, then everything behind it."""

from typing import Final

from equipoise.decide.answer import Alternative, Answer
from equipoise.report.blocks import Block, Bullets, Page, Section, more_note, prose, strong
from equipoise.report.format import plural, printable
from equipoise.report.pages.answer import basis, compare, head, overview, resources

_MOST_ALTERNATIVES: Final = 2
_MOST_SIZES: Final = 5  # of the short form

SECTIONS: Final[tuple[Section[Answer], ...]] = (
    Section(name="answer", title="The answer", blocks=overview.overview_blocks),
    Section(
        name="choice",
        title="The recommendation in detail",
        needs=("recommended",),
        blocks=head.answer_blocks,
        is_extra=True,
        is_folded=True,
    ),
    Section(
        name="sizes",
        title="All systems and sizes",
        needs=("candidates",),
        blocks=compare.comparison_blocks,
        is_folded=True,
    ),
    Section(
        name="changes",
        title="What would change the answer",
        needs=("recommended",),
        blocks=compare.changes_blocks,
        is_folded=True,
    ),
    Section(name="why", title="Why", needs=("reasons",), blocks=basis.why_blocks, is_folded=True),
    Section(
        name="step",
        title="Where time and memory go",
        needs=("candidates",),
        blocks=resources.step_blocks,
        is_folded=True,
    ),
    Section(
        name="strategies",
        title="Strategies",
        needs=("num_considered",),
        blocks=resources.strategies_blocks,
        is_extra=True,
        is_folded=True,
    ),
    Section(
        name="renting",
        title="Renting, with interruptions",
        needs=("renting",),
        blocks=resources.money_blocks,
        is_folded=True,
    ),
    Section(
        name="buying",
        title="Buying or renting",
        needs=("ownership",),
        blocks=resources.buying_blocks,
        is_extra=True,
        is_folded=True,
    ),
    Section(
        name="accuracy",
        title="Accuracy on held-out data",
        needs=("records",),
        blocks=basis.accuracy_blocks,
        is_folded=True,
    ),
    Section(
        name="measure",
        title="How to reduce the uncertainty",
        needs=("to_measure",),
        blocks=basis.measure_blocks,
        is_extra=True,
        is_folded=True,
    ),
    Section(name="run", title="How to run it", needs=("snippets",), blocks=basis.run_blocks, is_folded=True),
    Section(name="assumed", title="What is assumed", blocks=basis.assumed_blocks, is_folded=True),
    Section(
        name="notes",
        title="Notes",
        needs=("notes",),
        blocks=basis.notes_blocks,
        is_extra=True,
        is_folded=True,
    ),
)


def _brief(answer: Answer, num_rows: int) -> tuple[Block, ...]:
    """The answer on one screen: figures, sizes around the choice, the nearest change or the alternatives."""
    shown = compare.around_choice(answer, min(num_rows, _MOST_SIZES))
    alternatives = [each for each in answer.alternatives if not _is_shown(answer, each)][:_MOST_ALTERNATIVES]
    change: Block = Bullets(items=tuple(compare.alternative_spans(answer, each) for each in alternatives))
    if answer.flips:
        change = prose(strong("Would change it: "), f"{compare.flip_words(answer, answer.flips[0])}.")
    left_out = {
        "note": answer.notes,
        "reason": answer.reasons,
        "candidate": answer.candidates,
    }
    return (
        *head.answer_blocks(answer, is_brief=True),
        *((compare.sizes_table(answer, shown, is_brief=True),) if len(shown) > 1 else ()),
        change,
        more_note(*(plural(len(each), noun) for noun, each in left_out.items() if each), "how to run it"),
    )


def _is_shown(answer: Answer, each: Alternative) -> bool:
    """Whether the facts or the table show already when an alternative is better, or that it never is."""
    valued = {value.candidate for value in answer.time_values}
    one, best = each.candidate, answer.recommended
    never_wins = (
        (best is not None and one.time_s and best.time_s and one.usd and best.usd)
        and (one.system, one.terms) == (best.system, best.terms)
        and (one.time_s.value >= best.time_s.value and one.usd.value >= best.usd.value)
    )
    return one.id in valued or bool(one.broken) or bool(never_wins)


ANSWER: Final[Page[Answer]] = Page(
    title=lambda answer: f"{printable(answer.workload.title)}: {head.headline(answer)}",
    about=head.about,
    headline=head.headline,
    sections=SECTIONS,
    closing=lambda answer: (
        "Times that nobody has measured are predictions: try the first steps before you book the machines.",
        f"Dataset {printable(answer.dataset)}.",
    ),
    brief=_brief,
)
