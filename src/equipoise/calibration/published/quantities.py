"""Parsing of cells of published tables as numbers, and of units as quantities, without conversion."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from msgspec import Struct, convert
from msgspec.structs import replace

from equipoise.errors import DataError
from equipoise.files import shipped_table
from equipoise.runs.readers.cells import MAX_TEXT, TextRow, echo
from equipoise.spec.strategy import Precision, Recompute
from equipoise.units import DAY_S, HOUR_S, MICROSECOND_S, MILLISECOND_S, MINUTE_S, SI_PREFIXES

_ABSENT = frozenset({"", "n/a", "na", "none", "null", "nan", "-", "--", "?", "unknown", "not stated"})
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"\+?(?P<digits>{_DIGITS})(?P<power>e[+-]?\d{{1,3}})?\s*(?P<prefix>[km])?", re.IGNORECASE
)
# One of several values in a cell: `128 (FP32)`.
_TAGGED = re.compile(rf"\s*(?P<value>{_NUMBER.pattern})\s*(?:\((?P<tag>[^()]*)\))?\s*", re.IGNORECASE)
_BETWEEN = re.compile(r"\s+and\s+|\s+or\s+|/|:|;|,\s+")
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6}
# Prefixes of counts are powers of two: a batch of 64k is 65536.
_BINARY_PREFIXES = {"": 1.0, "k": 2.0**10, "m": 2.0**20}
_FULL_PRECISION = re.compile(r"\b(fp32|tf32|float32)\b", re.IGNORECASE)
_MIXED_PRECISION = re.compile(r"\b(amp|mixed|fp16|bf16|half|float16|bfloat16)\b", re.IGNORECASE)
_NUM_PRECISIONS = 2


def stated(row: TextRow, column: str) -> str:
    """The stripped text of a cell; empty if the column is missing or states that the value is unknown."""
    text = row.cells.get(column, "").strip()
    return "" if text.lower() in _ABSENT else text


def number(row: TextRow, column: str, *, most: float) -> float | None:
    """A cell as a number above 0 and at most `most`; None if it is not stated.

    Raises DataError for anything else.
    """
    text = stated(row, column)
    if not text:
        return None
    value = _value(text) if len(text) <= MAX_TEXT else None
    if value is None or not 0.0 < value <= most:
        raise row.refusal(column, f"a number above 0, at most {most:g}")
    return value


def count(row: TextRow, column: str, *, most: int) -> int | None:
    """A cell as a whole number from 1 to `most`; None if it is not stated.

    Raises DataError for anything else.
    """
    text = stated(row, column)
    if not text:
        return None
    value = _value(text, binary=True) if len(text) <= MAX_TEXT else None
    if value is None or not value.is_integer() or not 1 <= value <= most:
        raise row.refusal(column, f"a whole number from 1 to {most}")
    return int(value)


_MOST_SAMPLES = 10**12


def count_at(row: TextRow, column: str) -> int | None:
    """A cell as a whole number, or the one for the row's precision if it holds two; None if not stated.

    Two values without labels are for full and for mixed precision, as in the heads of tables.
    Raises DataError for anything else.
    """
    text = stated(row, column)
    value = count_in(text, row.cells.get("precision", "")) if text else None
    if text and (value is None or not 0 < value <= _MOST_SAMPLES):
        raise row.refusal(
            column, f"a whole number from 1 to {_MOST_SAMPLES}, or one for full and one for mixed precision"
        )
    return value


def count_in(text: str, precision: str) -> int | None:
    """The whole number in a text for a precision, as in `count_at`; None if there is none.

    >>> count_in("128 (FP32) / 256 (AMP)", "mixed"), count_in("16 and 32", "TF32"), count_in("64k", "TF32")
    (256, 16, 65536)
    """
    if len(text) > MAX_TEXT:
        return None
    matches = [_TAGGED.fullmatch(part) for part in _BETWEEN.split(text)]
    if not all(matches):
        return None
    parts = [match for match in matches if match]
    if len(parts) > _NUM_PRECISIONS:
        return None
    chosen = parts[0]
    if len(parts) == _NUM_PRECISIONS:
        is_full = _FULL_PRECISION.search(precision) is not None
        tagged = [
            part
            for part in parts
            if (_FULL_PRECISION if is_full else _MIXED_PRECISION).search(part["tag"] or "")
        ]
        chosen = tagged[0] if len(tagged) == 1 else parts[0 if is_full else 1]
    value = _value(chosen["value"], binary=True)
    return int(value) if value is not None and value.is_integer() else None


def _value(text: str, *, binary: bool = False) -> float | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    prefixes = _BINARY_PREFIXES if binary else _PREFIXES
    return (
        float(match["digits"].replace(",", "") + (match["power"] or ""))
        * prefixes[(match["prefix"] or "").lower()]
    )


Kind: TypeAlias = Literal[
    "time",  # of one step, or of one collective
    "run_time",  # of training on a stated number of tokens
    "steps",  # per second; likewise the next three
    "tokens",
    "samples",
    "items",  # the unit does not state what is counted
    "flop",
    "utilisation",  # fraction of the accelerator's peak
    "bus",  # byte/s of bus bandwidth as nccl-tests defines it
    "payload",  # byte/s of the message
    "efficiency",  # fraction of perfect scaling
]
Counted: TypeAlias = Literal["model", "executed"]


# How the memory of a training is counted.
MemoryCounted: TypeAlias = Literal["allocated", "reserved", "device"]


class MemoryCount(Struct, frozen=True, kw_only=True):
    """How some sources count memory. sources: pattern of names. source: reference. gib: their unit in GiB."""

    counted: MemoryCounted
    sources: str
    source: str
    gib: float = 1.0


class Dies(Struct, frozen=True, kw_only=True):
    """Accelerators (`of`) with two dies that are separate devices, and words (`counted`) that count dies."""

    of: str
    counted: str


class Words(Struct, frozen=True, kw_only=True):
    """Contents of words.toml: patterns by meaning, words by what they count, rates by abbreviation.

    held: patterns of ways to hold a load, by name. memory: how sources count memory.
    """

    collectives: dict[str, str]
    precisions: dict[Precision, str]
    recomputes: dict[Recompute, str]
    held: dict[str, str]
    counted: dict[Kind, tuple[str, ...]]
    short_rates: dict[str, str]
    dies: Dies
    memory: tuple[MemoryCount, ...]


WORDS: Final = convert(shipped_table(Path(__file__).with_name("words.toml")), Words)


def memory_count(source: str) -> MemoryCount | None:
    """How a source counts memory; None if it does not say.

    >>> memory_count("github:pytorch/torchtitan@31a17bfdb:README.md").counted
    'reserved'
    """
    found = (each for each in WORDS.memory if re.search(each.sources, source, re.IGNORECASE))
    return next(found, None)


MAX_ACCELERATORS = 10_000_000
_LARGEST_FIGURE = 1e300


def of_whole_accelerators(row: TextRow) -> TextRow:
    """The row counted by accelerators, if its hardware counts dies of which an accelerator has two.

    The innermost even axis is halved; on the data axis, a rank then has the samples of two. Communication
    between dies of one accelerator is ignored. Raises DataError for a single die.
    """
    hardware = stated(row, "hardware").lower()
    dies = count(row, "n_gpus", most=MAX_ACCELERATORS)
    is_halved = all(re.search(rf"\b(?:{words})\b", hardware) for words in (WORDS.dies.of, WORDS.dies.counted))
    if dies is None or not is_halved:
        return row
    if dies % 2:
        raise DataError(f"column n_gpus: {dies} by dies, two of which are an accelerator; expected 2, 4, ...")
    tp, cp, pp = (count(row, name, most=MAX_ACCELERATORS) or 1 for name in ("tp", "cp", "pp"))
    sizes = {"tp": tp, "cp": cp, "dp": dies // (tp * cp * pp), "pp": pp}
    halved = next((name for name, size in sizes.items() if size % 2 == 0), "dp")
    changed: dict[str, float] = {"n_gpus": dies // 2}
    if stated(row, halved):
        changed[halved] = sizes[halved] // 2
    micro, experts = count_at(row, "micro_batch"), count(row, "ep", most=MAX_ACCELERATORS) or 1
    if halved == "dp" and micro is not None:
        changed["micro_batch"] = 2 * micro
    if experts % 2 == 0:
        changed["ep"] = experts // 2
    unit = quantity(stated(row, "unit"))
    is_of_die = unit.per_accelerator and unit.kind not in {"utilisation", "time"}
    for name in ("memory_gib", "measured") if is_of_die else ("memory_gib",):
        value = number(row, name, most=_LARGEST_FIGURE)
        if value is not None:
            changed[name] = 2 * value
    texts = {name: f"{value:.12g}" for name, value in changed.items()}
    return replace(row, cells={**row.cells, **texts})


class Quantity(Struct, frozen=True, kw_only=True):
    """The meaning of a unit. kind: the quantity. si: one unit in SI.

    per_accelerator: whether it is for one accelerator; None if the unit does not say.
    counted: FLOP of the model, or including recomputation. tokens: for a run_time.
    """

    kind: Kind
    si: float = 1.0
    per_accelerator: bool | None = None
    counted: Counted = "executed"
    tokens: float = 0.0

    @property
    def is_rate(self) -> bool:
        """Whether more is faster."""
        return self.kind not in {"time", "run_time"}


_TIME_S = {
    **dict.fromkeys(("us", "usec", "µs", "μs", "microseconds"), MICROSECOND_S),
    **dict.fromkeys(("ms", "msec", "milliseconds"), MILLISECOND_S),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), MINUTE_S),
    **dict.fromkeys(("h", "hr", "hour", "hours"), HOUR_S),
    **dict.fromkeys(("d", "day", "days"), DAY_S),
}
# SI prefixes in lower case; `b` also means a billion (tokens).
_SI = {prefix.lower(): factor for prefix, factor in SI_PREFIXES.items()} | {"b": SI_PREFIXES["G"]}
_SECOND = "|".join(sorted(_TIME_S, key=len, reverse=True))
_PER = r"\s*(?:/|per)\s*"
_STEP_TIME = re.compile(rf"(?P<time>{_SECOND})(?P<of_step>{_PER}(?:{'|'.join(WORDS.counted['steps'])}))?")
_COUNTED: dict[str, Kind] = {word: kind for kind, words in WORDS.counted.items() for word in words}
_RATE = re.compile(rf"(?P<si>[kmb])?\s?(?P<item>{'|'.join(_COUNTED)}){_PER}(?P<time>{_SECOND})")
_FLOP_RATE = re.compile(r"(?P<si>[gtpe])?flops?(?:\s*(?:/|per)\s*s(?:ec(?:ond)?)?|ps)?")
_RUN_TIME = re.compile(rf"(?P<time>{_SECOND}) for (?P<tokens>\d+(?:\.\d+)?)\s?(?P<si>[kmbt])? tokens")
_BYTE_RATE = re.compile(r"(?P<si>[KMGT])(?P<binary>i?)(?P<unit>B|b|bit)(?:/s|ps)", re.ASCII)
_ONE = re.compile(rf"{_PER}(?:gpu|gpus|device|accelerator|chip|card|gcd|tpu|hpu|npu|core)\b")
_ALL = re.compile(r"\b(?:total|in total|overall|aggregate|all (?:gpus|devices|accelerators)|global|system)\b")
_ASIDE = re.compile(r"\([^()]*\)")
# A quantity by name, with its unit in brackets or after `in`: `iteration time (ms)`.
_NAMED = re.compile(
    r"(?:throughput|speed|performance|(?:mean |median |average )?(?:(?:training )?(?:step|iteration) )?"
    r"(?:time|latency)(?: (?:per|of an?) (?:step|iteration))?)"
    r"(?:,? in |: ?| ?[(\[])(?P<unit>[^()\[\]]+)[)\]]?",
    re.IGNORECASE,
)
_BITS_PER_BYTE = 8.0
_MOST_KEPT = 4096  # size of the cache of units; tables repeat few


def quantity(unit: str) -> Quantity:
    """Parse a unit.

    Raises DataError for an unknown unit.

    >>> quantity("ms/iteration").si, quantity("tokens/s/GPU").per_accelerator, quantity("% MFU").kind
    (0.001, True, 'utilisation')
    """
    text = " ".join(unit.split())
    if len(text) <= MAX_TEXT:
        named = _NAMED.fullmatch(text)
        of_step = "/step" if re.search(r"step|iteration", text, re.IGNORECASE) else ""
        for wording in (named["unit"], f"{named['unit']}{of_step}", text) if named else (text,):
            found = _read(wording)
            if found is not None:
                return found
    raise DataError(
        f"unit {echo(unit)} is not known; expected one such as ms/iteration, s/iteration, us, tokens/s/GPU, "
        "samples/s, model TFLOP/s/GPU, % MFU, busbw GB/s, or of a whole run h for 300B tokens"
    )


@lru_cache(maxsize=_MOST_KEPT)
def _read(text: str) -> Quantity | None:
    """The quantity of a unit's text; None if it is not recognised."""
    for reading in (_share, _run_time, _message_rate, _flop_rate, _time, _counted_rate):
        found = reading(text if reading is _message_rate else text.lower())
        if found is not None:
            return found
    return None


def _share(text: str) -> Quantity | None:
    """A fraction of the peak or of perfect scaling."""
    si = 0.01 if "%" in text or re.search(r"\bpercent\b", text) else 1.0
    words = _without_brackets(text).replace("%", " ").replace("percent", " ").split()
    match [word for word in words if word not in {"in", "of", "fraction"}]:
        case ["mfu"] | ["model", ("flop" | "flops"), "utilization" | "utilisation"]:
            return Quantity(kind="utilisation", si=si, per_accelerator=True, counted="model")
        case ["hfu"] | ["hardware", ("flop" | "flops"), "utilization" | "utilisation"]:
            return Quantity(kind="utilisation", si=si, per_accelerator=True, counted="executed")
        case ["scaling", "efficiency"] | ["parallel", "efficiency"] | ["weak", "scaling", "efficiency"]:
            return Quantity(kind="efficiency", si=si)
    return None


def _run_time(text: str) -> Quantity | None:
    match = _RUN_TIME.fullmatch(text)
    if match is None:
        return None
    return Quantity(
        kind="run_time", si=_TIME_S[match["time"]], tokens=float(match["tokens"]) * _SI[match["si"] or ""]
    )


def _message_rate(text: str) -> Quantity | None:
    """Bandwidths as nccl-tests prints them; upper and lower case distinguish bytes from bits."""
    words = text.replace("(", " ").replace(")", " ").split()
    rates = [match for word in words if (match := _BYTE_RATE.fullmatch(word))]
    lowered = {word.lower() for word in words}
    if len(rates) != 1:
        return None
    power = "KMGT".index(rates[0]["si"]) + 1
    si = (1024.0 if rates[0]["binary"] else 1000.0) ** power
    si /= 1.0 if rates[0]["unit"] == "B" else _BITS_PER_BYTE
    if lowered & {"busbw", "bus"}:
        return Quantity(kind="bus", si=si)
    return Quantity(kind="payload", si=si) if lowered & {"algbw", "algorithm"} else None


def _flop_rate(text: str) -> Quantity | None:
    """FLOP per second; a word in the unit or in brackets may state which FLOP are counted."""
    plain = _without_brackets(text)
    rest, per_accelerator = _per_accelerator(plain)
    if per_accelerator is None and _ALL.search(text):
        per_accelerator = False
    words = rest.split()
    counted: Counted = "executed"
    if {"model"} & {*words} or re.search(r"\b(?:model flops?|without recompute|excl)", text):
        counted = "model"
    rate = _FLOP_RATE.fullmatch(" ".join(word for word in words if word not in _FLOP_WORDS))
    if rate is None:
        return None
    return Quantity(kind="flop", si=_SI[rate["si"] or ""], per_accelerator=per_accelerator, counted=counted)


_FLOP_WORDS = frozenset({"model", "hardware", "executed", "achieved", "bf16", "fp16", "fp8"})


def _time(text: str) -> Quantity | None:
    """Time of a step. Minutes and longer units need a mention of a step; otherwise they are of a run."""
    match = _STEP_TIME.fullmatch(_without_brackets(text))
    if match is None or (_TIME_S[match["time"]] >= MINUTE_S and not match["of_step"]):
        return None
    return Quantity(kind="time", si=_TIME_S[match["time"]])


def _counted_rate(text: str) -> Quantity | None:
    """Some counted thing per second."""
    plain = WORDS.short_rates.get(_without_brackets(text), _without_brackets(text))
    if plain == "throughput":
        return Quantity(kind="items")
    rest, per_accelerator = _per_accelerator(plain)
    match = _RATE.fullmatch(rest)
    if match is None:
        return None
    si = _SI[match["si"] or ""] / _TIME_S[match["time"]]
    return Quantity(kind=_COUNTED[match["item"]], si=si, per_accelerator=bool(per_accelerator))


def _without_brackets(text: str) -> str:
    """A unit without text in brackets."""
    while (less := _ASIDE.sub(" ", text)) != text:
        text = less
    return " ".join(text.split())


def _per_accelerator(text: str) -> tuple[str, bool | None]:
    """A unit without words such as `per GPU` or `total`, and whether it is per accelerator, if stated."""
    if _ONE.search(text):
        return _ONE.sub("", text).strip(), True
    if _ALL.search(text):
        return " ".join(_ALL.sub("", text).split()), False
    return text.strip(), None
