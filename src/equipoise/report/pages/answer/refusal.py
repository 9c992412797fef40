"""Why nothing keeps the limits, the cheapest and the fastest candidates, and which changes would suffice."""

from collections.abc import Iterator
from typing import Final

from equipoise.decide.answer import CONSTRAINTS, Answer, Candidate, Refusal, Relaxation, about_fixed
from equipoise.report import format as amounts
from equipoise.report.blocks import Block, Labelled, Strong, Tile, bullets, facts, note, prose, tiles
from equipoise.report.format import TIMES, capital, count, listed, sentence
from equipoise.report.pages.answer.candidates import chip_of, limit_words, offer_title, takes, title_of

_MOST_FAULTS: Final = 4
_MOST_NAMED: Final = 2  # systems in a headline


def refusal_blocks(answer: Answer) -> tuple[Block, ...]:
    """Why nothing keeps the limits, the cheapest and fastest candidates, and which changes would suffice."""
    refusal = answer.refusal
    if refusal is None:
        return (
            prose("Not enough evidence for a time of any configuration:"),
            bullets(_without_times(answer)),
            *(note(sentence(str(each))) for each in answer.notes),
        )
    if is_of_memory(answer):
        return tuple(_unfit_blocks(answer))
    fastest = refusal.fastest
    # Few sizes are tried beyond a limit; larger ones may be faster.
    is_beyond = fastest is not None and any(each.name == "max_accelerators" for each in fastest.broken)
    among = "tried" if is_beyond else "of all"
    shown = [(f"Cheapest {among}", refusal.cheapest), (f"Fastest {among}", fastest)]
    if refusal.cheapest is not None and refusal.cheapest == fastest:
        shown = [(f"Cheapest and fastest {among}", fastest)]
    chosen = _chosen(answer)
    return (
        tiles(_refused(answer, label, each) for label, each in shown if each is not None),
        *_heading(answer, refusal),
        bullets(relaxed(answer)),
        *((prose(Strong("Chosen: "), f"{chosen}."),) if chosen else ()),
    )


def _chosen(answer: Answer) -> str:
    return capital(sentence("; ".join(answer.chosen_for_you)))


def is_of_memory(answer: Answer) -> bool:
    """Whether nothing runs, and more memory is the only known remedy."""
    steps = () if answer.refusal is None or answer.candidates else answer.refusal.relaxations
    return bool(steps) and all(each.constraint == "memory_bytes" for each in steps)


def no_room_headline(answer: Answer) -> str | None:
    """On how many accelerators the training does not fit, if it fits on none; else None.

    It mentions no limit of the user's, because memory is the reason.
    """
    largest = {
        each.name: max(one.num_accelerators for one in each.unfit) for each in answer.systems if each.unfit
    }
    if not (is_of_memory(answer) and largest):
        return None
    titles = [
        f"{count(largest[each.name])} {TIMES} {chip_of(each.title)}"
        for each in answer.systems
        if each.name in largest
    ]
    if len(titles) > _MOST_NAMED:
        return f"Does not fit on any of {len(titles)} systems"
    is_stated = answer.question.states_size or any(each.stock is not None for each in answer.systems)
    return f"Does not fit on {' or '.join(titles)}{'' if is_stated else ', the most tried by default'}"


def illegal_headline(answer: Answer) -> str | None:
    """On how many accelerators no strategy is legal, if none is legal on any requested size; else None."""
    if answer.candidates or not _faults(answer):
        return None
    steps = () if answer.refusal is None else answer.refusal.relaxations
    sizes = {count(each.limit) for each in steps if each.constraint == "max_accelerators"}
    titles = [chip_of(each.title) for each in answer.systems]
    on = (
        f" on {listed(sorted(sizes))} {TIMES} {' or '.join(titles)}" if len(sizes) == 1 == len(titles) else ""
    )
    return f"No strategy is legal{on}"


def _unfit_blocks(answer: Answer) -> Iterator[Block]:
    """Changes that make the training fit: to the hardware first, then to the chosen settings.

    If no such change is known, the memory per accelerator that would be needed.
    """
    found = [(each.title, each.shortfall) for each in answer.systems if each.shortfall is not None]
    lines: list[Labelled] = []
    for title, short in found:
        needs, ways = short.needs, short.ways_words
        if len(found) > 1:
            lines.append((chip_of(title), f"{capital(ways)}; it {needs}" if ways else f"It {needs}"))
        else:
            lines += [("What fits", capital(ways))] if ways else []
            lines.append(("Memory", f"It {needs}{_each_would_need(answer) if ways else ''}"))
    chosen = _chosen(answer)
    if chosen:
        lines.append(("Chosen", chosen))
    yield facts((label, sentence(str(words))) for label, words in lines)
    if not any(short.ways for _, short in found):
        yield prose("It would fit with:")
        yield bullets(relaxed(answer))


def _each_would_need(answer: Answer) -> str:
    """The memory per accelerator that would be enough. Stated as a fact, because it cannot be added."""
    steps = () if answer.refusal is None else answer.refusal.relaxations
    needed = (amounts.enough(each.needed, each.limit, "B")[0] for each in steps)
    return "".join(f"; {each} on each would be enough" for each in needed)


def _heading(answer: Answer, refusal: Refusal) -> tuple[Block, ...]:
    """The heading of the list of changes; none if no change helps, because the list says so."""
    if not answer.candidates:  # nothing runs, so it is unknown whether other limits would be kept
        if not refusal.relaxations:
            return ()
        return (prose(f"No strategy is legal: {_faults(answer)}. A time is known with:"),)
    return (prose("Changes that would be enough:"),)


def _without_times(answer: Answer) -> Iterator[str]:
    sizes: dict[tuple[str, str], list[int]] = {}
    for each in answer.listed:
        if all(limit.name != "max_accelerators" for limit in each.broken):  # else it was not asked about
            sizes.setdefault((each.title, each.why_not or "no estimate"), []).append(each.num_accelerators)
    for (title, why), some in sizes.items():
        yield f"{listed([count(size) for size in some])} x {title}: {why}."
    yield "Measure runs of your own: --runs DIR (`equipoise bench`, or a CSV file of measured steps)."


def relaxed(answer: Answer) -> Iterator[str]:
    """The smallest sufficient change of each limit."""
    refusal = answer.refusal
    assert refusal is not None
    for each in refusal.relaxations:
        needed, limit = _enough(answer, each)
        title = needed if each.candidate is None else offer_title(answer.candidate(each.candidate))
        yield f"{capital(needed)} instead of {limit}{'' if needed == title else f': {title}'}."
    if refusal.joint:
        parts = [_enough(answer, each)[0] for each in refusal.joint]
        first = refusal.joint[0].candidate
        taken = "" if first is None else f", for {offer_title(answer.candidate(first))}"
        yield f"Several limits at once: {listed(parts)}{taken}."
    if refusal.on_spot is not None:
        taken = f"{title_of(refusal.on_spot)}, {takes(refusal.on_spot)}"
        yield f"Spot capacity, which may be reclaimed (--terms spot): {taken}."
    # Systems that keep all limits except the budget, which cannot be checked without a price.
    unpriced = {
        each.system: each.title
        for each in answer.candidates
        if each.broken and all(one.lacks_price for one in each.broken)
    }
    for name, title in unpriced.items():
        yield f"A price of {title}, which may keep the budget: --price {name}=USD."
    if not (refusal.relaxations or refusal.joint or refusal.on_spot or unpriced):
        faults = _faults(answer)
        why = f"no strategy is legal: {faults}" if faults else "no configuration fits"
        yield f"No change of a limit helps: {why}."


def _enough(answer: Answer, each: Relaxation) -> tuple[str, str]:
    """The limit that would suffice, in the units of the question, and the current one.

    A number of accelerators that was requested as a size, or tried by default, is not a limit of the user's.
    """
    known = CONSTRAINTS[each.constraint]
    if each.constraint != "max_accelerators":
        needed, limit = amounts.enough(each.needed, each.limit, known.unit)
        return f"{known.name} of {needed}", limit
    needed, limit = f"{count(int(each.needed))} accelerators", count(int(each.limit))
    if each.candidate is None:
        return needed, limit
    candidate = answer.candidate(each.candidate)
    if any(one.name == candidate.system and one.stock == each.limit for one in answer.systems):
        return f"a stock of {needed}", limit
    is_stated = answer.question.max_accelerators is not None
    return f"{known.name} of {needed}" if is_stated else offer_title(candidate), limit


def _faults(answer: Answer) -> str:
    """The reasons why strategies are illegal; empty if there are none."""
    found = [each.fault for each in answer.rejected if each.fault is not None]
    return "; ".join(each.words for each in about_fixed(found, answer.question)[:_MOST_FAULTS])


def _refused(answer: Answer, label: str, each: Candidate) -> Tile:
    why = [limit_words(answer, broken) for broken in each.broken]
    words = f"{capital(listed(why))}." if why else ""
    return Tile(label=label, value=offer_title(each), detail=takes(each), words=words)
