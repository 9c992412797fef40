"""A piece of text to run or paste, and the reason for it: records only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """What to run or paste.

    target: the program it is for. code: empty where the target cannot run the strategy at all. why: what it
    does, and where that is documented. language: bash or python. inexpressible: what the plan assumes and the
    target has no word for. checked_with: the program, or the table of its rules, that accepted such text in
    the tests; empty where nothing did.
    """

    title: str
    target: str
    code: str
    why: str
    language: str = "bash"
    inexpressible: tuple[str, ...] = ()
    checked_with: str = ""
