"""Programs that train: each with a template of how it expresses a strategy, and how its options are written.

Of the template a line is an option, `NAME = VALUE` or a flag's name alone; a reason (`! `, `!! `) states what
the program cannot express. tests/launch/test_programs.py holds every program to every field of a strategy.
"""

import json
from pathlib import Path
from shlex import join
from typing import Literal, TypeAlias

from msgspec import Struct, convert

from equipoise.files import shipped_table
from equipoise.launch.facts import Model, program_facts
from equipoise.launch.text import filled, yaml_text
from equipoise.spec.strategy import Strategy

Value: TypeAlias = bool | int | float | str | tuple[str | int, ...] | None


class Option(Struct, frozen=True):
    """One option of a program.

    name: as the program spells it; in YAML and JSON a dot leads into a section. value: on a command line True
    is a flag, and None a bare word.
    """

    name: str
    value: Value = True

    @property
    def words(self) -> tuple[str, ...]:
        """The option on a command line, without quotes."""
        if self.value is None:
            return (self.name,)
        if self.value is True:
            return (f"--{self.name}",)
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return (f"--{self.name}", *map(str, values))


class Translation(Struct, frozen=True, kw_only=True):
    """Options that set a strategy in another program, and what it has no option for."""

    options: tuple[Option, ...]
    unsupported: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """All options as words of a command."""
        return tuple(word for each in self.options for word in each.words)

    @property
    def bash_text(self) -> str:
        """The options as an array of bash, one a line; empty where there are none."""
        lines = [f"  {join(each.words)}\n" for each in self.options]
        return f"OPTIONS=(\n{''.join(lines)})\n" if lines else ""

    @property
    def document(self) -> dict[str, object]:
        """The options as nested sections."""
        found: dict[str, object] = {}
        for each in self.options:
            *sections, name = each.name.split(".")
            inside = found
            for section in sections:
                inside = inside.setdefault(section, {})  # type: ignore[assignment]  # sections are dicts
            inside[name] = list(each.value) if isinstance(each.value, tuple) else each.value
        return found


class Program(Struct, frozen=True, kw_only=True):
    """A program that trains, and how it expresses a strategy.

    template: of its options. file: the name under which they are written. form: how they are.
    version, source: what was read. entry: what torchrun starts with the options after it; empty where it is
    the user's script. is_for_transformers: whether it trains nothing else. use: how the options are given to
    the program. checked_with: what accepted such options in the tests.
    """

    name: str
    template: str
    file: str
    form: Literal["options", "yaml", "json"]
    version: str
    source: str
    use: str
    checked_with: str
    entry: tuple[str, ...] = ()
    is_for_transformers: bool = False

    def translate(self, strategy: Strategy, model: Model = None) -> Translation:
        """The options that set the strategy, and what of it the program cannot express.

        model: sizes that some options depend on: layers of stages, experts. Where the program would not
        start, or would train something else, there are no options at all.
        """
        found = filled(self.template, program_facts(strategy, model))
        if found.refused:
            return Translation(options=(), unsupported=found.refused)
        options = tuple(_option(each) for each in found.lines if not each.startswith("#"))
        return Translation(options=options, unsupported=found.unsupported)

    def text(self, found: Translation) -> str:
        """A translation as the program reads it; empty where there are no options."""
        if not found.options:
            return ""
        if self.form == "options":
            return found.bash_text
        if self.form == "yaml":
            return yaml_text(found.document)
        return json.dumps(found.document, indent=2) + "\n"


def _option(line: str) -> Option:
    """The option of a line. Its value is read as JSON, and is text where it is none."""
    name, equals, text = line.partition(" = ")
    if not equals:
        return Option(name)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return Option(name, tuple(value) if isinstance(value, list) else value)


# The programs of programs.toml.
PROGRAMS: tuple[Program, ...] = convert(
    shipped_table(Path(__file__).with_name("programs.toml"))["program"], tuple[Program, ...]
)
