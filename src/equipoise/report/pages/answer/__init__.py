"""The page of an answer, of `advise` and `plan` alike: first what to take, then everything behind it."""

from typing import Final

from equipoise.decide.answer import Alternative, Answer
from equipoise.report.blocks import Block, Bullets, Prose, note, prose, strong
from equipoise.report.page import Page
from equipoise.report.pages.answer import basis, compare, head, resources
from equipoise.report.section import Section
from equipoise.report.words import plural, printable

_MOST_ALTERNATIVES: Final = 2

SECTIONS: Final[tuple[Section[Answer], ...]] = (
    Section(name="answer", title="The answer", needs=(), blocks=head.answer_blocks),
    Section(
        name="sizes", title="All systems and sizes", needs=("candidates",), blocks=compare.comparison_blocks
    ),
    Section(
        name="changes",
        title="What would change the answer",
        needs=("recommended",),
        blocks=compare.changes_blocks,
    ),
    Section(name="why", title="Why", needs=("reasons",), blocks=basis.why_blocks),
    Section(
        name="step", title="Where time and memory go", needs=("candidates",), blocks=resources.step_blocks
    ),
    Section(
        name="strategies",
        title="Strategies",
        needs=("num_considered",),
        blocks=resources.strategies_blocks,
        is_extra=True,
    ),
    Section(
        name="renting", title="Renting, with interruptions", needs=("renting",), blocks=resources.money_blocks
    ),
    Section(
        name="buying",
        title="Buying or renting",
        needs=("ownership",),
        blocks=resources.buying_blocks,
        is_extra=True,
    ),
    Section(
        name="accuracy", title="Accuracy on held-out data", needs=("records",), blocks=basis.accuracy_blocks
    ),
    Section(
        name="measure",
        title="How to reduce the uncertainty",
        needs=("to_measure",),
        blocks=basis.measure_blocks,
        is_extra=True,
    ),
    Section(name="run", title="How to run it", needs=("snippets",), blocks=basis.run_blocks),
    Section(name="assumed", title="What is assumed", needs=("systems",), blocks=basis.assumed_blocks),
    Section(name="notes", title="Notes", needs=("notes",), blocks=basis.notes_blocks, is_extra=True),
)


def _brief(answer: Answer) -> tuple[Block, ...]:
    """The answer on one screen: figures, sizes around the choice, alternatives, the nearest change."""
    blocks = list(head.answer_blocks(answer))
    shown = compare.around_choice(answer)
    if len(shown) > 1:
        blocks.append(compare.sizes_table(answer, shown, is_brief=True))
    alternatives = [each for each in answer.alternatives if not _is_said(answer, each)][:_MOST_ALTERNATIVES]
    if alternatives:
        blocks.append(Bullets(items=tuple(compare.alternative_spans(answer, each) for each in alternatives)))
    if answer.flips:
        blocks.append(prose(strong("Would change it: "), f"{compare.flip_words(answer, answer.flips[0])}."))
    blocks.append(_more(answer))
    return tuple(blocks)


def _is_said(answer: Answer, each: Alternative) -> bool:
    """Whether the facts or the table say already what speaks for an alternative, or against it."""
    valued = {value.candidate for value in answer.time_values}
    return each.candidate.id in valued or bool(each.candidate.broken)


def _more(answer: Answer) -> Prose:
    """What else there is to read."""
    kept = [
        plural(number, noun)
        for number, noun in (
            (len(answer.notes), "note"),
            (len(answer.reasons), "reason"),
            (len(answer.candidates), "candidate"),
            (len(answer.snippets), "script"),
        )
        if number
    ]
    return note(f"More with --full: {', '.join(kept)}." if kept else "More with --full.")


ANSWER: Final[Page[Answer]] = Page(
    title=lambda answer: f"{printable(answer.workload.title)}: {head.headline(answer)}",
    about=head.about,
    headline=head.headline,
    summary=lambda _: (),
    sections=SECTIONS,
    closing=lambda answer: (
        "Times that nobody has measured are predictions: try the first steps before you book the machines.",
        f"Dataset {printable(answer.dataset)}.",
    ),
    brief=_brief,
)
