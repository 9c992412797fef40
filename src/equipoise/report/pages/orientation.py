"""The pages of `list`, `explain` and `doctor`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from equipoise.economics.costs import WORDS
from equipoise.report.blocks import (
    Block,
    ColumnOf,
    Fact,
    Facts,
    Heading,
    Span,
    code,
    names,
    note,
    numbers,
    prose,
    short_page,
    table_of,
    words,
)
from equipoise.report.format import digits, plural, sentence, share
from equipoise.units import format_si

if TYPE_CHECKING:
    from equipoise.bench.equipment import Check, Installation
    from equipoise.glossary import Term

_Row: TypeAlias = dict[str, Any]


# --- list


class Listing(Struct, frozen=True, kw_only=True):
    """All things of a kind. rows: one each. sources: the data that were counted."""

    kind: str
    rows: list[_Row]
    sources: str


def _quantity(title: str, key: str, unit: str) -> ColumnOf:
    return numbers(title, key, lambda value: format_si(value, unit))


def _span(row: _Row) -> str:
    """First and last round."""
    return " to ".join(dict.fromkeys((*row["rounds"][:1], *row["rounds"][-1:])))


def _terms(row: _Row) -> str:
    """Rental terms, with the commitment where the source states it."""
    months = row["minimum_months"]
    return WORDS[row["terms"]] + ("" if months is None else f", {plural(months, 'month')} or more")


_SEEN: Final = (numbers("Entries", "num_entries"), words("Rounds", _span))
_COLUMNS: Final[Mapping[str, tuple[ColumnOf, ...]]] = {
    "rounds": (
        names("Round", "round"),
        numbers("Entries", "num_entries"),
        numbers("Scored", "num_scored"),
        numbers("Runs", "num_runs"),
        numbers("Workloads", "num_workloads"),
        numbers("Accelerators", "num_accelerator_kinds"),
        numbers("Largest system", "max_accelerators"),
    ),
    "workloads": (names("Workload", "workload"), *_SEEN, words("Title", "title")),
    "accelerators": (
        names("Accelerator", "accelerator"),
        *_SEEN,
        _quantity("Memory", "memory_bytes", "B"),
        _quantity("Dense bf16", "peak_bf16_flop_per_s", "FLOP/s"),
    ),
    "clusters": (
        names("Cluster", "cluster"),
        words("Accelerator", lambda row: row["accelerators"][0]),
        numbers("Node", "node_size"),
        _quantity("Inside", "intra_byte_per_s", "B/s"),
        _quantity("Between", "inter_byte_per_s", "B/s"),
    ),
    "software": (
        names("Software", "software"),
        words("Title", "title"),
        words("Default of", lambda row: ", ".join(row["default_of"])),
    ),
    "models": (names("Model", "model"), numbers("Parameters", "params"), words("Title", "title")),
    "prices": (
        names("Accelerator", "accelerator"),
        words("Terms", _terms),
        words("Provider", "provider"),
        numbers("USD/h", "usd_per_accelerator_hour", "{:,.2f}".format),
        words("Date", "date"),
        words("Source", "source", is_wide=True),
    ),
    "regions": (
        names("Region", "region"),
        numbers("g CO2 per kWh", "g_co2_per_kwh", digits),
    ),
    "interruptions": (
        names("Seen at", "seen_at"),
        numbers("Hours between failures", "hours_between", digits),
        numbers("Waves per hour", "waves_per_hour", digits),
        numbers("Nodes", "num_nodes", digits),
        numbers("Share taken", "share_of_nodes", share),
    ),
    "laws": (
        names("Law", "law"),
        words("Parameters", lambda row: ", ".join(row["params"])),
        words("Source", "source"),
    ),
}


def _parameter(row: _Row) -> Fact:
    """A parameter of a strategy: its values, its default and what it means."""
    values = ", ".join(map(_written, row["values"])) if row["values"] else "whole number"
    default = "required" if row["default"] is None else f"default {_written(row['default'])}"
    return Fact(label=row["parameter"], spans=(f"{values}; {default}. {row['meaning']}",))


def _written(value: object) -> str:
    """A value as the text form of a strategy has it."""
    return str(value).lower()


def _method(row: _Row) -> Fact:
    """A way to train as it is written, in brackets what may be left out."""
    method, example = row["method"], row["example"]
    label = example or method
    if example is not None and not row["needs_argument"]:
        label = f"{method}[{example.removeprefix(method)}]"
    argument = f"; after the colon: {row['argument']}" if row["argument"] else ""
    return Fact(label=label, spans=(f"{row['meaning']}{argument}",))


_FACTS: Final[Mapping[str, Callable[[_Row], Fact]]] = {"strategies": _parameter, "methods": _method}
_NOUNS: Final = {
    "strategies": ("parameter", "parameters"),
    "software": ("software", "kinds of software"),
    "methods": ("way to train", "ways to train"),
    "interruptions": ("published rate", "published rates"),
}
_FROM_DATA: Final = ("rounds", "workloads", "accelerators")
_REMARKS: Final[Mapping[str, tuple[Span, ...]]] = {
    "clusters": ("Node: its accelerators. Inside, between: link rates, one direction, per accelerator.",),
    "strategies": (
        "A strategy is written as its parameters that differ from the default, in any order: ",
        code("dp=8 tp=4 microbatch=1 global_batch=512 zero_stage=1 recompute=selective"),
    ),
    "software": (
        code("--software NAME"),
        " of ",
        code("advise"),
        " and ",
        code("plan"),
        " names it; where none is the default, the priors serve.",
    ),
    "methods": (code("equipoise bench --strategy"), " takes several, separated by commas."),
    "prices": (
        "Per accelerator and hour. ",
        code("--json"),
        " has the source of each; ",
        code("--prices FILE"),
        " takes your own quotes.",
    ),
    "regions": (
        "Yearly averages of 2023 by Ember and Energy Institute; ",
        code("--carbon"),
        " states your own.",
    ),
    "interruptions": (
        "Failures: hours of one accelerator between two. Spot: waves of reclaimed nodes, at so many nodes.",
    ),
    "models": (code("equipoise bench MODEL"), " trains it, or module:function of your own."),
}


def _listing_headline(found: Listing) -> str:
    nouns = _NOUNS.get(found.kind, (found.kind.removesuffix("s"), found.kind))
    sources = f"; {found.sources}" if found.kind in _FROM_DATA else ""
    return sentence(f"{plural(len(found.rows), *nouns)}{sources}.")


def _listing_blocks(found: Listing) -> Iterator[Block]:
    if found.kind in _FACTS:
        yield Facts(items=tuple(map(_FACTS[found.kind], found.rows)))
    else:
        yield table_of(found.kind, _COLUMNS[found.kind], found.rows)
    yield note(*_REMARKS.get(found.kind, ()))
    if found.kind == "workloads":
        yield from _unplanned(found.rows)


def _unplanned(rows: list[_Row]) -> Iterator[Block]:
    """The workloads that only published results answer, and what a plan of each would need."""
    facts = [Fact(label=row["workload"], spans=(", ".join(row["lacks"]),)) for row in rows if row["lacks"]]
    if facts:
        yield Heading(
            name="unplanned", text="No plan: published results alone answer; what a plan would need"
        )
        yield Facts(items=tuple(facts))


LISTING: Final = short_page(headline=_listing_headline, blocks=_listing_blocks)


# --- explain


class Explanation(Struct, frozen=True, kw_only=True):
    """The term that was asked for, or all."""

    terms: "tuple[Term, ...]"


def _term_blocks(found: Explanation) -> Iterator[Block]:
    (term,) = found.terms
    facts = {"Formula": term.formula, "Source": term.source, "See also": ", ".join(term.see)}
    yield prose(term.meaning)
    yield Facts(items=tuple(Fact(label=label, spans=(text,)) for label, text in facts.items() if text))


def _terms_blocks(found: Explanation) -> Iterator[Block]:
    by_group = groupby(found.terms, key=lambda term: term.group)
    names = {group: ", ".join(term.name for term in members) for group, members in by_group}
    yield Facts(items=tuple(Fact(label=group, spans=(listed,)) for group, listed in names.items()))


TERM: Final = short_page(headline=lambda found: found.terms[0].name, blocks=_term_blocks)
TERMS: Final = short_page(
    headline=lambda found: f"{len(found.terms)} terms; `equipoise explain TERM` explains one.",
    blocks=_terms_blocks,
)


# --- doctor


def _doctor_headline(found: "Installation") -> str:
    failing = sum(not each.works for each in found.checks)
    usable = sum(each.works for each in found.measuring)
    num_checks = len(found.checks)
    core = f"{failing} of {num_checks} checks fail" if failing else f"All {num_checks} checks pass"
    return f"{core}; for measuring, {usable} of {len(found.measuring)} can be used here."


def _doctor_blocks(found: "Installation") -> Iterator[Block]:
    groups = {"Required": found.checks, "Measuring": found.measuring}
    yield Facts(
        items=tuple(
            Fact(label=label, spans=("; ".join(f"{one.name}: {one.found}" for one in checks if one.works),))
            for label, checks in groups.items()
        )
    )
    missing = [one for checks in groups.values() for one in checks if not one.works]
    yield from _missing("missing", "What does not work", missing)
    yield from _missing("extras", "Extras that are not installed", found.missing_extras)


def _missing(name: str, title: str, checks: "Sequence[Check]") -> tuple[Block, ...]:
    """What to do for each, and what it is for."""
    facts = (
        Fact(label=one.name, spans=(code(sentence(one.install or "missing")), f"; for {one.needed_for}"))
        for one in checks
    )
    return (Heading(name=name, text=title), Facts(items=tuple(facts))) if checks else ()


DOCTOR: Final = short_page(headline=_doctor_headline, blocks=_doctor_blocks)
