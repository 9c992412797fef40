"""What a user's timed collectives say of the links of a machine, as sentences."""

from collections.abc import Iterator

from equipoise.calibration.user_links import OCTAVE_LOG_SD, LinkFigure, UserLinks
from equipoise.spec.cluster import Cluster, Link
from equipoise.units import MICROSECOND_S, format_count, format_percent, format_si

# What was timed is as the catalogue has it within this factor; beyond, the two contradict.
LIKE_FACTOR = 1.5
_MOST_FIGURES = 6
_MOST_FILES = 2


def link_words(timed: UserLinks, nodes: Cluster) -> Iterator[str]:
    """Sentences, from what was timed to what is still of the catalogue; timed.notes has what was not used."""
    for each in timed.figures[:_MOST_FIGURES]:
        yield figure_words(each)
    if len(timed.figures) > _MOST_FIGURES:
        yield f"{len(timed.figures) - _MOST_FIGURES} more were timed: --json has them."
    for each in timed.figures[:_MOST_FIGURES]:
        yield from _contradiction(each)
    yield from _rest(timed, nodes)


def figure_words(each: LinkFigure) -> str:
    """One operation over one group, as it was timed."""
    figures, usual = [], []
    if each.latency_s is not None and each.usual_latency_s is not None:
        figures.append(f"short messages take {_micro(each.latency_s)}")
        usual.append(_micro(each.usual_latency_s))
    if each.bus_byte_per_s is not None and each.usual_bus_byte_per_s is not None:
        figures.append(f"long ones reach {format_si(each.bus_byte_per_s, 'B/s')} bus bandwidth")
        usual.append(format_si(each.usual_bus_byte_per_s, "B/s"))
    if not figures:
        figures = [f"{format_si(float(each.from_bytes), 'B')} to {format_si(float(each.to_bytes), 'B')} only"]
    without = f"; the model without it: {' and '.join(usual)}" if usual else ""
    return f"Timed links, {_group(each)} ({_files(each.files)}): {', '.join(figures)}{without}."


def _contradiction(each: LinkFigure) -> Iterator[str]:
    """What to check where the timing contradicts the catalogue."""
    if each.bus_byte_per_s is None or each.usual_bus_byte_per_s is None:
        return
    ratio = each.bus_byte_per_s / each.usual_bus_byte_per_s
    if 1 / LIKE_FACTOR <= ratio <= LIKE_FACTOR:
        return
    times = f"{ratio:.2g} times" if ratio > 1 else f"{ratio:.2g} of"
    yield (
        f"The timing contradicts the catalogue: {_group(each)} reaches {times} its value. The "
        f"timing is used; `equipoise collectives {each.files[0].rpartition('/')[2]}` shows whether "
        "it is normal."
    )


def _rest(timed: UserLinks, nodes: Cluster) -> Iterator[str]:
    """What follows by the law, and what nothing was timed on."""
    if not timed.figures:
        yield "No link was timed: all values come from the catalogue."
        return
    others = f"{', '.join(timed.by_law)} and " if timed.by_law else ""
    yield (
        f"By the law fitted to these: {others}groups of other sizes, with "
        f"{format_percent(OCTAVE_LOG_SD)} more uncertainty per doubling."
    )
    if not timed.inside:
        yield f"From the catalogue: links inside a node, {_link(nodes.intra)}."
    if not timed.between and nodes.num_accelerators > nodes.node_size:
        yield f"From the catalogue: links between nodes, {_link(nodes.inter)}."


def _group(each: LinkFigure) -> str:
    where = "in a node" if each.num_nodes <= 1 else f"on {format_count(each.num_nodes)} nodes"
    return f"{each.operation} of {format_count(each.num_ranks)} {where}"


def _files(files: tuple[str, ...]) -> str:
    names = [each.rpartition("/")[2] for each in files]
    more = f" and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else ""
    return ", ".join(names[:_MOST_FILES]) + more


def _link(link: Link) -> str:
    return f"{format_si(link.byte_per_s, 'B/s')} per accelerator, {_micro(link.latency_s)} per hop"


def _micro(seconds: float) -> str:
    return f"{seconds / MICROSECOND_S:.3g} us"
