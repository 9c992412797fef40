"""What was assumed: the machine, the model, the length of the training, prices and power, with sources."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from equipoise.advice.plans.linked_words import linked_words
from equipoise.advice.plans.planned import Plan
from equipoise.findings import PlanFindings
from equipoise.report.blocks import Block, Cell, Column, Table, note
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, count, listed, printable, sentence
from equipoise.spec.cluster import Link
from equipoise.spec.strategy import DTYPE_OF
from equipoise.units import MICROSECOND_S, format_percent, format_si

Fact: TypeAlias = tuple[str, str, str]  # what, its value, its source
USUAL: Final = "bf16"


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    plan = findings.plan
    facts = (_chip(plan), _node(plan), *_links(plan), *_model(plan), *_money(plan))
    table = Table(
        name="assumed",
        caption="Facts the plan rests on",
        columns=(Column(title="Fact"), Column(title="Value"), Column(title="Source")),
        rows=tuple(
            (
                Cell(text=name, key=name),
                Cell(text=sentence(value), key=value),
                Cell(text=sentence(source) or ABSENT, key=source or None),
            )
            for name, value, source in facts
        ),
    )
    told = () if plan.links is None else (*linked_words(plan), *plan.links.notes)
    lines = tuple(note(sentence(each)) for each in told)
    return (table, *lines, *(note(f"Not known: {sentence(each)}.") for each in plan.length.missing))


def _chip(plan: Plan) -> Fact:
    chip, best = plan.cluster.accelerator, plan.recommended
    precision = USUAL if best is None else best.strategy.precision
    peak = chip.peak_flop_per_s(DTYPE_OF[precision])
    basis = "measured" if chip.achievable_is_measured else "the median of such accelerators"
    told = [] if peak is None else [f"peak {format_si(peak, 'FLOP/s')} dense in {precision}"]
    told.append(f"large products reach {format_percent(chip.achievable_fraction)} of it ({basis})")
    if chip.memory_bytes is not None:
        rate = "" if chip.memory_byte_per_s is None else f" at {format_si(chip.memory_byte_per_s, 'B/s')}"
        told.append(f"memory {format_si(float(chip.memory_bytes), 'B')}{rate}")
    return chip.title, "; ".join(told), chip.source


def _node(plan: Plan) -> Fact:
    nodes = plan.cluster
    told = (
        f"{count(nodes.node_size)} accelerators to a node ({nodes.topology}); an accelerator's links: inside "
        f"{_link(nodes.intra)}, to other nodes {_link(nodes.inter)}"
    )
    return "Node", told, nodes.source


def _links(plan: Plan) -> Iterator[Fact]:
    """What was timed of the links, in place of what the node's facts say of them."""
    for each in () if plan.links is None else plan.links.figures:
        files = ", ".join(name.rpartition("/")[2] for name in each.files)
        where = "in a node" if each.num_nodes <= 1 else f"on {count(each.num_nodes)} nodes"
        told = []
        if each.latency_s is not None:
            told.append(f"{each.latency_s / MICROSECOND_S:.3g} µs for short messages")
        if each.bus_byte_per_s is not None:
            told.append(f"{format_si(each.bus_byte_per_s, 'B/s')} of bus for long ones")
        yield (
            f"Timed {each.operation} of {count(each.num_ranks)} {where}",
            "; ".join(told),
            f"own file {files}",
        )


def _link(link: Link) -> str:
    return f"{format_si(link.byte_per_s, 'B/s')} one way and {link.latency_s / MICROSECOND_S:.3g} µs a hop"


def _model(plan: Plan) -> Iterator[Fact]:
    model = plan.workload
    told = []
    if model.params is not None:
        told.append(f"{format_si(model.params)} parameters")
    if model.train_flop_per_sample is not None:
        told.append(f"{format_si(model.train_flop_per_sample, 'FLOP')} a sample, there and back")
    if model.sequence_tokens is not None:
        told.append(f"{count(model.sequence_tokens)} tokens a sample")
    yield printable(model.title), listed(told), model.source
    results = len(plan.length.evidence)
    unit = "" if plan.length.is_whole else ", for its own length is not known"
    source = f"samples against batch of {count(results)} published results" if results else "as asked"
    yield "Length", f"{plan.length.words}{unit}", source if plan.length.is_whole else ""


def _money(plan: Plan) -> Iterator[Fact]:
    rates, price = plan.rates, plan.rates.price
    if price is None:
        yield "Price", "not known", ""
    else:
        spread = "" if price.low == price.high else f" (offers from {price.low:.2f} to {price.high:.2f})"
        usd = f"{price.usd_per_accelerator_hour:.2f} USD an accelerator-hour{spread}"
        yield "Price", usd, price.basis
    if rates.accelerator_power_w is not None:
        power = rates.system_power
        watts = f"{rates.accelerator_power_w:,.0f} W an accelerator, times {power.factor:.2f} for the system"
        yield "Power", watts, f"rated power; the factor from {power.basis}"
    grid = rates.grid
    yield "Electricity", f"{grid.kg_co2_per_kwh:.3g} kg CO2 a kWh ({printable(grid.region)})", grid.basis


SECTION: Final[Section[PlanFindings]] = Section(
    name="assumed", title="What was assumed", needs=("plan",), blocks=_blocks
)
