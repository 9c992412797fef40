"""Notes on input, fits and answers, by kind. Not NumPy, which is slow to import; no frames, no files."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

NoteKind: TypeAlias = Literal["remark", "not_used", "check", "not_compared", "nothing_fits", "not_bought"]
_LABELS: Mapping[NoteKind, str] = {
    "not_used": "Not used: ",
    "check": "Check: ",
    "not_compared": "Not compared: ",
    "nothing_fits": "Nothing fits on ",
    "not_bought": "Buying was not compared: ",
}


class Note(Struct, frozen=True):
    """A note on an answer; as text, its words after the label of its kind.

    kind: selects notes for the first lines of an answer. not_used: evidence given and rejected; check:
    evidence or a strategy that looks wrong; not_compared: a system without a time; nothing_fits: out of
    memory; not_bought: why buying was not compared.
    """

    words: str
    kind: NoteKind = "remark"

    @property
    def label(self) -> str:
        """Prefix of its text; empty for a remark."""
        return _LABELS.get(self.kind, "")

    def __str__(self) -> str:
        """As a sentence."""
        return f"{self.label}{self.words}"
