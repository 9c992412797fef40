"""How a program that trains expresses each field of a strategy, and how its options are written.

A program is a table: rules that each state which fields of `Strategy` they express, as options of the program
or as a reason why it has none. tests/launch/test_programs.py holds every program to every field.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import join
from typing import Literal, TypeAlias

from msgspec import Struct

from equipoise.spec.strategy import Strategy
from equipoise.spec.transformer import Transformer

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


Expressed: TypeAlias = Iterator[Option | str]  # a text is a reason why there is no option
Model: TypeAlias = Transformer | None


class FieldRule(Struct, frozen=True, kw_only=True):
    """How fields of a strategy are expressed in a program.

    express: of a strategy and the sizes of its model, its options and what has none. derived: why a field has
    no option of its own: what the program computes it from; empty where it has one.
    """

    fields: tuple[str, ...]
    express: Callable[[Strategy, Model], Expressed] | None = None
    derived: str = ""


def master_weights_rule(instead: str) -> FieldRule:
    """The rule of a program that has no option to train weights of 2 bytes alone.

    instead: what it does, or what to do.
    """

    def express(strategy: Strategy, _: Model) -> Expressed:
        if not strategy.master_weights:
            yield f"weights of 2 bytes without a copy of 4: {instead}"

    return FieldRule(fields=("master_weights",), express=express)


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

    file: the name under which its options are written. form: how they are. version, source: what was read.
    refuse: why it would not start, or would train something else: then there are no options at all.
    entry: what torchrun starts with the options after it; empty where it is the user's script.
    is_for_transformers: whether it trains nothing else. use: how the options are given to the program.
    checked_with: what accepted such options in the tests.
    """

    name: str
    file: str
    form: Literal["options", "yaml", "json"]
    version: str
    source: str
    rules: tuple[FieldRule, ...]
    use: str
    checked_with: str
    refuse: Callable[[Strategy, Model], Iterator[str]] | None = None
    entry: tuple[str, ...] = ()
    is_for_transformers: bool = False

    def translate(self, strategy: Strategy, model: Model = None) -> Translation:
        """The options that set the strategy, and what of it the program cannot express.

        model: sizes that some options depend on: layers of stages, experts.
        """
        refused = tuple(self.refuse(strategy, model)) if self.refuse else ()
        if refused:
            return Translation(options=(), unsupported=refused)
        found = [
            each for rule in self.rules if rule.express is not None for each in rule.express(strategy, model)
        ]
        return Translation(
            options=tuple(each for each in found if isinstance(each, Option)),
            unsupported=tuple(each for each in found if isinstance(each, str)),
        )

    def text(self, found: Translation) -> str:
        """A translation as the program reads it; empty where there are no options."""
        if not found.options:
            return ""
        if self.form == "options":
            return found.bash_text
        if self.form == "yaml":
            return yaml_text(found.document)
        return json.dumps(found.document, indent=2) + "\n"


# Reasons that several programs share why a field has no option.


def adapters(strategy: Strategy) -> str:
    """The adapters of a strategy, in words."""
    return f"{strategy.trained} adapters of rank {strategy.lora_rank}"


def adapters_in_code(strategy: Strategy, _: Model) -> Expressed:
    """Adapters, for programs that train the model they are given."""
    if strategy.trained != "full":
        yield f"{adapters(strategy)}: wrap the model with peft in your own code"


def compression(strategy: Strategy, _: Model) -> Expressed:
    """Compressed gradients, for programs that exchange them as they are."""
    if strategy.compression != "none":
        rank = f" of rank {strategy.compression_rank}" if strategy.compression_rank else ""
        yield f"{strategy.compression} gradients{rank}"


def no_activation_offload(strategy: Strategy, _: Model) -> Expressed:
    """Activations in the host's memory, for programs that leave them on the accelerator."""
    if strategy.activation_offload:
        yield "activations in the host's memory: it has no option to copy them"


def averaging(strategy: Strategy, _: Model) -> Expressed:
    """Weights averaged every few steps, for programs that exchange gradients in every step."""
    if strategy.sync_period > 1:
        yield f"averaging of weights every {strategy.sync_period} steps instead of gradients in each"


def kernels_in_code(strategy: Strategy, _: Model) -> Expressed:
    """Attention and loss, for programs that leave them to the code of the model."""
    attention = "fused" if strategy.fused_attention else "unfused"
    yield f"{attention} attention: the code of your model chooses it"
    loss = "a fused" if strategy.fused_loss else "an unfused"
    yield f"{loss} loss: the code of your model chooses it"


def refuse_pipeline(strategy: Strategy, _: Model) -> Iterator[str]:
    """Pipelines, for programs whose configuration has none: without, processes and batch do not agree."""
    if strategy.pp > 1:
        yield f"pp={strategy.pp}: its configuration has no pipeline"
    if strategy.interleave > 1:
        yield f"{strategy.interleave} chunks per rank: its configuration has no pipeline"
    yield from only_1f1b(strategy)


def stage_layers(num_layers: int, num_ranks: int, interleave: int = 1) -> tuple[int, ...]:
    """Layers of each stage of a pipeline in order: all full but those of the last rank, the last least.

    Where that leaves a stage none, stages are as even as they go, fuller ones first.
    Source: the performance model shares layers out so (perfmodel.estimate.stages).

    >>> stage_layers(10, 4), stage_layers(13, 2, 2), stage_layers(9, 8)
    ((3, 3, 3, 1), (4, 4, 4, 1), (2, 1, 1, 1, 1, 1, 1, 1))
    """
    num_stages = num_ranks * interleave
    fullest = -(-num_layers // num_stages)
    counts, missing = [fullest] * num_stages, fullest * num_stages - num_layers
    for stage in range(num_stages - 1, 0, -num_ranks):
        counts[stage] -= min(missing, fullest - 1)
        missing -= fullest - counts[stage]
    if missing:
        least, num_fuller = divmod(num_layers, num_stages)
        return (least + 1,) * num_fuller + (least,) * (num_stages - num_fuller)
    return tuple(counts)


def only_1f1b(strategy: Strategy) -> Iterator[str]:
    """Schedules of pipelines, for programs that have no other than 1F1B."""
    if strategy.schedule != "1f1b":
        yield f"schedule={strategy.schedule}: its pipelines run 1F1B"


# Words that YAML 1.1 reads as something other than text.
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")


def yaml_text(document: Mapping[str, object]) -> str:
    """A document of nested mappings, lists and scalars as YAML.

    Text stands between quotes unless it is one plain word, or as a block where it has lines, so that no name
    of a user's can be read as anything but text.

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
            yield from _yaml_entry(f"{_scalar(str(name))}:", inside)
    elif isinstance(value, Sequence):
        for inside in value:
            first, *rest = [_scalar(inside)] if _is_scalar(inside) else _yaml_lines(inside)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _yaml_entry(head: str, inside: object) -> Iterator[str]:
    if isinstance(inside, str) and _is_block(inside):
        yield f"{head} |"
        yield from (f"  {line}" if line else "" for line in inside.removesuffix("\n").split("\n"))
    elif _is_scalar(inside):
        yield f"{head} {_scalar(inside)}"
    else:
        yield head
        yield from (f"  {line}" for line in _yaml_lines(inside))


def _is_block(text: str) -> bool:
    """Whether a block of YAML keeps the text as it is."""
    *lines, last = text.split("\n")
    plain = all(line.isprintable() and line == line.rstrip() for line in lines)
    return (
        not last and bool(lines) and plain and not lines[0].startswith(" ") and bool(lines[0] and lines[-1])
    )


def _is_scalar(value: object) -> bool:
    return isinstance(value, str) or not isinstance(value, (Mapping, Sequence)) or not value


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    # JSON's quotes are YAML's too.
    return json.dumps(value, ensure_ascii=not (isinstance(value, str) and value.isprintable()))
