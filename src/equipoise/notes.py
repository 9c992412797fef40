"""Remarks on what was read, fitted or answered, each of a kind; no NumPy, which takes longer to load.

No frames, no files.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

NoteKind: TypeAlias = Literal["remark", "not_used", "check", "not_compared", "nothing_fits"]
_LABELS: Mapping[NoteKind, str] = {
    "not_used": "Not used: ",
    "check": "Check: ",
    "not_compared": "Not compared: ",
    "nothing_fits": "Nothing fits on ",
}


class Note(Struct, frozen=True):
    """A remark on an answer; as text, its words behind the label of its kind.

    kind: what first lines choose by. not_used: evidence that was given and rejected; check: evidence or a
    strategy that looks wrong; not_compared: a system without any time; nothing_fits: one without room.
    """

    words: str
    kind: NoteKind = "remark"

    @property
    def label(self) -> str:
        """How its text begins; empty for a remark."""
        return _LABELS.get(self.kind, "")

    def __str__(self) -> str:
        """As a sentence."""
        return f"{self.label}{self.words}"
