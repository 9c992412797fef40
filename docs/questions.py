"""Writes what follows from the fields of a question: docs/reference/questions.md and the types of Python."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from equipoise.decide.question.field import GROUPS, Field, Verb
from equipoise.decide.question.query import ALL, FIELDS, default_words, fields_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "questions.md"
_WIDEST = 110
ARGUMENTS = ROOT / "src" / "equipoise" / "library" / "arguments.py"

_TYPES = {
    "text": "str",
    "texts": "str | Sequence[str] | Mapping[str, object]",
    "names": "str | Sequence[str]",
    "list": "str | Sequence[str]",
    "flag": "bool",
    "number": "float | str",
    "count": "int | str",
    "amount": "float | str",
    "duration": "float | str",
    "sizes": "int | str | Sequence[int]",
    "path": "str | PathLike[str]",
    "paths": "str | PathLike[str] | Sequence[str | PathLike[str]]",
}
_PYTHON_VERBS: tuple[Verb, ...] = ("advise", "plan", "predict", "allocate")
_INTRODUCTION = """\
# The fields of a question

`advise`, `plan`, `predict` and `allocate` share these fields; the last column lists the verbs that have each.
A field is an option (`--max-accelerators 64`), a key of a file (`max_accelerators = 64`), an argument in
Python (`max_accelerators=64`; `from_` for `from`) and a field of a form in the dashboard. All of them take
the same values: counts and amounts with a prefix or a word (`10k`, `1T`, `10 billion`), durations in hours or
with units (`12`, `90min`, `7d`, `1d12h`), and values for one system (`h100=2.1`; in a file also
`price = {h100 = 2.1}`, in Python `price={"h100": 2.1}`; likewise `fix = {tp = 8}` and `fix={"tp": 8}`). The
error for an unknown name suggests the most similar known one.

`equipoise advise CONFIG.toml`, `plan CONFIG.toml` and `predict CONFIG.toml` read the question from a file;
options on the command line override it. Paths in a file are relative to its folder. A file whose `workload`
is a `module:function` is refused without `--allow-code` (in Python `allow_code=True`), because it runs code.

`make docs` writes this page from `src/equipoise/decide/question/fields.toml`.
"""


def page() -> str:
    """docs/reference/questions.md."""
    parts = [_INTRODUCTION]
    for group, title in GROUPS.items():
        rows = [_row(each) for each in FIELDS.values() if each.group == group]
        head = "| option | value | meaning | default | verbs |\n|---|---|---|---|---|"
        parts.append(f"## {title}\n\n{head}\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(field: Field) -> str:
    options = ", ".join(f"`--{each}`" for each in (field.option, *field.also))
    verbs = "all" if len(field.verbs) == len(ALL) else ", ".join(each for each in ALL if each in field.verbs)
    cells = (options, _value(field), field.help, _default(field), verbs)
    return f"| {' | '.join(cells)} |"


def _value(field: Field) -> str:
    if field.kind == "flag":
        return ""
    if field.choices:
        listed = ", ".join(f"`{each}`" for each in field.choices)
        return listed if field.kind == "choice" else f"of {listed}"
    numbers = {"number", "count", "amount", "duration", "sizes"}
    if field.kind in numbers or field.value_kind in numbers:
        unit = "" if field.unit is None or field.kind == "duration" else f", {field.unit}"
        return f"{field.bounds}{unit}"
    return " or ".join(f"`{each}`" for each in field.metavar.split("|")) if field.metavar else "text"


def _default(field: Field) -> str:
    return default_words(next(name for name, each in FIELDS.items() if each is field))


def arguments() -> str:
    """src/equipoise/library/arguments.py."""
    return "\n".join(_arguments()) + "\n"


def _arguments() -> Iterator[str]:
    yield '"""Arguments of the Python functions by verb, written by docs/questions.py from the fields."""'
    yield ""
    yield "from collections.abc import Mapping, Sequence"
    yield "from os import PathLike"
    yield "from typing import Literal, TypedDict"
    of_verb = {verb: [*_argument_fields(verb)] for verb in _PYTHON_VERBS}
    shared = [each for each in of_verb["advise"] if all(each in fields for fields in of_verb.values())]
    trained = [each for each in of_verb["advise"] if each in of_verb["plan"] and each not in shared]
    yield from _class("SharedFields", "TypedDict", "every function", shared)
    yield from _class("TrainingFields", "SharedFields", "`advise` and `plan`", trained)
    for verb, fields in of_verb.items():
        base = "TrainingFields" if verb in {"advise", "plan"} else "SharedFields"
        above = (*shared, *(trained if base == "TrainingFields" else ()))
        rest = [each for each in fields if each not in above]
        yield from _class(f"{verb.capitalize()}Fields", base, f"`{verb}`", rest)


def _argument_fields(verb: Verb) -> Iterator[Field]:
    """The fields of a verb but arguments of the function itself: the workload, what makes another result."""
    return (each for name, each in fields_of(verb).items() if name not in {"workload", "ask"})


def _class(name: str, base: str, of: str, fields: Sequence[Field]) -> Iterator[str]:
    yield from ("", "", f"class {name}({base}, total=False):")
    yield f'    """Fields of {of}: docs/reference/questions.md has what each means."""'
    yield from [""] * bool(fields)
    for each in fields:
        for argument in (each.argument, *each.also_keys):
            yield from _declared(f"    {argument}: {_type(each)}")


def _declared(line: str) -> Iterator[str]:
    """A declaration as the formatter leaves it: choices that are too many for a line, one on each."""
    if len(line) <= _WIDEST:
        yield line
        return
    head, choices = line.removesuffix("]").split("[", 1)
    yield f"{head}["
    for choice in choices.split(", "):
        yield f"        {choice},"
    yield "    ]"


def _type(field: Field) -> str:
    if field.kind == "choice":
        return f"Literal[{', '.join(repr(each).replace(chr(39), chr(34)) for each in field.choices)}]"
    if field.kind == "per_system":
        value = _TYPES[field.value_kind or "number"]
        return f"{value} | Mapping[str, {value}]"
    return _TYPES[field.kind]


def main() -> None:
    """Write both files where they differ."""
    for path, text in ((PAGE, page()), (ARGUMENTS, arguments())):
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)}: rewritten")


if __name__ == "__main__":
    main()
