"""What a unit, as it is written beside a published figure, says that the figure is. No figure is converted
here.
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from equipoise.errors import DataError
from equipoise.runs.readers.cells import MAX_TEXT, echo
from equipoise.units import DAY_S, HOUR_S, MICROSECOND_S, MILLISECOND_S, MINUTE_S, SI_PREFIXES

Kind: TypeAlias = Literal[
    "time",  # of one step, or of one collective
    "run_time",  # of training on so many tokens
    "steps",  # a second; likewise the next three
    "tokens",
    "samples",
    "items",  # of what is counted, the unit says nothing
    "flop",
    "utilisation",  # a share of the accelerator's peak
    "bus",  # byte/s as nccl-tests defines the bandwidth of the bus
    "payload",  # byte/s of the message
    "efficiency",  # a share of perfect scaling
]
Counted: TypeAlias = Literal["model", "executed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What a figure is: its kind, and one unit of it in SI.

    per_accelerator: whether it is of one accelerator; None where the unit does not say.
    counted: FLOP the model asks for, or also those of recomputation. tokens: of a run_time.
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
# Prefixes in lower case; people also write a billion tokens as `b`.
_SI = {prefix.lower(): factor for prefix, factor in SI_PREFIXES.items()} | {"b": SI_PREFIXES["G"]}
_SECOND = "|".join(sorted(_TIME_S, key=len, reverse=True))
_PER = r"\s*(?:/|per)\s*"
_TOKENS = ("token", "tokens", "tok", "toks")
_SAMPLES = (
    *(
        "sample",
        "samples",
        "img",
        "imgs",
        "image",
        "images",
        "sequence",
        "sequences",
        "seq",
        "seqs",
        "sentences",
    ),
    *("mels", "frames", "utterances", "examples", "records", "volumes", "molecules", "clips"),
)
_STEPS = ("it", "iter", "iters", "iteration", "iterations", "step", "steps", "batch", "batches")

# Abbreviations in use: tokens per second, and tokens per GPU and second.
_SHORT_RATES = {"tps": "tokens/s", "tps/gpu": "tokens/s/gpu", "tgs": "tokens/s/gpu", "fps": "frames/s"}

_STEP_TIME = re.compile(rf"(?P<time>{_SECOND})(?:{_PER}(?:{'|'.join(_STEPS)}))?")
_COUNTED: dict[str, Kind] = {
    **dict.fromkeys(_TOKENS, "tokens"),
    **dict.fromkeys(_SAMPLES, "samples"),
    **dict.fromkeys(_STEPS, "steps"),
}
_RATE = re.compile(rf"(?P<si>[kmb])?\s?(?P<item>{'|'.join(_COUNTED)}){_PER}(?P<time>{_SECOND})")
_FLOP_RATE = re.compile(r"(?P<si>[gtpe])?flops?(?:\s*(?:/|per)\s*s(?:ec(?:ond)?)?|ps)?")
_RUN_TIME = re.compile(rf"(?P<time>{_SECOND}) for (?P<tokens>\d+(?:\.\d+)?)\s?(?P<si>[kmbt])? tokens")
_BYTE_RATE = re.compile(r"(?P<si>[KMGT])i?(?P<unit>B|b|bit)(?:/s|ps)", re.ASCII)
_ONE = re.compile(rf"{_PER}(?:gpu|gpus|device|accelerator|chip|card|gcd|tpu|hpu|npu|core)\b")
_ALL = re.compile(r"\b(?:total|in total|overall|aggregate|all (?:gpus|devices|accelerators)|global|system)\b")
_ASIDE = re.compile(r"\([^()]*\)")
# A quantity by its name, with its unit in brackets or behind `in`: `iteration time (ms)`.
_NAMED = re.compile(
    r"(?:throughput|speed|performance|(?:mean |median |average )?(?:(?:training )?(?:step|iteration) )?"
    r"(?:time|latency)(?: (?:per|of an?) (?:step|iteration))?)"
    r"(?:,? in |: ?| ?[(\[])(?P<unit>[^()\[\]]+)[)\]]?",
    re.IGNORECASE,
)
_BITS_PER_BYTE = 8.0


def quantity(unit: str) -> Quantity:
    """What a unit says.

    Raises DataError for a unit that is not known.

    >>> quantity("ms/iteration").si, quantity("tokens/s/GPU").per_accelerator, quantity("% MFU").kind
    (0.001, True, 'utilisation')
    """
    text = " ".join(unit.split())
    if len(text) <= MAX_TEXT:
        named = _NAMED.fullmatch(text)
        for wording in (named["unit"], text) if named else (text,):
            found = _read(wording)
            if found is not None:
                return found
    raise DataError(
        f"unit {echo(unit)} is not known; expected one such as ms/iteration, s/iteration, us, tokens/s/GPU, "
        "samples/s, model TFLOP/s/GPU, % MFU or busbw GB/s"
    )


def _read(text: str) -> Quantity | None:
    """What a wording says; None where it is none of a unit."""
    for reading in (_share, _run_time, _message_rate, _flop_rate, _time, _counted_rate):
        found = reading(text if reading is _message_rate else text.lower())
        if found is not None:
            return found
    return None


def _share(text: str) -> Quantity | None:
    """A share of the peak or of perfect scaling."""
    si = 0.01 if "%" in text or re.search(r"\bpercent\b", text) else 1.0
    words = _plain(text).replace("%", " ").replace("percent", " ").split()
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
    """Bandwidths as nccl-tests prints them; the case of letters tells bytes from bits."""
    words = text.replace("(", " ").replace(")", " ").split()
    rates = [match for word in words if (match := _BYTE_RATE.fullmatch(word))]
    lowered = {word.lower() for word in words}
    if len(rates) != 1:
        return None
    si = _SI[rates[0]["si"].lower()] / (1.0 if rates[0]["unit"] == "B" else _BITS_PER_BYTE)
    if lowered & {"busbw", "bus"}:
        return Quantity(kind="bus", si=si)
    return Quantity(kind="payload", si=si) if lowered & {"algbw", "algorithm"} else None


def _flop_rate(text: str) -> Quantity | None:
    """FLOP a second; a word in the unit or in brackets may say which are counted."""
    plain = _plain(text)
    rest, per_accelerator = _spread(plain)
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
    match = _STEP_TIME.fullmatch(_plain(text))
    return None if match is None else Quantity(kind="time", si=_TIME_S[match["time"]])


def _counted_rate(text: str) -> Quantity | None:
    """So many of something a second."""
    plain = _SHORT_RATES.get(_plain(text), _plain(text))
    if plain == "throughput":
        return Quantity(kind="items")
    rest, per_accelerator = _spread(plain)
    match = _RATE.fullmatch(rest)
    if match is None:
        return None
    si = _SI[match["si"] or ""] / _TIME_S[match["time"]]
    return Quantity(kind=_COUNTED[match["item"]], si=si, per_accelerator=bool(per_accelerator))


def _plain(text: str) -> str:
    """A unit without what stands in brackets."""
    while (less := _ASIDE.sub(" ", text)) != text:
        text = less
    return " ".join(text.split())


def _spread(text: str) -> tuple[str, bool | None]:
    """A unit without the words that say over what it is summed, and what they say: one accelerator, all, or
    nothing.
    """
    if _ONE.search(text):
        return _ONE.sub("", text).strip(), True
    if _ALL.search(text):
        return " ".join(_ALL.sub("", text).split()), False
    return text.strip(), None
