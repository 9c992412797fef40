"""Pieces of text to run or paste, and those that are files, under a header of what they cannot express."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from msgspec import Struct

from equipoise.errors import UsageError
from equipoise.spec.strategy import Strategy

_COLUMNS = 100
# What every reader of the file passes over, in formats that have no comments.
_JSON_HEADER = "equipoise"


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


def launch_files(strategy: Strategy, snippets: Sequence[Snippet]) -> dict[str, str]:
    """Text by name of every snippet that is a file, under its strategy and what it cannot express."""
    return {each.file: _with_header(each, strategy) for each in snippets if each.file and each.code}


def write_launch_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder, which is made where it is missing; all of them, or none.

    Raises UsageError where they cannot be written.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            written.append(folder / name)
            written[-1].write_text(text, encoding="utf-8")
    except OSError as err:
        for each in written:
            each.unlink(missing_ok=True)
        raise UsageError(f"{folder}: cannot be written ({err.strerror}); name another folder") from err


def _with_header(snippet: Snippet, strategy: Strategy) -> str:
    if snippet.language == "json":
        about = {"strategy": strategy.text(), "not_expressed": list(snippet.unsupported)}
        return json.dumps({_JSON_HEADER: about, **json.loads(snippet.code)}, indent=2) + "\n"
    lines = [f"Strategy: {strategy.text()}", snippet.why]
    if snippet.unsupported:
        lines += [f"{snippet.target} cannot express:", *(f"- {each}" for each in snippet.unsupported)]
    comment = "".join(
        f"# {part}\n" for line in lines for part in wrap(_printable(line), _COLUMNS, break_long_words=False)
    )
    first, _, rest = snippet.code.partition("\n")
    if first.startswith("#!"):
        return f"{first}\n{comment}{rest}"
    shebang = "#!/bin/bash\n" if snippet.language == "bash" else ""
    return f"{shebang}{comment}\n{snippet.code}"


def _printable(line: str) -> str:
    """One line whatever names it has: nothing in it ends a comment."""
    return "".join(char if char.isprintable() else " " for char in line)
