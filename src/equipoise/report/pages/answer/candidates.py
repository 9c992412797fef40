"""Candidates in words and tables: names, limits they break, and when an alternative would win."""

from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.decide.answer import (
    ACCELERATORS,
    CONSTRAINTS,
    Alternative,
    Answer,
    Candidate,
    Constraint,
    Flip,
)
from equipoise.decide.evidence import Grade, Group
from equipoise.decide.question.query import TrainingQuery
from equipoise.intervals import LEVEL
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    ColumnOf,
    Span,
    Strong,
    Table,
    names,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.format import TIMES, count, printable, sentence
from equipoise.spec.hardware import TERM_WORDS
from equipoise.stats import by_key
from equipoise.units import format_percent, format_stated, plural

# The grade of the evidence, in short and in full.
GRADES: Final[dict[Grade, tuple[str, str]]] = {
    "measured": ("measured by you", "your measured runs"),
    "published": ("published results", "published results of this system and size"),
    "carried": (
        "published, carried over",
        "published results carried over from other sizes, rounds or chips",
    ),
    "calibrated": ("calibrated model", "the calibrated performance model; no run of this training"),
    "priors": ("priors only", "the performance model without calibration: treat it as a rough guess"),
}
RECOMMENDED: Final = Badge(text="recommended", tone="good")
_VENDORS: Final = ("NVIDIA ", "AMD ", "Intel ", "Google ")
_JOINT: Final = " + "  # between the titles of a mixture


def title_of(candidate: Candidate) -> str:
    """Number and kind of accelerators, e.g. `64 x H100 SXM5 80 GB` with a multiplication sign.

    For a mixture, or a system not named after its accelerator: `64 accelerators of DGX H100`.
    """
    name = chip_of(candidate.title)
    if candidate.system == candidate.accelerator and _JOINT not in name:
        return f"{count(candidate.num_accelerators)} {TIMES} {name}"
    return f"{plural(candidate.num_accelerators, 'accelerator')} of {name}"


def offer_title(candidate: Candidate) -> str:
    """Number and kind of accelerators, with the rental terms unless they are on demand."""
    terms = "" if candidate.terms == "on_demand" else f", {TERM_WORDS[candidate.terms]}"
    return f"{title_of(candidate)}{terms}"


def chip_of(title: str) -> str:
    """The title of a system or accelerator without its vendor."""
    return _JOINT.join(
        next((name.removeprefix(each) for each in _VENDORS if name.startswith(each)), name)
        for name in printable(title).split(_JOINT)
    )


def takes(each: Candidate) -> str:
    """Time and money, as far as known."""
    usd = amounts.usable(each.usd)
    known = [] if each.time_s is None else [amounts.duration(each.time_s.value)]
    return ", ".join(known + ([] if usd is None else [amounts.money(usd.value)]))


def groups(candidates: Sequence[Candidate]) -> dict[Group, list[Candidate]]:
    """Candidates by system and terms, the smallest size first."""
    ordered = sorted(candidates, key=lambda one: one.num_accelerators)
    return by_key((each.group, each) for each in ordered)


def is_recommended(answer: Answer, each: Candidate) -> bool:
    """Whether a candidate is the recommended one."""
    return answer.recommended is not None and each.id == answer.recommended.id


def place_of(one: Candidate, among: Sequence[Candidate]) -> int | None:
    """The index of a candidate in `among`; None if it is absent."""
    return next((place for place, each in enumerate(among) if each.id == one.id), None)


def limits_broken(answer: Answer, each: Candidate) -> str:
    """The limits that a candidate breaks, in two words each; "misses both" stands for deadline and budget.

    So the row of a table stays on one line.
    """
    both = [one for one in each.broken if one.name in _BOTH and not one.lacks_price]
    if len(both) < len(_BOTH):
        return ", ".join(_broken_words(answer, one) for one in each.broken)
    return ", ".join(("misses both", *(_broken_words(answer, one) for one in each.broken if one not in both)))


_BOTH: Final = ("deadline_s", "budget_usd")


def _broken_words(answer: Answer, one: Constraint) -> str:
    if one.lacks_price:
        return "no price"
    if one.name == "max_accelerators" and not _is_stated(answer, one.limit):
        return "beyond usual"
    return CONSTRAINTS[one.name].broken.format(limit=count(one.limit))


def _is_stated(answer: Answer, most: float) -> bool:
    """Whether the limit `most` on accelerators comes from the question: a stock, a limit or its sizes."""
    return answer.question.states_size or any(each.stock == most for each in answer.systems)


def after_queue(answer: Answer) -> str:
    """The suffix for a time that starts after a queue; empty without a queue."""
    return " after the queue" if answer.question.queue_s else ""


def queue_within(question: TrainingQuery) -> str:
    """The suffix for a deadline that includes time in a queue; empty without a queue."""
    return f" with {format_stated(question.queue_s)} in the queue" if question.queue_s else ""


def limit_words(answer: Answer, broken: Constraint) -> str:
    """A broken limit, as the predicate of a sentence."""
    if broken.name == "deadline_s":
        return f"misses the deadline of {format_stated(broken.limit)}{queue_within(answer.question)}"
    if broken.lacks_price:
        return "has no known price"
    if broken.name == "budget_usd":
        return f"exceeds the budget of {amounts.limit(broken.limit)}"
    if broken.name == "memory_bytes":
        needed = "" if broken.value is None else f"needs {amounts.memory(broken.value)} "
        return f"{needed}of {amounts.memory(broken.limit)} memory"
    return f"beyond {_size_limit_words(answer, broken.limit)}"


def _size_limit_words(answer: Answer, limit: float) -> str:
    """Where a limit on the number of accelerators comes from: stock, question, or the usual largest."""
    question, most = answer.question, count(limit)
    if any(each.stock == limit for each in answer.systems):
        return f"your stock of {most}"
    asked = question.sizes
    if question.max_accelerators is not None or (asked is not None and asked.is_range):
        return f"your limit of {most}"
    return f"the {most} asked for" if _is_stated(answer, limit) else f"the usual {most}"


def size_beside(each: Candidate, best: Candidate | None) -> str:
    """The size alone if system and terms are as in `best`; otherwise with system and terms."""
    is_same = best is not None and each.group == best.group
    return count(each.num_accelerators) if is_same else offer_title(each)


def group_title(answer: Answer, group: Group) -> str:
    """The title of a system, with its terms if several terms are compared."""
    system, terms = group
    title = chip_of(next(each.title for each in answer.systems if each.name == system))
    several = len({each.terms for each in answer.candidates}) > 1
    return f"{title}, {TERM_WORDS[terms]}" if several else title


TIME: Final = numbers("Time", "time_s.value", amounts.duration, is_kept=True)
ENDS: Final = numbers(
    f"{format_percent(LEVEL)} range",
    lambda each: each.time_s and Cell(text=amounts.duration_ends(each.time_s), key=each.time_s.high),
    meaning="in the unit of the time",
)
ENERGY: Final = numbers("Energy", "energy_j", amounts.watt_hours, is_wide=True)


def sizes_table(
    answer: Answer, candidates: Sequence[Candidate], *, is_brief: bool = False, is_tight: bool = False
) -> Table:
    """A table of candidates: the recommended one is marked, and broken limits are stated.

    is_tight: omit the reasons why candidates have no estimate.
    """
    is_of_energy = is_brief and answer.question.objective == "energy"
    is_alone = len({each.group for each in answer.candidates}) == 1
    with_speedup = not is_brief or (is_alone and not is_of_energy)  # one line has no room for both
    known = [each for each in candidates if each.time_s is not None]
    longest_s = {group: members[0].known_time_s.value for group, members in groups(known).items()}
    speedup = numbers(
        "Speedup",
        lambda each: each.time_s and longest_s[each.group] / each.time_s.value,
        amounts.factor,
        meaning="over the smallest size listed",
    )
    columns = (
        *lead_columns(answer, is_brief=is_brief),
        TIME,
        ENDS,
        *((speedup,) if with_speedup else ()),
        numbers(amounts.currency(), "usd", amounts.sums, is_kept=True),
        *((numbers("Energy", "energy_j", amounts.watt_hours, is_kept=True),) if is_of_energy else ()),
        words("Status", lambda each: _status(answer, each, is_tight=is_tight), is_kept=True),
        *(() if is_brief else (ENERGY, numbers("MFU", "mfu", amounts.share, is_wide=True))),
    )
    return table_of(
        "answer-sizes",
        columns,
        candidates,
        caption="Around the choice" if is_brief else f"Every system and size{_left_out(answer)}",
        marked=None if answer.recommended is None else place_of(answer.recommended, candidates),
    )


def _left_out(answer: Answer) -> str:
    """The number of candidates between the usual sizes that are not listed."""
    num_between = len(answer.candidates) - len(answer.listed)
    return f"; {plural(num_between, 'size')} between these in --json" if num_between else ""


def lead_columns(answer: Answer, *, is_brief: bool = False) -> Iterator[ColumnOf]:
    """The columns that name a candidate: system and terms only if they differ, in one column if brief."""
    several = len({each.system for each in answer.candidates}) > 1
    with_terms = len({each.terms for each in answer.candidates}) > 1
    in_one = is_brief and several and with_terms

    def system(each: Candidate) -> str:
        terms = f", {TERM_WORDS[each.terms]}" if in_one and each.terms != "on_demand" else ""
        return f"{chip_of(each.title)}{terms}"

    if several:
        yield names("System", system)
    yield numbers(
        "N", "num_accelerators", is_header=not several, is_kept=True, meaning="number of accelerators"
    )
    if with_terms and not in_one:
        yield words("Terms", lambda each: TERM_WORDS[each.terms])


def _status(answer: Answer, each: Candidate, *, is_tight: bool) -> Cell:
    if is_recommended(answer, each):
        return Cell(text="", badge=RECOMMENDED, key="0")
    if each.time_s is None:
        return Cell(text="no estimate", key="3", detail="" if is_tight else sentence(each.why_not or ""))
    return Cell(text=limits_broken(answer, each), key="2" if each.broken else "1")


def alternative_spans(answer: Answer, each: Alternative) -> tuple[Span, ...]:
    """One alternative and when it wins; only its size if all else is as recommended."""
    title = size_beside(each.candidate, answer.recommended)
    return (
        Strong(title),
        f" ({takes(each.candidate)}): would be chosen {sentence(amounts.wins_when(each))}.",
    )


def unpriced_blocks(answer: Answer) -> tuple[Block, ...]:
    """Faster systems whose price is unknown, and the price below which they would cost less.

    Source: accelerator-hours x price, equal for both.
    """
    best, offered = answer.recommended, {each.candidate for each in answer.offers if each.is_feasible}
    if best is None or best.usd is None or best.time_s is None:
        return ()
    bare = (each for each in answer.candidates if each.id in offered and each.usd is None)
    faster = [each for each in bare if each.time_s and each.time_s.value < best.time_s.value]
    if not faster:
        return ()
    first = min(faster, key=lambda each: each.known_time_s.value)
    costs = ""
    if first.accelerator_hours:
        most = amounts.rate(best.usd.value / first.accelerator_hours)
        costs = f" and would cost less below {most} per accelerator-hour"
    return (prose(Strong("No price known: "), f"{title_of(first)} is faster{costs} (--price)."),)


def flip_words(answer: Answer, each: Flip) -> str:
    """One input, its current value, and the value at which another candidate is recommended."""
    side = "below" if each.flips_at < each.value else "above"
    to = offer_title(answer.candidate(each.to))
    # If a limit decides, sizes between the usual ones are also tried.
    if each.quantity in {"deadline", "budget"} and not any(one.is_between for one in answer.candidates):
        to += ", of the usual sizes"
    now, then = (amounts.quantity(value, each.unit) for value in (each.value, each.flips_at))
    if each.unit == ACCELERATORS:
        return sentence(f"{then} allowed (now {count(each.value)}): {to}, of the sizes tried")
    unit = f" {each.unit.replace('USD', amounts.currency())}"
    moved = flip_input(answer, each)
    if then == now:
        return sentence(f"{moved} slightly {side} {now}: {to}")
    if then.endswith(unit):
        now = now.removesuffix(unit)
    return sentence(f"{moved} {side} {then} (now {now}): {to}")


def no_flip_words(answer: Answer) -> str:
    """A sentence that no varied input changes the answer, and what was not tried."""
    best = answer.recommended
    sizes = [] if best is None else [each.num_accelerators for each in answer.sizes_of(best)]
    is_largest = best is not None and best.num_accelerators == max(sizes)
    untried = f"; more than {count(max(sizes))} accelerators were not tried" if is_largest else ""
    return f"No price, speed or limit within a factor of ten changes the answer{untried}."


def flip_input(answer: Answer, each: Flip) -> str:
    """The name of the varied input, with the title of its system."""
    titles = {system.name: chip_of(system.title) for system in answer.systems}
    return each.quantity if each.system is None else each.quantity.replace(each.system, titles[each.system])
