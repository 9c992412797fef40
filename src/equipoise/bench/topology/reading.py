"""From text that somebody pasted to a topology: cleaned of escape sequences and prefixes, then recognised."""

import re
import unicodedata

from equipoise.bench.topology import vendors
from equipoise.bench.topology.topology import Topology
from equipoise.errors import DataError, EvidenceError

MOST_BYTES = 4_000_000
MOST_LINES = 20_000
MOST_LINE_CHARS = 20_000
# Colours and cursor movements (CSI), titles (OSC), and two-character escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_=>78])")
# mpirun --tag-output, srun --label, quotes of mail.
_PREFIXES = re.compile(r"^\s*(?:(?:\[\d+,\s?\d+\]<std\w+>:?|\d{1,5}:(?=\s)|>+)\s?)+")


def plain_lines(content: bytes, where: str) -> tuple[str, ...]:
    """The lines of a text, each without escapes and control characters; tabs become two spaces.

    where: the name of the file, for messages.
    Raises DataError for what is binary or larger than any topology.
    """
    if len(content) > MOST_BYTES:
        raise DataError(
            f"{where}: more than {MOST_BYTES:,} bytes; expected what nvidia-smi or rocm-smi print, a few kB: "
            "cut it out"
        )
    text = _decoded(content, where)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    longest = max(map(len, lines))
    if len(lines) > MOST_LINES or longest > MOST_LINE_CHARS:
        raise DataError(
            f"{where}: {len(lines):,} lines, the longest of {longest:,} characters; expected what nvidia-smi "
            "or rocm-smi print: cut it out"
        )
    return tuple(_plain(line) for line in lines)


def _decoded(content: bytes, where: str) -> str:
    """Text of UTF-8, or of UTF-16 with its mark, as PowerShell writes it."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise DataError(f"{where}: line {line}: a NUL byte; expected text that nvidia-smi or rocm-smi print")
    return content.decode("utf-8-sig", errors="replace")


def _plain(line: str) -> str:
    text = _ESCAPES.sub("", line).replace("\t", "  ").replace("\N{NO-BREAK SPACE}", " ")
    text = "".join(char for char in text if char == " " or not unicodedata.category(char).startswith("C"))
    return _PREFIXES.sub("", text).rstrip()


# Which functions read which tool's text; the first that finds anything is believed.
READERS = (vendors.read_amd, vendors.read_nvidia)


def read(content: bytes, *, where: str) -> Topology:
    """The topology of a machine from what its tools printed.

    where: the name of the file, for messages.
    Raises DataError where it is no text, or has no accelerator; EvidenceError where it has no link.
    """
    lines = plain_lines(content, where)
    for reader in READERS:
        found = reader(lines)
        if found is not None and found.devices:
            _check_has_links(found, where)
            return found
    problem = (
        "empty"
        if not any(line.strip() for line in lines)
        else "no matrix of links and no list of accelerators"
    )
    raise DataError(
        f"{where}: {problem}; expected what `nvidia-smi topo -m`, `nvidia-smi -L`, `rocm-smi --showtopo` or "
        "`amd-smi topology` print"
    )


def _check_has_links(found: Topology, where: str) -> None:
    """Refuse a text of which only the heads of the columns are left."""
    absent = {row.name for row in found.missing_rows if row.num_cells == 0}
    names = [device.name for device in found.devices if device.name in absent]
    shown = any(link.peers or link.weight for link in found.links) or any(
        device.title for device in found.devices
    )
    if len(names) > 1 and len(names) == len(found.devices) and not (shown or found.classes):
        raise EvidenceError(
            f"{where}: {len(names)} accelerators are named and no link between them is shown",
            missing=(f"the rows {', '.join(names[:8])}",),
        )
