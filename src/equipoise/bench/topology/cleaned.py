"""Pasted text made plain: no escape sequences, no prefixes of launchers, no endless lines."""

import re
import unicodedata

from equipoise.errors import DataError

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
