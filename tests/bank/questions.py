"""The questions of the bank: what is asked, why, and where it is asked.

A block `[[question]]` of a TOML file beside this module has

- name: unique, in kebab case;
- verb: advise, plan, predict or allocate;
- args: the command line;
- why: one sentence why the question is here;
- right: what is right, where the first version was known to be wrong or another question must agree; "law" numbers are
  those of the decision laws: 1 headline = row, 2 constraints per candidate, 3 more freedom never hurts, 4 published is
  published, 5 physics orders, 6 one number, 7 whose limit, 8 usable intervals, 9 the question is the user's, 10 what
  is printed runs;
- exit_code: the exit code that the verb must end with, where that is a refusal;
- this_machine: true where the answer depends on the machine that is asked.

Questions are asked in a scratch folder that holds this repository's `tests` and `docs`, and the sweep `small-cnn` of
docs/examples: paths are those of the root of a clone.
"""

import json
import os
import re
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

BANK = Path(__file__).resolve().parent
ROOT = BANK.parents[1]
VERBS = ("advise", "plan", "predict", "allocate")
VOLATILE = ("equipoise", "dataset", "search_s")
_SEARCHED = re.compile(r"strategies in \S+ s\b")

os.environ["PYTHONPATH"] = str(ROOT / "src")  # of this clone, whichever one is installed
sys.path.append(str(ROOT / "tests" / "processes"))
from command_line import equipoise  # noqa: E402 - it is on no path before


class Question(Struct, frozen=True, kw_only=True):
    """One question, as the module describes."""

    theme: str
    name: str
    verb: str
    why: str
    args: tuple[str, ...]
    right: str | None = None
    exit_code: int | None = None
    this_machine: bool = False


def questions() -> list[Question]:
    """All questions, by theme."""
    found = []
    for path in sorted(BANK.glob("*.toml")):
        for block in tomllib.loads(path.read_text())["question"]:
            lists = {key: tuple(value) for key, value in block.items() if isinstance(value, list)}
            found.append(Question(theme=path.stem, **{**block, **lists}))
    return found


@contextmanager
def asking_folder() -> Iterator[Path]:
    """A scratch folder in which questions can be asked; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bank-") as name:
        folder = Path(name).resolve()
        for shared in ("tests", "docs"):
            (folder / shared).symlink_to(ROOT / shared)
        with tarfile.open(ROOT / "docs" / "examples" / "small-cnn-sweep.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        yield folder


def write_sweep_tables(folder: Path) -> None:
    """Let `bench` write the tables of the unpacked sweep, which `--runs` reads; nothing is measured."""
    ended = equipoise("bench", "--out", "small-cnn", "--resume", cwd=folder)
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr)


def ask(question: Question, folder: Path) -> dict:
    """The answer to one question: exit code, message, document and text, without what changes between runs."""
    out = folder / f"{question.name}.json"
    environment = {"EQUIPOISE_LEDGER": str(folder / "ledger.jsonl"), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = equipoise(question.verb, *question.args, "--json-out", out.name, cwd=folder, env=environment)
    document = json.loads(out.read_bytes()) if out.exists() else None
    return {
        "name": question.name,
        "verb": question.verb,
        "args": list(question.args),
        "exit_code": ended.returncode,
        "message": _without_paths(ended.stderr, folder),
        "document": _lasting(document),
        "text": _SEARCHED.sub("strategies in ... s", _without_paths(ended.stdout, folder)),
    }


def _without_paths(text: str, folder: Path) -> str:
    """No path of this machine: the scratch folder is `.`, the clone likewise."""
    return text.replace(str(folder), ".").replace(str(ROOT), ".")


def _lasting(value):
    """A document without its volatile fields, at any depth."""
    if isinstance(value, dict):
        return {key: _lasting(each) for key, each in value.items() if key not in VOLATILE}
    return [_lasting(each) for each in value] if isinstance(value, list) else value
