"""The pages of `list`, `explain`, `doctor`, `ingest` and `scores`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from equipoise.report.blocks import (
    Block,
    Code,
    ColumnOf,
    Heading,
    Labelled,
    Page,
    Span,
    facts,
    named,
    names,
    note,
    numbers,
    prose,
    short_page,
    table_of,
    words,
)
from equipoise.report.format import count, digits, entry_name, prices, printable, ratio, sentence, share
from equipoise.spec.hardware import TERM_WORDS
from equipoise.units import MINUTE_S, format_si, plural

if TYPE_CHECKING:
    import polars as pl

    from equipoise.bench.equipment import Check, Installation
    from equipoise.glossary import Term
    from equipoise.runs.ingest import IngestReport


_Row: TypeAlias = dict[str, Any]


# --- list


class Listing(Struct, frozen=True, kw_only=True):
    """All items of one kind. rows: one per item. sources: the data that were counted."""

    kind: str
    rows: list[_Row]
    sources: str


def _quantity(title: str, key: str, unit: str) -> ColumnOf:
    return numbers(title, key, lambda value: format_si(value, unit))


def _span(row: _Row) -> str:
    """The first and last round."""
    return " to ".join(dict.fromkeys((*row["rounds"][:1], *row["rounds"][-1:])))


def _terms(row: _Row) -> str:
    """Rental terms, with the minimum commitment if the source states it."""
    months = row["minimum_months"]
    return TERM_WORDS[row["terms"]] + ("" if months is None else f", {plural(months, 'month')} or more")


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
    "systems": (
        names("System", "system"),
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
        numbers("USD/h", "usd_per_accelerator_hour", prices),
        words("Terms", _terms),
        words("Provider", "provider"),
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


def _parameter(row: _Row) -> Labelled:
    """A parameter of a strategy: its values, default and meaning."""
    values = ", ".join(map(_written, row["values"])) if row["values"] else "whole number"
    default = "required" if row["default"] is None else f"default {_written(row['default'])}"
    return (row["parameter"], f"{values}; {default}. {row['meaning']}")


def _written(value: object) -> str:
    """A value as written in the text form of a strategy."""
    return str(value).lower()


def _method(row: _Row) -> Labelled:
    """A method as it is written, with an optional argument in brackets, and its meaning."""
    method, example = row["method"], row["example"]
    label = example or method
    if example is not None and not row["needs_argument"]:
        label = f"{method}[{example.removeprefix(method)}]"
    argument = f"; after the colon: {row['argument']}" if row["argument"] else ""
    return (label, f"{row['meaning']}{argument}")


_FACTS: Final[Mapping[str, Callable[[_Row], Labelled]]] = {"strategies": _parameter, "methods": _method}
_NOUNS: Final = {
    "strategies": ("parameter", "parameters"),
    "software": ("software", "kinds of software"),
    "methods": ("way to train", "ways to train"),
    "interruptions": ("published rate", "published rates"),
}
_FROM_DATA: Final = ("rounds", "workloads", "accelerators")
_REMARKS: Final[Mapping[str, tuple[Span, ...]]] = {
    "systems": ("Node: its accelerators. Inside, between: link rates, one direction, per accelerator.",),
    "strategies": (
        "A strategy is written as its parameters that differ from the default, in any order: ",
        Code("dp=8 tp=4 microbatch=1 global_batch=512 zero_stage=1 recompute=selective"),
    ),
    "software": (
        Code("--software NAME"),
        " of ",
        Code("advise"),
        " and ",
        Code("plan"),
        " names it; where none is the default, the priors are used.",
    ),
    "methods": (Code("equipoise bench --strategy"), " takes several, separated by commas."),
    "prices": (
        "Per accelerator and hour. ",
        Code("--json"),
        " has the source of each; ",
        Code("--prices FILE"),
        " takes your own quotes.",
    ),
    "regions": (
        "Yearly averages of 2023 by Ember and Energy Institute; ",
        Code("--carbon"),
        " states your own.",
    ),
    "interruptions": (
        "Failures: hours of one accelerator between two. Spot: waves of reclaimed nodes, at so many nodes.",
    ),
    "models": (Code("equipoise bench MODEL"), " trains it, or module:function of your own."),
}


def _listing_headline(found: Listing) -> str:
    nouns = _NOUNS.get(found.kind, (found.kind.removesuffix("s"), found.kind))
    sources = f"; {found.sources}" if found.kind in _FROM_DATA else ""
    return sentence(f"{plural(len(found.rows), *nouns)}{sources}.")


def _listing_blocks(found: Listing) -> Iterator[Block]:
    if found.kind in _FACTS:
        yield facts(map(_FACTS[found.kind], found.rows))
    else:
        yield table_of(found.kind, _COLUMNS[found.kind], found.rows)
    yield note(*_REMARKS.get(found.kind, ()))
    if found.kind == "workloads":
        yield from _unplanned(found.rows)


def _unplanned(rows: list[_Row]) -> Iterator[Block]:
    """The workloads that only published results can answer, and what a plan for each would need."""
    needed = [(row["workload"], ", ".join(row["lacks"])) for row in rows if row["lacks"]]
    if needed:
        yield Heading(
            name="unplanned", text="No plan: published results alone answer; what a plan would need"
        )
        yield facts(needed)


LISTING: Final = short_page(headline=_listing_headline, blocks=_listing_blocks)


# --- explain


class Explanation(Struct, frozen=True, kw_only=True):
    """The requested term, or all terms."""

    terms: "tuple[Term, ...]"


def _term_blocks(found: Explanation) -> Iterator[Block]:
    (term,) = found.terms
    parts = {"Formula": term.formula, "Source": term.source, "See also": ", ".join(term.see)}
    yield prose(term.meaning)
    yield facts((label, text) for label, text in parts.items() if text)


def _terms_blocks(found: Explanation) -> Iterator[Block]:
    yield facts(
        (group, ", ".join(term.name for term in members))
        for group, members in groupby(found.terms, key=lambda term: term.group)
    )


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
    yield facts(
        (label, "; ".join(f"{one.name}: {one.found}" for one in checks if one.works))
        for label, checks in groups.items()
    )
    missing = [one for checks in groups.values() for one in checks if not one.works]
    yield from _missing("missing", "What does not work", missing)
    yield from _missing("extras", "Extras that are not installed", found.missing_extras)


def _missing(name: str, title: str, checks: "Sequence[Check]") -> tuple[Block, ...]:
    to_do = (
        (one.name, (Code(sentence(one.install or "missing")), f"; for {one.needed_for}")) for one in checks
    )
    return (Heading(name=name, text=title), facts(to_do)) if checks else ()


DOCTOR: Final = short_page(headline=_doctor_headline, blocks=_doctor_blocks)


# --- ingest

_MOST_NAMES: Final = 20  # other kinds of rounds may have hundreds; the JSON document lists all
_REJECTED: Final = (
    names("Refused or worth a look", "kind"),
    numbers("Count", "count"),
    words("The first", lambda row: named(row["first"], detail=f"in {printable(row['where'])}")),
)
_UNKNOWN_NAMES: Final = (
    names("Unknown name, kept", "raw"),
    words("Kind", "kind"),
    numbers("Entries", "count"),
)
_MEANT: Final = words("Perhaps", lambda row: next(iter(row.near), ""))
_EDIT: Final = words("Add it to", "edit")


def ingest_page(into: Path | None) -> "Page[IngestReport]":
    """The page, with the folder that the tables were written to."""
    return short_page(headline=_counts, blocks=lambda found: _ingest_blocks(found, into))


def ingest_fields(found: "IngestReport") -> dict[str, Any]:
    """The document of `ingest`: counts, rejections with a first example each, and unknown names."""
    from equipoise.report.json import plain  # noqa: PLC0415 - loads what the page does not need

    return {
        "rounds": list(found.rounds),
        "entries": {"kept": found.num_entries_kept, "unscored": found.num_entries_unscored},
        "runs": {"kept": found.num_runs_kept, "rejected": found.num_runs_rejected},
        "rejected": found.rejected.rows(),
        "unknown_names": plain(found.unknown_names),
    }


def _counts(found: "IngestReport") -> str:
    rounds = ", ".join(found.rounds) or "no round"
    runs = f"{plural(found.num_runs_kept, 'run')}; {count(found.num_runs_rejected)} rejected"
    return sentence(f"{rounds}: {_entries(found.num_entries_kept, found.num_entries_unscored)}; {runs}.")


def _entries(num_entries: int, num_unscored: int) -> str:
    entries = plural(num_entries, "entry", "entries")
    if not num_unscored:
        return entries
    if num_unscored == num_entries:
        return f"{entries} without a score"
    return f"{entries}, {num_unscored:,} of them without a score"


def _ingest_blocks(found: "IngestReport", into: Path | None) -> Iterator[Block]:
    yield table_of("rejected", _REJECTED, found.rejected.rows())
    shown = found.unknown_names[:_MOST_NAMES]
    meant = (_MEANT,) if any(each.near for each in shown) else ()
    yield table_of("unknown-names", (*_UNKNOWN_NAMES, *meant, _EDIT), shown)
    more = len(found.unknown_names) - _MOST_NAMES
    yield note(f"And {plural(more, 'more name')}: --json lists all." if more > 0 else "")
    if into is not None and found.num_entries_kept:
        from equipoise.runs.store import RUNS, SCORES  # noqa: PLC0415 - loads what no other page here needs

        tables = ", ".join(str(into / f"{schema.name}.parquet") for schema in (RUNS, SCORES))
        yield facts((("Tables", sentence(tables)),))


# --- scores


def _name(entry: _Row) -> str:
    """Submitter and system, preceded by the reason if there is no score."""
    reason = "" if entry["reason"] is None else f"({entry['reason']}) "
    return f"{reason}{entry_name(entry['submitter'], entry['system'])}"


_ABOUT: Final = names("Workload", lambda entry: " ".join(filter(None, _about(entry))))
_ACCELERATOR: Final = names("Accelerator", "accelerator")
_SCORE_COLUMNS: Final = (
    numbers("N", "num_accelerators"),
    numbers("Minutes", "score_s", lambda score_s: f"{score_s / MINUTE_S:,.2f}"),
    numbers("E'", "relative_efficiency", ratio),
    numbers("E", "like_for_like_efficiency", ratio),
    words("System", _name, is_cut=True),
)
# Only for a single table: below several tables, the line about hidden columns would be repeated.
_MORE_SCORE_COLUMNS: Final = (
    numbers("Speedup", "speedup", ratio),
    numbers("Samples", "samples_to_target", lambda samples: count(round(samples)), is_wide=True),
    numbers("Samples/s per N", "samples_per_s_per_accelerator", ratio, is_wide=True),
    words("E against", "like_for_like_baseline", is_wide=True),
)


def score_fields(frame: "pl.DataFrame") -> dict[str, Any]:
    """The document of `scores`: every entry of the frame that `study.scores` returned."""
    from equipoise.report.json import plain  # noqa: PLC0415 - as above

    return {"entries": plain(frame.to_dicts())}


def scores_page(*, is_sorted: bool) -> "Page[pl.DataFrame]":
    """The page: a table per round and workload, or a single table if the user sorted the entries."""
    return short_page(
        headline=lambda frame: f"{_entries(frame.height, frame['score_s'].null_count())}.",
        blocks=lambda frame: _scores_blocks(frame.to_dicts(), is_sorted=is_sorted),
    )


def _about(entry: _Row) -> tuple[str | None, str | None]:
    return entry["round"], entry["workload"]


def _scores_blocks(entries: Sequence[_Row], *, is_sorted: bool) -> Iterator[Block]:
    groups = [entries] if is_sorted else [list(group) for _, group in groupby(entries, key=_about)]
    for place, group in enumerate(groups if entries else ()):
        kinds = {entry["accelerator"] for entry in group}
        kind = kinds.pop() if len(kinds) == 1 else None
        is_mixed = len(set(map(_about, group))) > 1
        title = (*(() if is_mixed else _about(group[0])), kind and f"on {kind}")
        if any(title):
            yield Heading(name=f"scores-{place}", text=sentence(" ".join(filter(None, title))))
        columns = (
            *((_ABOUT,) if is_mixed else ()),
            *(() if kind else (_ACCELERATOR,)),
            *_SCORE_COLUMNS,
            *(_MORE_SCORE_COLUMNS if len(groups) == 1 else ()),
        )
        yield table_of(f"scores-table-{place}", columns, group)
    if entries:
        yield note(
            "E' is against one reference a workload, E against the smallest entry of the same accelerator in "
            "the round: ",
            Code("equipoise explain E"),
            ".",
        )
