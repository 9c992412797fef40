"""What `--fix` and `--precision` state: the values that knobs of the strategy may take."""

from collections.abc import Mapping, Sequence

from equipoise.errors import UsageError
from equipoise.perfmodel.space import Value
from equipoise.spec.strategy import FLAGS, knob

_MOST_VALUES = 10_000


def knob_choices(fixed: Sequence[str], *, precision: Sequence[str] = ()) -> Mapping[str, tuple[Value, ...]]:
    """The values that knobs may take, by field of `Strategy`.

    fixed: texts such as `tp=8`, `zero_stage=2..3`, `recompute=none,full`.
    Raises SpecError for a knob or value that is not known, UsageError for one given twice.
    """
    texts = [(text, "--fix") for text in fixed]
    if precision:
        texts.append((f"precision={','.join(precision)}", "--precision"))
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
