"""Text for other programs: templates of templates/ with conditions, and YAML.

A line that ends in `#if A !B` is kept only if A holds and B does not. One that ends in `#for ITEMS` is
repeated for each item. `#include NAME` inserts the lines of another template with the indentation of the
directive. A line that begins with `! ` is the reason why something cannot be expressed, with `!! ` why
nothing can be started. The rest is `string.Template`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from string import Template
from typing import Any

from msgspec import Struct

_TEMPLATES = Path(__file__).with_name("templates")
_REASON, _REFUSAL = "! ", "!! "


class Filled(Struct, frozen=True, kw_only=True):
    """A filled template: the lines that were kept, and the reasons."""

    lines: tuple[str, ...]
    unsupported: tuple[str, ...]
    refused: tuple[str, ...]

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "".join(f"{line}\n" for line in self.lines)


def filled(name: str, facts: Mapping[str, Any]) -> Filled:
    """Fill a template, writing booleans as in JSON and YAML.

    facts: values by the names used in conditions and placeholders; items are mappings of additional values.
    """
    lines = [*_lines(_template(name), facts)]
    return Filled(
        lines=tuple(each for each in lines if not each.startswith((_REASON, _REFUSAL))),
        unsupported=tuple(each.removeprefix(_REASON) for each in lines if each.startswith(_REASON)),
        refused=tuple(each.removeprefix(_REFUSAL) for each in lines if each.startswith(_REFUSAL)),
    )


def joined(text: str, facts: Mapping[str, Any]) -> str:
    """The kept lines of a text, joined into one line."""
    return "".join(_lines(text.splitlines(), facts))


class _TemplateFacts(dict[str, Any]):
    """Facts for placeholders, with booleans written as in JSON and YAML."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever a template writes
        """The value of a placeholder."""
        found = super().__getitem__(name)
        return json.dumps(found) if isinstance(found, bool) else found


def _lines(template: Iterable[str], facts: Mapping[str, Any]) -> Iterator[str]:
    for text, conditions, items in map(_parts, template):
        if not all(holds(each, facts) for each in conditions):
            continue
        for item in facts[items] if items else ({},):
            yield from _filled_line(text, {**facts, **item} if item else facts)


@lru_cache(maxsize=4096)
def _parts(line: str) -> tuple[str, tuple[str, ...], str]:
    """The text of a line, its conditions and its items; cached, as all templates have some hundred lines."""
    text, _, conditions = line.partition("  #if ")
    text, _, items = text.partition("  #for ")
    return text, tuple(conditions.split()), items


def _filled_line(text: str, facts: Mapping[str, Any]) -> Iterator[str]:
    margin, is_include, included = text.partition("#include ")
    if not is_include:
        yield Template(text).substitute(_TemplateFacts(facts)) if "$" in text else text
        return
    for line in _lines(_template(included), facts):
        # A value may consist of several lines.
        yield margin + line.replace("\n", f"\n{margin}") if line else line


@cache
def _template(name: str) -> tuple[str, ...]:
    return tuple((_TEMPLATES / f"{name}.tmpl").read_text(encoding="utf-8").splitlines())


def holds(condition: str, facts: Mapping[str, object]) -> bool:
    """Whether a condition of a template holds: a name, a comparison with values or a number, or a negation.

    >>> facts = {"dp": 2, "precision": "fp16", "sharded": False}
    >>> [holds(each, facts) for each in ("dp>1", "dp>2", "precision=bf16|fp16", "!sharded")]
    [True, False, True, True]
    """
    name, sign, wanted = _compared(condition)
    found = facts[name]
    if sign == "=":
        is_so = str(found) in wanted.split("|")
    else:
        is_so = int(str(found)) > int(wanted) if sign else bool(found)
    return is_so != condition.startswith("!")


@lru_cache(maxsize=1024)
def _compared(condition: str) -> list[str]:
    """The name, the operator and the right-hand side of a condition."""
    return re.split("([=>]|$)", condition.removeprefix("!"), maxsplit=1)


# Words that YAML 1.1 reads as something other than text.
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")


def yaml_text(document: Mapping[str, object]) -> str:
    """A document of nested mappings, lists and scalars as YAML.

    Text is quoted unless it is one plain word, or written as a block if it has several lines, so that a
    user's names are always read as text.

    >>> print(yaml_text({"a": 1, "b": {"c": "yes", "d": ["x y", True]}}), end="")
    a: 1
    b:
      c: "yes"
      d:
        - "x y"
        - true
    """
    return "".join(f"{line}\n" for line in _yaml_lines(document))


def _yaml_lines(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inside in value.items():
            yield from _yaml_entry(f"{yaml_scalar(str(name))}:", inside)
    elif isinstance(value, Sequence):
        for inside in value:
            first, *rest = [yaml_scalar(inside)] if _is_scalar(inside) else _yaml_lines(inside)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _yaml_entry(head: str, inside: object) -> Iterator[str]:
    if isinstance(inside, str) and _is_block(inside):
        yield f"{head} |"
        yield from (f"  {line}" if line else "" for line in inside.removesuffix("\n").split("\n"))
    elif _is_scalar(inside):
        yield f"{head} {yaml_scalar(inside)}"
    else:
        yield head
        yield from (f"  {line}" for line in _yaml_lines(inside))


def _is_block(text: str) -> bool:
    """Whether a YAML block scalar preserves the text."""
    *lines, last = text.split("\n")
    plain = all(line.isprintable() and line == line.rstrip() for line in lines)
    return (
        not last and bool(lines) and plain and not lines[0].startswith(" ") and bool(lines[0] and lines[-1])
    )


def _is_scalar(value: object) -> bool:
    return isinstance(value, str) or not isinstance(value, (Mapping, Sequence)) or not value


def yaml_scalar(value: object) -> str:
    """A scalar in YAML syntax that is read back unchanged."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    # A JSON string is also a YAML string.
    return json.dumps(value, ensure_ascii=not (isinstance(value, str) and value.isprintable()))
