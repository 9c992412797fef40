"""Runs the commands of the README and docs and writes what they print there, so that no page is wrong.

A session is a fenced block marked `console`: lines that start with `$ ` are commands, the others output.
Each page runs in a folder that holds the archives and tables of docs/examples; the README in an empty one.
A block marked `json title="equipoise VERB ..."` is what that prints, every list cut to its first item.
Run as a script it rewrites every page; tests/test_docs.py runs the same commands and compares.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

STARTED = (sys.executable, "-m", "equipoise")

# Archives of sweeps are unpacked: `bench` shows the folder of one.
_SWEEP = "-sweep.tar.gz"
_JSON = re.compile(r'^```json title="equipoise ([^"\n]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Session(Struct, frozen=True, kw_only=True):
    """One command of a page, what the page says it prints, and the line it stands on."""

    page: Path
    line: int
    command: str
    shown: str


def sessions(page: Path) -> Iterator[Session]:
    """The sessions of a page, in order."""
    text = page.read_text()
    for block in _BLOCK.finditer(text):
        first_line = text.count("\n", 0, block.start(1)) + 1
        for at, command, shown in _parsed(block.group(1)):
            yield Session(page=page, line=first_line + at, command=command, shown=shown)


def json_examples(page: Path) -> list[tuple[str, str]]:
    """Arguments and shown document of each JSON example of a page."""
    return _JSON.findall(page.read_text())


def _parsed(block: str) -> list[tuple[int, str, str]]:
    """Line, command and output of each command in a block."""
    found: list[tuple[int, str, str]] = []
    for at, line in enumerate(block.splitlines(keepends=True)):
        if line.startswith("$ "):
            found.append((at, line[2:].rstrip("\n"), ""))
        elif found:
            start, command, shown = found[-1]
            found[-1] = (start, command, shown + line)
    return found


def printed(command: str, *, folder: Path, programs: Sequence[Path] = ()) -> str:
    """What a command prints, both streams together, at 80 columns and without colour, run in `folder`.

    programs: folders in which programs are looked for first.
    Raises ValueError where it prints nothing: a page shows no empty block.
    """
    folders = (*map(str, programs), str(Path(sys.executable).parent), os.environ["PATH"])
    surroundings = {**os.environ, "PATH": os.pathsep.join(folders), "COLUMNS": "80", "NO_COLOR": "1"}
    surroundings["EQUIPOISE_LEDGER"] = "ledger.jsonl"  # of the page's folder, never one's own
    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if not ended.stdout.strip():
        raise ValueError(f"{command!r} prints nothing; expected what the page is to show")
    return ended.stdout


def _untimed(text: str) -> str:
    """The text without the seconds that a search took, which differ every time."""
    return re.sub(r'"search_s": [^,\n]+', "", text)


def rewritten(page: Path, *, folder: Path) -> str:
    """The page with what each command prints now."""

    def block(found: re.Match[str]) -> str:
        commands = (command for _, command, _ in _parsed(found.group(1)))
        lines = (f"$ {command}\n{printed(command, folder=folder)}" for command in commands)
        return f"```console\n{''.join(lines)}```"

    def example(found: re.Match[str]) -> str:
        return f'```json title="equipoise {found.group(1)}"\n{document(found.group(1), folder=folder)}```'

    return _JSON.sub(example, _BLOCK.sub(block, page.read_text()))


def document(arguments: str, *, folder: Path, started: Sequence[str] = STARTED) -> str:
    """The JSON document a command prints, indented, every list cut to its first item."""
    command = [*started, *arguments.split()]
    surroundings = {**os.environ, "EQUIPOISE_LEDGER": "ledger.jsonl"}
    ended = subprocess.run(
        command, cwd=folder, env=surroundings, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.dumps(first_items(json.loads(ended.stdout)), indent=2, ensure_ascii=False) + "\n"


def first_items(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A document with every list cut to its first item: its shape."""
    if isinstance(value, dict):
        return {key: first_items(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [first_items(inner) for inner in value[:1]]
    return value


def furnish(folder: Path) -> None:
    """Put what the pages work on into a folder."""
    for example in (ROOT / "docs" / "examples").iterdir():
        if example.name.endswith(_SWEEP):
            with tarfile.open(example) as sweep:
                sweep.extractall(folder, filter="data")
        elif example.suffix in {".gz", ".csv", ".txt", ".toml", ".jsonl", ".py"}:
            shutil.copy(example, folder)
    # A path that starts at the root of a clone leads there too.
    (folder / "docs").mkdir()
    (folder / "docs" / "examples").symlink_to(ROOT / "docs" / "examples")


def main() -> None:
    """Rewrite what follows from the fields of a question, and every page with sessions, or those named."""
    subprocess.run([sys.executable, str(ROOT / "docs" / "questions.py")], check=True)
    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if page != ROOT / "README.md":  # its commands need no file
                furnish(folder)
            fresh = rewritten(page, folder=folder)
        if _untimed(fresh) != _untimed(page.read_text()):
            page.write_text(fresh)
            print(f"{page.relative_to(ROOT)}: rewritten")


if __name__ == "__main__":
    main()
