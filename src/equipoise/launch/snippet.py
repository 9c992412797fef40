"""A piece of text to run or paste."""

from msgspec import Struct


class Snippet(Struct, frozen=True, kw_only=True):
    """What to run or paste.

    target: the program it is for. code: empty where the target cannot run the strategy at all. why: what it
    does, and where that is documented. language: bash, python, yaml or json. file: the name under which it is
    written; empty where it is no file of its own. unsupported: what the strategy has and the target cannot
    express. checked_with: the program, or the table of its rules, that accepted such text in the tests; empty
    where nothing did.
    """

    title: str
    target: str
    code: str
    why: str
    language: str = "bash"
    file: str = ""
    unsupported: tuple[str, ...] = ()
    checked_with: str = ""
