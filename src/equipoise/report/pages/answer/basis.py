"""The basis of an answer: reasons, sources, accuracy, assumptions; how to run it and what to measure."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from equipoise.decide.answer import Answer, Reason
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Block,
    Code,
    CodeListing,
    Fold,
    Heading,
    Span,
    Table,
    bullets,
    named,
    names,
    note,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.format import ABSENT, capital, count, listed, printable, sentence
from equipoise.report.json import WeightedSource, evidence_of
from equipoise.report.pages.answer.candidates import chip_of
from equipoise.report.pages.answer.compare import ESTIMATORS
from equipoise.report.pages.published_steps import near_blocks
from equipoise.spec.strategy import peak_in
from equipoise.units import format_percent, format_si, plural

if TYPE_CHECKING:
    from equipoise.launch import Snippet
    from equipoise.notes import Note

_MOST_REFS: Final = 3
_TOP_SOURCES: Final = 12
_Assumption: TypeAlias = tuple[str, str, str]  # name, value, source


def why_blocks(answer: Answer) -> tuple[Block, ...]:
    """The reasons, each with its sources, and every source with its weight."""
    found = sorted(evidence_of(answer), key=lambda each: -each.weight)
    shown, rest = found[:_TOP_SOURCES], found[_TOP_SOURCES:]
    weight = amounts.share(sum(each.weight for each in rest))
    caption = "Sources of the time, by their weight in it"
    return (
        bullets(map(_reason, answer.reasons)),
        table_of("answer-evidence", _EVIDENCE_COLUMNS, shown, caption=caption),
        note(f"{len(rest):,} more sources, {weight} of the weight: --json." if rest else ""),
        *near_blocks(answer),
    )


def _reason(each: Reason) -> tuple[Span, ...]:
    refs = list(dict.fromkeys(source.ref for source in each.sources if source.time_s is not None))
    spans: list[Span] = [f"{sentence(each.words)} "]
    if refs:
        spans.append(f"From {listed(map(printable, refs), _MOST_REFS)}. ")
    if each.formula is not None:
        spans.append(Code(sentence(each.formula)))
    return tuple(spans)


_EVIDENCE_COLUMNS: Final = (
    names("Source", lambda each: named(each.ref, detail=_log(each))),
    words("Estimator", lambda each: ESTIMATORS[each.kind]),
    numbers("N", "num_accelerators"),
    numbers("Time there", "time_s", amounts.duration),
    numbers("Weight", "weight", amounts.share),
)
_ASSUMED_COLUMNS: Final = (
    names("Fact", lambda fact: fact[0]),
    words("Value", lambda fact: fact[1]),
    words("Source", lambda fact: fact[2], is_wide=True),
)
_SETTING_COLUMNS: Final = (
    names("Setting", "name"),
    words("Value", "value"),
    words("Why", lambda each: capital(each.reason)),
    words("How to check", "how_to_check"),
    words("Source", "evidence", is_wide=True),
)


def _log(each: WeightedSource) -> str | None:
    if each.source_uri is None:
        return None
    return printable(f"{each.source_uri}{'' if each.source_line is None else f', line {each.source_line}'}")


def accuracy_blocks(answer: Answer) -> tuple[Block, ...]:
    """How accurate such answers were on held-out data."""
    return (
        bullets(sentence(each.words) for each in answer.records),
        note("Held-out data were not used to make the predictions. How: docs/decide/advice.md."),
    )


def measure_blocks(answer: Answer) -> tuple[Block, ...]:
    """What to measure to reduce the uncertainty."""
    return (
        bullets(
            sentence(each.words)
            if each.command is None
            else (sentence(each.words), " ", Code(sentence(each.command)))
            for each in answer.to_measure
        ),
    )


# MLPerf's clock also starts after initialisation, of at most 30 minutes (docs/understand/scoring.md).
_NOT_IN_TIME: Final = (
    "Times count from the first step, after starting machines, copying data and weights, and compiling"
)


def assumed_blocks(answer: Answer) -> tuple[Block, ...]:
    """The facts that the answer rests on, with their sources, and its notes."""
    chosen = [f"{capital(sentence(each)).rstrip('.')}." for each in answer.chosen_for_you]
    return (
        note("Chosen because the question leaves it open:" if chosen else ""),
        bullets(chosen),
        table_of(
            "answer-assumed",
            _ASSUMED_COLUMNS,
            (*_chip(answer), *_node(answer), *_model(answer), *_money(answer)),
            caption=f"Facts of {chip_of(answer.system.title)} and of the training",
        ),
        note(f"{_NOT_IN_TIME}{_counted(answer.question.start_s)}."),
    )


def _counted(start_s: float) -> str:
    """How the time before the first step is accounted for; empty if it is zero."""
    if start_s == 0.0:
        return ""
    return f"; {amounts.duration(start_s)} of that, paid for, are included when candidates are compared"


class Noted(Protocol):
    """A record with notes."""

    @property
    def notes(self) -> "Sequence[Note]":
        """Caveats for the reader, one sentence each."""


def notes_blocks(found: Noted) -> tuple[Block, ...]:
    """The notes of a record as a list."""
    return (bullets(sentence(str(each)) for each in found.notes),)


def _chip(answer: Answer) -> Iterator[_Assumption]:
    nodes = answer.system.cluster
    if nodes is None:
        return
    chip = nodes.accelerator
    best = answer.recommended
    precision = "bf16" if best is None or best.strategy is None else best.strategy.precision
    peak = peak_in(chip, precision)
    is_single = precision == "fp32"
    reached = chip.achievable_fp32_fraction if is_single else chip.achievable_fraction
    is_measured = chip.achieved_fp32_flop_per_s is not None if is_single else chip.achievable_is_measured
    basis = "measured" if is_measured else "as on similar measured accelerators"
    parts = [] if peak is None else [f"peak {format_si(peak, 'FLOP/s')} dense in {precision}"]
    parts.append(f"large products reach {format_percent(reached)} of it ({basis})")
    if chip.memory_bytes is not None and chip.usable_memory_bytes is not None:
        rate = "" if chip.memory_byte_per_s is None else f" at {format_si(chip.memory_byte_per_s, 'B/s')}"
        parts.append(f"memory {amounts.memory(float(chip.memory_bytes))}{rate}")
        if chip.usable_memory_bytes < chip.memory_bytes:
            usable = amounts.memory(chip.usable_memory_bytes)
            parts.append(f"programs can use {usable} of it (usable_memory_fraction of --hardware)")
    yield chip.title, "; ".join(parts), chip.source


def _node(answer: Answer) -> Iterator[_Assumption]:
    nodes = answer.system.cluster
    if nodes is not None:
        links = (
            f"{count(nodes.node_size)} accelerators per node ({nodes.topology}); links of an accelerator: "
            f"inside {nodes.intra.words}, to other nodes {nodes.inter.words}"
        )
        if nodes.beyond_bridge_byte_per_s < nodes.intra.byte_per_s:
            beyond = format_si(nodes.beyond_bridge_byte_per_s, "B/s")
            links += f"; {beyond} beyond a bridge of {count(nodes.bridged)}"
        if nodes.oversubscription > 1:
            links += f"; {nodes.oversubscription:g} times slower beyond {plural(nodes.leaf_nodes, 'node')}"
        yield "Node", links, nodes.source


def _model(answer: Answer) -> Iterator[_Assumption]:
    model, system = answer.workload, answer.system
    parts = []
    if model.params is not None:
        parts.append(f"{format_si(model.params)} parameters")
    if model.train_flop_per_sample is not None:
        parts.append(f"{format_si(model.train_flop_per_sample, 'FLOP')} per sample, forward and backward")
    if model.sequence_tokens is not None:
        parts.append(f"{count(model.sequence_tokens)} tokens per sample")
    yield model.title, ", ".join(parts) or ABSENT, model.source
    if system.calibration is not None:
        yield "Performance model", f"calibration {system.calibration}", "docs/understand/accuracy.md"
    if system.run_fit is not None:
        yield "Your measured steps", system.run_fit, "your runs"
    if system.transferred_from is not None:
        yield "Transfer between chips", f"published results of {system.transferred_from} carried over", ""


def _money(answer: Answer) -> Iterator[_Assumption]:
    best = answer.recommended
    terms = None if best is None else best.terms
    rates = next((each for name, each in answer.system.rates.items() if terms in {None, name}), None)
    if rates is None:
        return
    price = rates.price
    if price is None:
        yield "Price", "not known", ""
    else:
        low, high = amounts.prices(price.low), amounts.prices(price.high)
        spread = "" if price.low == price.high else f" (offers from {low} to {high})"
        yield (
            "Price",
            f"{amounts.rate(price.usd_per_accelerator_hour)} per accelerator-hour{spread}",
            price.basis,
        )
    if rates.accelerator_power_w is not None:
        power = rates.system_power
        watts = f"{rates.accelerator_power_w:,.0f} W per accelerator, times {power.factor:.2f} for the system"
        yield "Power", watts, f"rated power; the factor from {power.basis}"
    yield (
        "Electricity",
        f"{rates.grid.kg_co2_per_kwh:.3g} kg CO2 per kWh ({printable(rates.grid.region)})",
        rates.grid.basis,
    )


def run_blocks(answer: Answer) -> tuple[Block, ...]:
    """The launch command, other programs with what they cannot express, and settings with their reasons."""
    first, *others = answer.snippets
    return (
        Heading(name="run-first", text=sentence(first.title), is_minor=True),
        *_snippet(first),
        _targets_table(others, known=frozenset(first.unsupported)),
        note("--launch DIR writes each as a file; --json has them too."),
        *(
            Fold(name=f"run-{place}", title=sentence(each.title), blocks=tuple(_snippet(each)), is_aside=True)
            for place, each in enumerate(others, start=1)
        ),
        table_of(
            "answer-settings",
            _SETTING_COLUMNS,
            answer.settings,
            caption="Settings of the runtime with a reason on this system; leave all others alone",
        ),
    )


def _targets_table(snippets: Sequence["Snippet"], *, known: frozenset[str]) -> Table:
    """Other programs that can run it, by file. known: omissions that are already mentioned above."""
    columns = (
        names("Program", "target"),
        words("File", "file"),
        words(
            "What it cannot express",
            lambda each: "; ".join(what for what in each.unsupported if what not in known),
        ),
    )
    return table_of("answer-targets", columns, snippets, caption="The same strategy elsewhere")


def _snippet(each: "Snippet") -> Iterator[Block]:
    if each.why:
        yield prose(sentence(each.why))
    if each.code:
        yield CodeListing(code=each.code)
    if each.unsupported:
        yield prose(f"{each.target} cannot express: {sentence('; '.join(each.unsupported))}.")
    if each.checked_with:
        yield note(f"Accepted by {sentence(each.checked_with)}.")
