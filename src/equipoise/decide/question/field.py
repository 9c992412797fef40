"""The declaration of a question's field, and the parsers of its values.

The options of verbs, the keys of question files, the forms of the dashboard, the arguments of the Python
functions and the tables of the docs are derived from these declarations; nothing else may repeat them.
"""

import keyword
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import UsageError, in_a_line
from equipoise.files import one_path
from equipoise.units import HOUR_S, duration_s

Kind: TypeAlias = Literal[
    "text",  # one word or name
    "texts",  # several, the option is repeated
    "names",  # several, the option is repeated or they are separated by commas
    "list",  # several, as of "names"
    "choice",  # one of `choices`
    "flag",
    "number",
    "count",  # a whole number of things: 512, 10k, 1T
    "amount",  # a count that need not be whole: tokens, samples
    "duration",  # 12 (hours), 90min, 7d
    "sizes",  # numbers of accelerators: 8, 1..1024, 8,16,32, or the option repeated with numbers
    "per_system",  # VALUE, or SYSTEM=VALUE; the option is repeated
    "path",
    "paths",
]
Group: TypeAlias = Literal[
    "training", "systems", "objective", "limits", "money", "buying", "evidence", "strategy", "catalogue"
]
GROUPS: Final[Mapping[Group, str]] = {
    "training": "What to train",
    "systems": "On which accelerators",
    "objective": "What counts",
    "limits": "Limits",
    "money": "Money and power",
    "buying": "Buying",
    "evidence": "Your own evidence",
    "strategy": "Parallel strategy",
    "catalogue": "Data and catalogue",
}
Verb: TypeAlias = Literal["advise", "plan", "predict", "allocate"]

MAX_ACCELERATORS: Final = 10_000_000
MAX_SIZES: Final = 64
# The power of `Field.multiple` for each suffix.
_MULTIPLES: Final = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4, "p": 5}
# Words with their power of a thousand, whatever `Field.multiple` is.
_NUMBER_WORDS: Final = {
    "thousand": 1,
    "mn": 2,
    "mio": 2,
    "million": 2,
    "bn": 3,
    "billion": 3,
    "tn": 4,
    "trillion": 4,
}
# Allows more digits than Python's shortest repr of any number from 0.0001 on.
NUMBER: Final = r"(?:[0-9]{1,18}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
_AMOUNT: Final = re.compile(
    rf"({NUMBER}(?:e[+-]?[0-9]{{1,2}})?)\s?([kmgbtp]?|{'|'.join(_NUMBER_WORDS)})", re.IGNORECASE
)

_GROUPED: Final = re.compile(r"[0-9]{1,3}([,_][0-9]{3})+(?![0-9])")
# Groups of digits that may be a list of numbers or one number with thousands separators, as in 1,024.
_LIST_LIKE: Final = re.compile(r"[1-9][0-9]{0,2}(,[1-9][0-9]{2})+")
_MAX_LIST_RATIO: Final = 4  # between consecutive numbers of the lists that people ask about
_DOLLARS: Final = re.compile(r"(?:US\$|\$|USD\b)?\s*([0-9.][^\s$]*?)\s*(?:\$|USD)?", re.IGNORECASE)


# Currencies with a symbol of their own.
_SIGNS: Final = {"EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹", "KRW": "₩"}
# A currency other than the dollar in the text of an amount: its symbol, or three letters after or before it.
_OTHER_CURRENCY: Final = re.compile(
    rf"([{''.join(_SIGNS.values())}])|\d[kmgbtp]?\s?((?!usd)[a-z]{{3}})$|^((?!usd)[a-z]{{3}})\s?\d",
    re.IGNORECASE,
)


class Field(Struct, frozen=True, kw_only=True):
    """One field of a question.

    option: its name on the command line (`--option`), in files and forms, and as a Python argument. also:
    aliases, kept for compatibility. guesses: names that people try, for suggestions in messages. unit: of the
    stored value, SI. least, most: bounds of a number in that unit; is_open: `least` itself is refused.
    multiple: the value of the suffix `k`. unset: the default, in words. group: of the fields with which it is
    displayed. verbs: that take it.
    """

    option: str
    kind: Kind
    help: str
    group: Group
    verbs: frozenset[Verb]
    metavar: str | None = None
    unit: str | None = None
    least: float | None = None
    most: float | None = None
    is_open: bool = False
    choices: tuple[str, ...] = ()
    unset: str | None = None
    multiple: int = 1000
    also: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    value_kind: Kind | None = None  # of the VALUE of a `per_system` field

    def read(self, given: object) -> Any:  # noqa: ANN401 - each kind has its own type
        """The stored value for input given as text, number, list or path.

        Raises UsageError, naming the option, what was found and what was expected.
        """
        return _READERS[self.kind](self, given)

    @property
    def scale(self) -> float:
        """The factor from a number without a unit to `unit`."""
        return HOUR_S if self.kind == "duration" else 1.0

    @property
    def key(self) -> str:
        """The name in files and forms."""
        return self.option.replace("-", "_")

    @property
    def argument(self) -> str:
        """The name in Python: the key, with an underscore appended to keywords (`from_`)."""
        return f"{self.key}_" if keyword.iskeyword(self.key) else self.key

    @property
    def is_repeated(self) -> bool:
        """Whether the option may be repeated to give several values."""
        return self.kind in {"texts", "names", "list", "sizes", "per_system", "paths"}

    @property
    def also_keys(self) -> tuple[str, ...]:
        """The aliases, as keys."""
        return tuple(each.replace("-", "_") for each in self.also)

    def check(self, value: float) -> float:
        """The number if it is within the bounds. Raises UsageError otherwise."""
        low, high = self.least, self.most
        is_low = low is not None and (value <= low if self.is_open else value < low)
        if not math.isfinite(value) or is_low or (high is not None and value > high):
            raise UsageError(f"--{self.option} is {value / self.scale:,.10g}; expected {self.bounds}")
        return value

    @property
    def bounds(self) -> str:
        """The valid numbers in words, in the unit of a number without one."""
        noun = "a whole number" if self.kind in {"count", "sizes"} else "a number"
        if self.kind == "duration":
            noun = "hours, or a time with its unit (90min, 7d),"
        ends = []
        if self.least is not None:
            ends.append(f"{'above' if self.is_open else 'from'} {self.least / self.scale:g}")
        if self.most is not None:
            word = "at most" if self.least is None else "and at most" if self.is_open else "to"
            unit = " hours" if self.kind == "duration" else ""
            ends.append(f"{word} {self.most / self.scale:,.10g}{unit}")
        return " ".join([noun, *ends])

    @property
    def examples(self) -> str:
        """Examples of how to write the number, to append to what is expected."""
        if self.kind == "sizes":
            return ", a range as 8..512 or a list as 8,16,32"
        written = {"512": 512.0, "10k": 1e4, "1T": 1e12, "1e12": 1e12}
        known = [text for text, number in written.items() if self.most is None or number <= self.most]
        return f", such as {' or '.join([', '.join(known[:-1]), known[-1]])}" if len(known) > 1 else ""


def _text(field: Field, given: object) -> str:
    if not isinstance(given, (str, int, float, PathLike)):
        raise UsageError(f"--{field.option} is {in_a_line(given)}; expected one {field.metavar or 'name'}")
    text = str(given).strip()
    if not text:
        raise UsageError(f"--{field.option} is empty; expected {field.metavar or 'a name'}")
    return text


def _texts(field: Field, given: object) -> tuple[str, ...]:
    if isinstance(given, Mapping):
        given = [f"{name}={_listed_text(value)}" for name, value in given.items()]
    return tuple(_text(field, each) for each in _several(given))


def _listed_text(value: object) -> str:
    """One or several values of a TOML table, as the text of an option."""
    return ",".join(str(each).lower() if isinstance(each, bool) else str(each) for each in _several(value))


def _several(given: object) -> Sequence[object]:
    """The value as a sequence, wrapped unless it is one."""
    return given if isinstance(given, (list, tuple)) else [given]


def _names(field: Field, given: object) -> tuple[str, ...]:
    found = []
    for each in _several(given):
        names = [name.strip() for name in str(each).split(",")]
        if len(names) > 1 and not all(names):
            raise UsageError(f"--{field.option} is {str(each)!r}; expected a name between commas")
        found += [_text(field, name) for name in names]
    return tuple(found)


def _list(field: Field, given: object) -> tuple[str, ...]:
    texts = (text for each in _several(given) for text in str(each).split(","))
    found = tuple(dict.fromkeys(_text(field, each) for each in texts))
    return tuple(_one_of(field, each) for each in found) if field.choices else found


def _one_of(field: Field, given: object) -> str:
    text = _text(field, given).replace("-", "_")
    if text not in field.choices:
        raise UsageError(f"--{field.option} is {str(given)!r}; expected one of {', '.join(field.choices)}")
    return text


def _flag(field: Field, given: object) -> bool:
    if isinstance(given, bool):
        return given
    text = str(given).strip().lower()
    if text in {"yes", "true", "1", "on"}:
        return True
    if text in {"no", "false", "0", "off", ""}:
        return False
    raise UsageError(f"--{field.option} is {given!r}; expected true or false")


def _number(field: Field, given: object) -> float:
    try:
        value = float(_ungrouped(field, given))
    except ValueError:
        raise UsageError(
            f"--{field.option} is {str(given)!r}; expected {_expected(field)}{_other_currency(field, given)}"
        ) from None
    return field.check(value * field.scale)


def _expected(field: Field) -> str:
    """The valid numbers of a field in words, with their unit."""
    return f"{field.bounds} ({field.unit})" if field.unit else field.bounds


def _other_currency(field: Field, given: object) -> str:
    """How to give an amount in another currency, if the text has one; else empty."""
    found = _OTHER_CURRENCY.search(str(given)) if (field.unit or "").startswith("USD") else None
    if found is None:
        return ""
    named = found[1] or found[2] or found[3]
    own = next((name for name, sign in _SIGNS.items() if sign == named), named.upper())
    return f"; in {own} with --currency {own}=RATE, what one US dollar is in {own}"


def _amount(field: Field, given: object) -> float:
    found = _parsed(_ungrouped(field, given), field.multiple)
    if found is None:
        expected = f"{_expected(field)}{field.examples}{_other_currency(field, given)}"
        raise UsageError(f"--{field.option} is {str(given)!r}; expected {expected}")
    return field.check(found * field.scale)


def _ungrouped(field: Field, given: object) -> str:
    """The text of a number without thousands separators and without its own unit.

    A comma elsewhere and any other currency are left in the text, and refused later.
    """
    text, unit = str(given).strip(), field.unit or ""
    if unit.startswith("USD"):
        dollars = _DOLLARS.fullmatch(text)
        text = text if dollars is None else dollars[1]
    elif unit:
        written = re.fullmatch(rf"(.*\d.*?)\s*{re.escape(unit.removesuffix('s'))}s?", text, re.IGNORECASE)
        text = text if written is None else written[1]
    return _without_marks(text)


def _without_marks(text: str) -> str:
    """The text of a number without thousands separators."""
    return text.replace(",", "").replace("_", "") if _GROUPED.match(text) else text


def in_usd(given: object, own: tuple[str, float]) -> object:
    """The input for a field in US dollars, with amounts in the user's currency converted to dollars.

    own: name of the user's currency, and its amount per US dollar. Other text is left unchanged.

    >>> own = ("EUR", 0.5)
    >>> in_usd("17k EUR", own), in_usd(["h100=€1.5", "b200=4"], own), in_usd("3 GBP", own)
    ('34000.0', ['h100=3.0', 'b200=4'], '3 GBP')
    """
    if isinstance(given, Mapping):
        return {name: in_usd(each, own) for name, each in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(in_usd(each, own) for each in given)
    if not isinstance(given, str):
        return given
    name = rf"(?:{own[0]}\b|{_SIGNS.get(own[0], own[0])})"
    number = rf"([0-9][0-9.,_]*(?:\s?(?:{'|'.join(_NUMBER_WORDS)}|[kmgbtp]))?)"

    def converted(found: re.Match[str]) -> str:
        text = (found[1] or found[2]).strip()
        amount = _parsed(_without_marks(text), 1000)
        return found[0] if amount is None else repr(amount / own[1])

    return re.sub(rf"{number}\s*{name}|{name}\s*{number}(?![a-z])", converted, given, flags=re.IGNORECASE)


def _parsed(text: str, multiple: int) -> float | None:
    """The number in a text with a suffix or a word; None if it is not one. multiple: the value of `k`."""
    found = _AMOUNT.fullmatch(text)
    if found is None:
        return None
    # Exact until the end: 1.001k is 1001, not slightly less.
    number, suffix = Decimal(found[1]), found[2].lower()
    if suffix in _NUMBER_WORDS:
        return float(number * 1000 ** _NUMBER_WORDS[suffix])
    return float(number * multiple ** _MULTIPLES[suffix])


def _may_be_list(*numbers: int) -> bool:
    """Whether numbers ascend like those of a list (256,512), unlike digit groups (16,384)."""
    return all(first < then <= _MAX_LIST_RATIO * first for first, then in pairwise(numbers))


def _count(field: Field, given: object) -> int:
    text = str(given).strip()
    if _LIST_LIKE.fullmatch(text) and _may_be_list(*map(int, text.split(","))):
        raise UsageError(
            f"--{field.option} is {text!r}, one number or several; expected {text.replace(',', '')} for one; "
            "to compare several, ask once with each"
        )
    value = _amount(field, given)
    if not value.is_integer():
        raise UsageError(f"--{field.option} is {str(given)!r}; expected a whole number")
    return int(value)


def _duration(field: Field, given: object) -> float:
    if isinstance(given, bool):
        raise UsageError(f"--{field.option} is {given!r}; expected {field.bounds}")
    try:
        value = float(str(given)) * field.scale
    except ValueError:
        found = duration_s(str(given))
        if found is None:
            raise UsageError(
                f"--{field.option} is {str(given)!r}; expected hours, or a time with its unit such as "
                "90min or 7d"
            ) from None
        value = found
    return field.check(value)


def _sizes(field: Field, given: object) -> "Sizes":
    if isinstance(given, Sizes):
        return given
    if isinstance(given, (list, tuple)):
        if len(given) == 1:
            return _sizes(field, given[0])
        items = [item for each in given for item in (each.split(",") if isinstance(each, str) else [each])]
        return _listed(field, [_count(field, each) for each in items], given)
    text = str(given).strip()
    # Many type `1-4` for 1..4; a number itself has a hyphen only in an exponent such as 1e-3.
    first, dots, last = re.sub(r"(?<=[0-9kMGT])-(?=[0-9])", "..", text).partition("..")
    parts = (first, last) if dots else text.split(",")
    if (dots and "," in text) or (text and not all(map(str.strip, parts))):
        raise UsageError(
            f"--{field.option} is {text!r}; expected a number, a range as 1..1024, or a list as 8,16,32"
        )
    if dots:
        ends = _count(field, first), _count(field, last)
        if ends[0] > ends[1]:
            raise UsageError(f"--{field.option} is {text!r}; expected the smaller number first")
        return Sizes(listed=tuple(dict.fromkeys(ends)), is_range=ends[0] < ends[1])
    return _listed(field, [_count(field, item) for item in text.split(",")], text)


class Sizes(Struct, frozen=True, kw_only=True):
    """Numbers of accelerators asked about: the listed ones, or a range from the first to the last."""

    listed: tuple[int, ...]
    is_range: bool = False

    @property
    def fewest(self) -> int:
        """The smallest number."""
        return self.listed[0]

    @property
    def most(self) -> int:
        """The largest number."""
        return self.listed[-1]

    @property
    def doublings(self) -> tuple[int, ...]:
        """The listed numbers, or the ends of a range and the powers of two between them."""
        if not self.is_range:
            return self.listed
        powers = (1 << each for each in range(self.most.bit_length()))
        return tuple(sorted({*self.listed, *filter(self.holds, powers)}))

    def holds(self, num_accelerators: int) -> bool:
        """Whether a number is among those asked about."""
        if self.is_range:
            return self.fewest <= num_accelerators <= self.most
        return num_accelerators in self.listed

    def __str__(self) -> str:
        """The text of an option."""
        return "..".join(map(str, self.listed)) if self.is_range else ",".join(map(str, self.listed))


def _listed(field: Field, sizes: list[int], given: object) -> Sizes:
    found = tuple(sorted(set(sizes)))
    if not 1 <= len(found) <= MAX_SIZES:
        raise UsageError(
            f"--{field.option} has {len(found):,} numbers ({str(given)[:40]!r}); expected 1 to {MAX_SIZES}"
        )
    return Sizes(listed=found)


def _per_system(field: Field, given: object) -> tuple[tuple[str, Any], ...]:
    """Pairs (system, value); the name is empty if only a value was given."""
    items: list[tuple[str, object]] = []
    if isinstance(given, Mapping):
        items = [(str(name), value) for name, value in given.items()]
    else:
        for each in _several(given):
            if isinstance(each, tuple):
                items.append((str(each[0]), each[1]))
                continue
            for part in re.split(r",(?=[^,=]+=)", str(each)):  # not at the commas within a value
                name, equals, value = part.rpartition("=")
                if equals and not name.strip():
                    raise UsageError(
                        f"--{field.option} is {part!r}; expected the name of a system before the =, or no ="
                    )
                items.append((name.strip(), value) if equals else ("", part))
    kind = field.value_kind or "number"
    return tuple((name, _READERS[kind](_of_system(field, name, kind), value)) for name, value in items)


def _of_system(field: Field, name: str, kind: Kind) -> Field:
    """The field with the name of a system, if any, added to its option for error messages."""
    return replace(field, kind=kind, option=f"{field.option} of {name}" if name else field.option)


def _path(field: Field, given: object) -> Path:
    return one_path(given if isinstance(given, Path) else _text(field, given))


def _paths(field: Field, given: object) -> tuple[Path, ...]:
    return tuple(_path(field, each) for each in _several(given))


_READERS: Final[Mapping[Kind, Callable[[Field, object], Any]]] = {
    "text": _text,
    "texts": _texts,
    "names": _names,
    "list": _list,
    "choice": _one_of,
    "flag": _flag,
    "number": _number,
    "count": _count,
    "amount": _amount,
    "duration": _duration,
    "sizes": _sizes,
    "per_system": _per_system,
    "path": _path,
    "paths": _paths,
}
