"""The page of an answer of `advise` or `plan`: first the recommendation, then everything behind it."""

from typing import Final

from msgspec.structs import replace

from equipoise.decide.answer import Answer
from equipoise.report.blocks import Page, Section, page_within
from equipoise.report.pages.answer import basis, compare, head, overview, resources

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

ANSWER: Final[Page[Answer]] = page_within(
    Page(
        title=head.title,
        about=head.about,
        headline=head.headline,
        sections=(SECTIONS[0], *(replace(each, is_folded=True) for each in SECTIONS[1:])),
        closing=head.closing,
        absence=head.absence,
        brief=head.screen,
    ),
    head.written,
)
