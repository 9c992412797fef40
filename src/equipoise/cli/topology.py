"""What `equipoise topology` says: the drawn matrix, what its links mean, and what the text did not tell."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from equipoise.advice.links.gain_words import basis, ends
from equipoise.advice.links.link_words import gaps, sentences
from equipoise.advice.links.links import Meaning
from equipoise.bench.topology.topology import Topology
from equipoise.cli.console import drawn
from equipoise.cli.output import counted, paragraph, printable, table_text, width_columns
from equipoise.spec.link_class import FABRICS, kind, rank
from equipoise.spec.link_class import meaning as what_lies_between
from equipoise.units import format_rough, format_si

if TYPE_CHECKING:
    from rich.console import Console

_UNKNOWN, _TORN = "?", "!"
# Larger machines are drawn as lists: a matrix of them fits no terminal.
_MOST_DRAWN = 40
_STYLES = {"PIX": "cyan", "PXB": "cyan", "PHB": "yellow", "PCIE": "yellow", "NODE": "yellow", "SYS": "red"}


def text(found: Meaning) -> str:
    """The same for people."""
    topology = found.topology
    parts = (
        _title(topology),
        _sockets(topology),
        _matrix(topology),
        _legend(topology),
        _bullets(gaps(topology)),
        _bullets(sentences(found)),
        _gains(found),
    )
    return "\n".join(part for part in parts if part)


def _title(topology: Topology) -> str:
    accelerators = [device for device in topology.devices if device.kind == "gpu"]
    parts = [counted(len(accelerators), "accelerator", "accelerators")]
    if not accelerators:
        parts = [counted(len(topology.devices), "processor socket", "processor sockets")]
    titles = list(dict.fromkeys(device.title for device in topology.devices if device.title))
    parts[0] += f" ({', '.join(titles[:4])})" if titles else ""
    if topology.nics:
        parts.append(counted(len(topology.nics), "network card", "network cards"))
    return paragraph(f"{', '.join(parts)}; from {topology.origin}")


def _bullets(said: Sequence[str]) -> str:
    return "".join(paragraph(f"- {each}") for each in said)


def _legend(topology: Topology) -> str:
    """What each class that is drawn means."""
    if not _is_drawn(topology):
        return ""
    names = {device.name for device in topology.devices}
    shown = [link for link in topology.links if link.a in names]
    classes = sorted({link.link_class for link in shown if link.link_class}, key=rank)
    words = [f"{name}: {what_lies_between(name)}" for name in classes]
    if any(link.link_class is None for link in shown):
        words.append(f"{_UNKNOWN}: not told")
    return paragraph("; ".join(words))


def _sockets(topology: Topology) -> str:
    """Sockets and cards of a machine without accelerators."""
    if any(device.kind == "gpu" for device in topology.devices):
        return ""
    rows = [
        (
            device.name,
            str(device.num_cores or _UNKNOWN),
            device.cpu_affinity or _UNKNOWN,
            device.numa_affinity or _UNKNOWN,
        )
        for device in topology.devices
    ]
    cards = [
        (nic.name, "not told" if nic.byte_per_s is None else format_si(nic.byte_per_s, "B/s"))
        for nic in topology.nics
    ]
    return table_text(("socket", "cores", "threads", "NUMA"), rows, align="<><<") + (
        "\n" + table_text(("network", "each way"), cards, align="<>") if cards else ""
    )


def _is_drawn(topology: Topology) -> bool:
    return bool(topology.links) and len(topology.devices) <= _MOST_DRAWN


def _matrix(topology: Topology) -> str:
    """The classes of every pair of devices, and of devices and cards, in blocks that fit the width."""
    if not _is_drawn(topology):
        return ""
    rows = [device.name for device in topology.devices]
    columns = [*rows, *(nic.name for nic in topology.nics)]

    def draw(console: "Console") -> None:
        for block in _blocks(rows, columns):
            _draw_block(console, topology, rows, block)

    return drawn(draw)


def _blocks(rows: Sequence[str], columns: Sequence[str]) -> Iterator[list[str]]:
    """Columns in parts that fit the width beside the names of rows."""
    room = width_columns() - max(map(len, rows))
    block: list[str] = []
    for name in columns:
        if block and sum(_width(each) for each in (*block, name)) > room:
            yield block
            block = []
        block.append(name)
    yield block


def _width(name: str) -> int:
    return max(len(name), len("NODE")) + 2


def _draw_block(console: "Console", topology: Topology, rows: Sequence[str], columns: Sequence[str]) -> None:
    from rich.text import Text

    words = {frozenset((link.a, link.b)): link for link in topology.links}
    first = max(map(len, rows))
    console.print(
        Text(" " * first + "".join(f"{printable(name):>{_width(name)}}" for name in columns), "bold")
    )
    for row in rows:
        line = Text(f"{row:<{first}}", "bold")
        for name in columns:
            link = words.get(frozenset((row, name)))
            word = "x" if row == name else _UNKNOWN
            if link is not None:
                word = link.link_class or (_TORN if link.said else link.peers) or _UNKNOWN
            line.append(f"{word:>{_width(name)}}", _style(word))
        console.print(line)
    console.print()


def _style(word: str) -> str:
    if kind(word) in FABRICS:
        return "green"
    return _STYLES.get(word, "dim")


def _gains(found: Meaning) -> str:
    """Speed-ups of two accelerators over one by model, a column a class of link."""
    if not found.gains:
        return ""
    classes = ends([gain.link_class for gain in found.gains])
    models = dict.fromkeys((gain.title, gain.params) for gain in found.gains)
    of = {(gain.title, gain.link_class): gain for gain in found.gains}
    rows = []
    for title, params in models:
        shown = [of[title, name] for name in classes]
        cells = [f"{gain.speedup:.2f} ({gain.low:.2f}-{gain.high:.2f})" for gain in shown]
        rows.append((title, format_rough(params), *cells, shown[-1].verdict))
    head = ("two over one", "params", *classes, f"by {classes[-1]}")
    align = "<>" + ">" * len(classes) + "<"
    return table_text(head, rows, align=align) + paragraph(basis(found))
