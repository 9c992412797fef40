"""What the options of `plan` say, as the question that advice answers."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.advice.forecast.answer import MAX_SIZES
from equipoise.advice.links.spoken import given_collectives, refuse_unnamed
from equipoise.advice.plans.planned import ObjectiveName, Question
from equipoise.errors import UsageError
from equipoise.perfmodel.space import Value
from equipoise.spec.cluster import NodeFacts, cluster
from equipoise.spec.strategy import FLAGS, knob

_SIZES = re.compile(r"([0-9]{1,12})(?:\.\.([0-9]{1,12}))?")
_COUNTED = re.compile(r"\s*([0-9]{1,12})\s*x\s*(.+)")
_MOST_VALUES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of `plan`, as given."""

    workload: str
    accelerators: tuple[str, ...]
    sizes: str | None = None
    nodes: int | None = None
    node_size: int | None = None
    global_batch: int | None = None
    samples: float | None = None
    tokens: float | None = None
    objective: ObjectiveName = "balance"
    deadline_s: float | None = None
    budget_usd: float | None = None
    precision: str | None = None
    fixed: tuple[str, ...] = ()
    power_cap_w: float | None = None
    profile: str | None = None
    collectives: tuple[Path, ...] = ()
    top: int = 10


def questions(asked: Asked) -> Iterator[Question]:
    """One question an accelerator. Raises UsageError or SpecError for what no option can mean."""
    node: NodeFacts = {} if asked.node_size is None else {"node_size": asked.node_size}
    knobs = choices(asked.fixed, precision=asked.precision)
    counted = [counted_name(named) for named in asked.accelerators]
    timed = given_collectives(asked.collectives) if asked.collectives else None
    if timed is not None:
        refuse_unnamed(timed, [cluster(name, **node).accelerator.slug for _, name in counted])
    if all(count for count, _ in counted) and (asked.sizes or asked.nodes):
        raise UsageError(
            f"--accelerator {asked.accelerators[0]} states the size already: "
            "leave --accelerators and --nodes away"
        )
    for count, name in counted:
        fewest, most, listed = sizes(count or asked.sizes, asked.nodes, accelerator=name, node=node)
        yield Question(
            workload=asked.workload,
            accelerator=name,
            fewest=fewest,
            most=most,
            sizes=listed,
            objective=asked.objective,
            global_batch_samples=asked.global_batch,
            training_samples=asked.samples,
            training_tokens=asked.tokens,
            deadline_s=math.inf if asked.deadline_s is None else asked.deadline_s,
            budget_usd=math.inf if asked.budget_usd is None else asked.budget_usd,
            choices=knobs,
            node=node,
            power_cap_w=asked.power_cap_w,
            profile=asked.profile,
            collectives=timed,
            num_best=asked.top,
        )


def counted_name(named: str) -> tuple[str | None, str]:
    """The number before an accelerator's name, as in `2x rtx-4090`, and the name."""
    found = _COUNTED.fullmatch(named)
    return (found[1], found[2]) if found else (None, named)


def sizes(
    accelerators: str | None, nodes: int | None, *, accelerator: str, node: NodeFacts
) -> tuple[int, int, tuple[int, ...]]:
    """The fewest and the most accelerators asked for, and the sizes where several are listed; else one node.

    Raises UsageError where accelerators and nodes are both given, or no numbers.
    """
    if accelerators is not None and nodes is not None:
        raise UsageError("--accelerators and --nodes both state the size; keep one")
    if accelerators is None:
        size = (nodes or 1) * cluster(accelerator, **node).node_size
        return size, size, ()
    spans = [_SIZES.fullmatch(item.strip()) for item in accelerators.split(",")]
    ends = [(int(span[1]), int(span[2] or span[1])) for span in spans if span is not None]
    if len(ends) < len(spans) or (len(spans) > 1 and any(first != last for first, last in ends)):
        raise UsageError(
            f"--accelerators {accelerators!r}; expected a number, a range as 1..1024, or a list as 1,2,4"
        )
    listed = tuple(sorted({first for first, _ in ends}))
    if len(listed) > MAX_SIZES:
        raise UsageError(f"--accelerators has {len(listed)} numbers; expected at most {MAX_SIZES}")
    if len(listed) == 1:
        return ends[0][0], ends[0][1], ()
    return listed[0], listed[-1], listed


def choices(fixed: Sequence[str], *, precision: str | None) -> Mapping[str, tuple[Value, ...]]:
    """The values that knobs may take, by field of `Strategy`.

    fixed: texts such as `tp=8`, `shard_state=2..3`, `recompute=none,full`.
    Raises SpecError for a knob or value that is not known, UsageError for one given twice.
    """
    texts = [(text, "--fix") for text in fixed]
    if precision is not None:
        texts.append((f"precision={precision}", "--precision"))
    found: dict[str, tuple[Value, ...]] = {}
    for text, option in texts:
        name, values = _values(text, option)
        if name in found:
            raise UsageError(f"--fix {name} is given twice; list its values with commas")
        if name == "global_batch_samples":
            raise UsageError("--fix global_batch: give --global-batch")
        found[name] = values
    return found


def _values(text: str, option: str) -> tuple[str, tuple[Value, ...]]:
    """The field and the values of one text. option: where it stands, for the error."""
    name, equals, listed = text.partition("=")
    values: list[Value] = []
    field = name.strip()
    for item in listed.split(",") if equals else [""]:
        first, dots, last = item.strip().partition("..")
        stated = f"{name.strip()}={first}" if equals else text
        field, value = knob(stated, where=option)
        values.append(value)
        if dots:
            _, end = knob(f"{name.strip()}={last}", where=option)
            values.extend(_between(text, field, value, end))
    return field, tuple(dict.fromkeys(values))


def _between(text: str, field: str, first: Value, last: Value) -> range:
    """Whole numbers after the first up to the last."""
    if isinstance(first, str) or isinstance(last, str) or field in FLAGS or last < first:
        raise UsageError(f"--fix {text!r}: expected two numbers around '..', the smaller first")
    if last - first > _MOST_VALUES:
        raise UsageError(f"--fix {text!r}: expected at most {_MOST_VALUES:,} values")
    return range(int(first) + 1, int(last) + 1)
