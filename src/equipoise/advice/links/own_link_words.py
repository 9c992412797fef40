"""What the user's timed collectives said of a plan's links, in sentences: timed, by law, of the tables."""

from collections.abc import Iterator

from equipoise.advice.links.link_tables import OCTAVE_LOG_SD
from equipoise.advice.links.own_links import LinkFigure, OwnLinks
from equipoise.spec.cluster import Cluster, Link
from equipoise.units import MICROSECOND_S, format_count, format_percent, format_si

# What was timed is as the catalogue has it within this factor; beyond, it is said that the two contradict.
LIKE_FACTOR = 1.5
_MOST_FIGURES = 6
_MOST_FILES = 2


def link_words(own: OwnLinks, nodes: Cluster) -> Iterator[str]:
    """Sentences, from what was timed to what is still of the catalogue; own.notes has what was not used."""
    for each in own.figures[:_MOST_FIGURES]:
        yield figure_words(each)
    if len(own.figures) > _MOST_FIGURES:
        yield f"{len(own.figures) - _MOST_FIGURES} more were timed: --json has them."
    for each in own.figures[:_MOST_FIGURES]:
        yield from _contradiction(each)
    yield from _rest(own, nodes)


def figure_words(each: LinkFigure) -> str:
    """One operation over one group, as it was timed."""
    told, usual = [], []
    if each.latency_s is not None and each.usual_latency_s is not None:
        told.append(f"short messages take {_micro(each.latency_s)}")
        usual.append(_micro(each.usual_latency_s))
    if each.bus_byte_per_s is not None and each.usual_bus_byte_per_s is not None:
        told.append(f"long ones go at {format_si(each.bus_byte_per_s, 'B/s')} of bus")
        usual.append(format_si(each.usual_bus_byte_per_s, "B/s"))
    if not told:
        told = [f"{format_si(float(each.from_bytes), 'B')} to {format_si(float(each.to_bytes), 'B')} only"]
    beside = f"; the model without it: {' and '.join(usual)}" if usual else ""
    return f"Links timed, {_group(each)} ({_files(each.files)}): {', '.join(told)}{beside}."


def _contradiction(each: LinkFigure) -> Iterator[str]:
    """What to look at where what was timed is not what the catalogue lets expect."""
    if each.bus_byte_per_s is None or each.usual_bus_byte_per_s is None:
        return
    ratio = each.bus_byte_per_s / each.usual_bus_byte_per_s
    if 1 / LIKE_FACTOR <= ratio <= LIKE_FACTOR:
        return
    times = f"{ratio:.2g} times" if ratio > 1 else f"{ratio:.2g} of"
    yield (
        f"The catalogue is contradicted: {_group(each)} reaches {times} what it lets expect. What was timed "
        f"is used; `equipoise collectives {each.files[0].rpartition('/')[2]}` says whether it is normal."
    )


def _rest(own: OwnLinks, nodes: Cluster) -> Iterator[str]:
    """What follows by the law, and what nothing was timed on."""
    if not own.figures:
        yield "No link was timed: all are of the catalogue."
        return
    others = f"{', '.join(own.by_law)} and " if own.by_law else ""
    yield (
        f"By the law fitted to these: {others}groups of other sizes, less sure by "
        f"{format_percent(OCTAVE_LOG_SD)} a doubling away."
    )
    if not own.inside:
        yield f"Of the catalogue still: links inside a node, {_link(nodes.intra)}."
    if not own.between and nodes.num_accelerators > nodes.node_size:
        yield f"Of the catalogue still: links between nodes, {_link(nodes.inter)}."


def _group(each: LinkFigure) -> str:
    where = "in a node" if each.num_nodes <= 1 else f"on {format_count(each.num_nodes)} nodes"
    return f"{each.operation} of {format_count(each.num_ranks)} {where}"


def _files(files: tuple[str, ...]) -> str:
    names = [each.rpartition("/")[2] for each in files]
    more = f" and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else ""
    return ", ".join(names[:_MOST_FILES]) + more


def _link(link: Link) -> str:
    return f"{format_si(link.byte_per_s, 'B/s')} an accelerator, {_micro(link.latency_s)} a hop"


def _micro(seconds: float) -> str:
    return f"{seconds / MICROSECOND_S:.3g} us"
