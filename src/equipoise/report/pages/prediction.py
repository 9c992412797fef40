"""The page of a prediction: times by size with money and energy, where returns diminish, and the evidence."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from equipoise.decide.answer import Candidate
from equipoise.decide.evidence import EvidenceSource
from equipoise.decide.prediction import Prediction
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Badge,
    Block,
    Bullets,
    Cell,
    Fact,
    Facts,
    Page,
    Panels,
    Section,
    Span,
    Table,
    more_note,
    names,
    note,
    numbers,
    prose,
    strong,
    table_of,
    words,
)
from equipoise.report.format import (
    accelerator_name,
    capital,
    count,
    listed,
    plural,
    printable,
    sentence,
    workload_name,
)
from equipoise.report.pages.answer.basis import notes_blocks
from equipoise.report.pages.answer.charts import time_chart
from equipoise.report.pages.answer.compare import ENDS, TIME
from equipoise.report.pages.answer.head import chip_of, hour_usd, point_words, takes, title_of
from equipoise.report.pages.published_steps import near_blocks
from equipoise.scaling.equilibrium import default_answer
from equipoise.units import format_percent

_MOST_LAWS: Final = 3
_MOST_EVIDENCE: Final = 12


def _about(found: Prediction) -> str:
    """What the times are of."""
    what = "Your times" if found.workload is None else workload_name(found.workload)
    chip = None if found.accelerator is None else accelerator_name(found.accelerator)
    if found.answer is not None:  # its names are those of the question's own files too
        what = printable(found.answer.workload.title)
        chip = next(
            (each.title for each in found.answer.candidates if each.system == found.accelerator), chip
        )
    on = "" if chip is None else f" on {chip_of(chip)}"
    results = f", from its results in {found.round}" if found.round else ""
    work = f"time for {found.work}" if found.answer is None else f"time to {found.work}"
    return sentence(f"{what}{on}{results}: {work}")


def _headline(found: Prediction) -> str:
    """The times themselves: one, or the first and the last."""
    known = [each for each in found.candidates if each.time_s is not None]
    if not known:
        return "No time can be estimated"
    first, last = known[0], known[-1]
    if first is last:
        return f"{title_of(first)}: {takes(first)}"
    assert first.time_s is not None
    assert last.time_s is not None
    times = f"{amounts.duration(first.time_s.value)} to {amounts.duration(last.time_s.value)}"
    money = ""
    if first.usd is not None and last.usd is not None:
        money = f", {amounts.digits(first.usd.value)} to {amounts.money(last.usd.value)}"
    return f"{count(first.num_accelerators)} to {title_of(last)}: {times}{money}"


def _spread(candidates: Sequence[Candidate], num_rows: int) -> Sequence[Candidate]:
    """At most so many of them, the first and the last among them."""
    last = len(candidates) - 1
    if last < num_rows:
        return candidates
    return [candidates[round(row * last / (num_rows - 1))] for row in range(num_rows)]


def _times_blocks(found: Prediction) -> tuple[Block, ...]:
    known = [each for each in found.candidates if each.time_s is not None]
    charts = (time_chart("prediction-times", known),) if len(known) > 1 else ()
    reasons = {why: size for size, why in sorted(found.outside.items())}
    return (
        Panels(charts=charts, legend="System"),
        _table(found, found.candidates),
        *(note(sentence(f"Extrapolated at {count(size)}: {why}.")) for why, size in reasons.items()),
        _price(found),
    )


def _table(found: Prediction, candidates: Sequence[Candidate]) -> Table:
    level = next((each.time_s.level for each in found.candidates if each.time_s is not None), 0.9)

    def remark(each: Candidate) -> Cell:
        if each.num_accelerators in found.outside:
            return Cell(text="", badge=Badge(text="extrapolated", tone="quiet"), key="1")
        if each.time_s is None:
            return Cell(text=sentence(f"no time: {each.why_not}"), key="2")
        return Cell(text="", key="0")

    columns = (
        numbers("N", "num_accelerators", is_header=True, meaning="number of accelerators"),
        TIME,
        (replace(ENDS[0], title=f"{format_percent(level)} range", meaning=None), ENDS[1]),
        numbers("Hours", "accelerator_hours", amounts.digits, meaning="accelerator-hours"),
        numbers("USD", "usd", amounts.digits),
        numbers("Energy", "energy_j", amounts.watt_hours),
        numbers("CO2", "carbon_kg", amounts.mass),
        words("", remark),
    )
    return table_of("prediction-times", columns, candidates, caption="Times by number of accelerators")


def _price(found: Prediction) -> Block:
    price = next((each.price for each in found.candidates if each.price is not None), None)
    if price is None:
        return note("No price is known: give --price in US dollars per accelerator-hour.")
    return note(sentence(f"{price.usd_per_accelerator_hour:,.3g} USD per accelerator-hour: {price.basis}."))


def _returns_blocks(found: Prediction) -> tuple[Block, ...]:
    if not found.equilibria:
        return (prose(sentence(f"Not known: {found.no_equilibria}.")),)
    first = default_answer(found.equilibria)
    ordered = sorted(found.equilibria, key=lambda each: each is not first)
    items: list[tuple[Span, ...]] = [
        (strong(f"{capital(each.kind)}: "), sentence(f"{point_words(each)}.")) for each in ordered
    ]
    return (
        prose("The smallest size at which returns diminish comes first."),
        Bullets(items=tuple(items)),
        *_values(found),
    )


def _values(found: Prediction) -> Iterator[Block]:
    """Which size costs least at which value of an hour."""
    if len(found.time_values) > 1:
        sizes = [
            f"{count(int(each.candidate.split('/')[1]))} from {hour_usd(each)} USD per hour"
            for each in found.time_values
        ]
        yield note(f"Size with the least money and time together, by the value of an hour: {listed(sizes)}.")


def _evidence_blocks(found: Prediction) -> tuple[Block, ...]:
    facts = []
    if found.law is not None:
        shares = sorted(found.law.shares.items(), key=lambda item: -item[1])[:_MOST_LAWS]
        parts = ", ".join(f"{name} {format_percent(round(share, 2))}" for name, share in shares)
        combined = f" ({parts})" if len(found.law.shares) > 1 else ""
        facts.append(Fact(label="Law", spans=(sentence(f"{found.law.name}{combined}; {found.law.assumes}"),)))
    facts += _submitter(found)
    facts += [Fact(label="Accuracy", spans=(sentence(words),)) for words in dict.fromkeys(_accuracy(found))]
    known = [each for each in found.evidence if each.time_s is not None]
    return (Facts(items=tuple(facts)), _evidence_table(known), *near_blocks(found.answer))


def _submitter(found: Prediction) -> Iterator[Fact]:
    """Whose times published results state."""
    if found.law is None or found.question.times_from is not None:
        return
    words = "the best of each size" if found.question.submitter == "best" else "one who is new to the size"
    yield Fact(label="Submitter", spans=(sentence(f"{words}."),))


def _accuracy(found: Prediction) -> Iterator[str]:
    """How wrong such predictions were on held-out data."""
    if found.answer is not None:
        yield from (each.words for each in found.answer.records)
    else:
        yield from (one.why for each in found.candidates for one in each.estimates if one.why)


_EVIDENCE_COLUMNS: Final = (
    names("Source", "ref"),
    numbers("N", "num_accelerators"),
    numbers("Time", "time_s", amounts.duration),
)


def _evidence_table(known: Sequence[EvidenceSource]) -> Table:
    shown = sorted(known, key=lambda each: (-(each.share or 0.0), each.num_accelerators or 0))
    more = "" if len(known) <= _MOST_EVIDENCE else f", {_MOST_EVIDENCE} of {len(known):,}"
    caption = f"Published and measured times it is based on{more}"
    return table_of("prediction-evidence", _EVIDENCE_COLUMNS, shown[:_MOST_EVIDENCE], caption=caption)


def _brief(found: Prediction, num_rows: int) -> tuple[Block, ...]:
    """The times, the first reason to stop, the law and its accuracy, on one screen."""
    facts = []
    if found.equilibria:
        facts.append(Fact(label="Returns", spans=(capital(point_words(default_answer(found.equilibria))),)))
    else:
        facts.append(Fact(label="Returns", spans=(sentence(f"Not known: {found.no_equilibria}"),)))
    facts += _submitter(found)
    accuracy = next(_accuracy(found), None)
    if accuracy is not None:
        facts.append(Fact(label="Accuracy", spans=(sentence(accuracy),)))
    shown = _spread(found.candidates, num_rows)
    left_out = len(found.candidates) - len(shown)
    return (
        _table(found, shown),
        Facts(items=tuple(facts)),
        more_note(
            plural(left_out, "size") if left_out else "",
            plural(len(found.evidence), "source"),
            plural(len(found.notes), "note"),
        ),
    )


PREDICTION: Final[Page[Prediction]] = Page(
    title=_about,
    about=_about,
    headline=_headline,
    sections=(
        Section("times", "Times by size", _times_blocks, needs=("candidates",)),
        Section("returns", "Where returns diminish", _returns_blocks),
        Section("evidence", "Evidence", _evidence_blocks, needs=("evidence",)),
        Section("notes", "Notes", notes_blocks, needs=("notes",), is_extra=True),
    ),
    closing=lambda _: ("Times that nobody has measured are predictions.",),
    brief=_brief,
)
