"""What the options of `plan` say, as the question that advice answers."""

import re
from collections.abc import Mapping, Sequence

from equipoise.advice.answer import MAX_ACCELERATORS
from equipoise.errors import UsageError
from equipoise.perfmodel.space import Value
from equipoise.spec.cluster import NodeFacts, cluster
from equipoise.spec.strategy import FLAGS, knob

_SIZES = re.compile(r"([0-9]{1,12})(?:\.\.([0-9]{1,12}))?")
_MOST_VALUES = 10_000


def sizes(
    accelerators: str | None, nodes: int | None, *, accelerator: str, node: NodeFacts
) -> tuple[int, int]:
    """The fewest and the most accelerators that `--accelerators` or `--nodes` ask for; one node where neither does.

    Raises UsageError where both are given, or no numbers.
    """
    if accelerators is not None and nodes is not None:
        raise UsageError("--accelerators and --nodes both state the size; keep one")
    if accelerators is None:
        size = (nodes or 1) * cluster(accelerator, **node).node_size
        if size > MAX_ACCELERATORS:
            raise UsageError(f"--nodes {nodes}; expected at most {MAX_ACCELERATORS:,} accelerators")
        return size, size
    found = _SIZES.fullmatch(accelerators.strip())
    if found is None:
        raise UsageError(f"--accelerators {accelerators!r}; expected a number, or two such as 1..1024")
    fewest = int(found[1])
    return fewest, int(found[2] or fewest)


def choices(
    fixed: Sequence[str], *, precision: str | None, trained: str | None = None
) -> Mapping[str, tuple[Value, ...]]:
    """The values that knobs may take, by field of `Strategy`.

    fixed: texts such as `tp=8`, `shard_state=2..3`, `recompute=none,full`. Raises SpecError for a knob or value that
    is not known, UsageError for one given twice or the global batch, which has an option of its own.
    """
    texts = list(fixed)
    if precision is not None:
        texts.append(f"precision={precision}")
    if trained is not None:
        texts.append(f"trained={trained}")
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, values = _values(text)
        if name in found:
            raise UsageError(f"--fix {name} is given twice; list its values with commas")
        if name == "global_batch_samples":
            raise UsageError("--fix global_batch: give --global-batch")
        found[name] = values
    return found


def _values(text: str) -> tuple[str, tuple[Value, ...]]:
    """The field and the values of one text."""
    name, equals, listed = text.partition("=")
    values: list[Value] = []
    field = name.strip()
    for item in listed.split(",") if equals else [""]:
        first, dots, last = item.strip().partition("..")
        stated = f"{name.strip()}={first}" if equals else text
        field, value = knob(stated, where="--fix")
        values.append(value)
        if dots:
            _, end = knob(f"{name.strip()}={last}", where="--fix")
            values.extend(_between(text, field, value, end))
    return field, tuple(dict.fromkeys(values))


def _between(text: str, field: str, first: Value, last: Value) -> range:
    """Whole numbers after the first up to the last."""
    if isinstance(first, str) or isinstance(last, str) or field in FLAGS or last < first:
        raise UsageError(f"--fix {text!r}: expected two numbers around '..', the smaller first")
    if last - first > _MOST_VALUES:
        raise UsageError(f"--fix {text!r}: expected at most {_MOST_VALUES:,} values")
    return range(int(first) + 1, int(last) + 1)
