"""A piece of text to run or paste, and the reason for it: records only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """What to run or paste. language: bash or python. why: what it does, and where that is documented."""

    title: str
    code: str
    why: str
    language: str = "bash"
