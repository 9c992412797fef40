"""Facts about accelerators, workloads and their names, with sources. No durations live here.

This module reads TOML files of facts, shipped ones and users' own, with size limits and validation of every
value: `FactBlock.read` converts a table to a record according to the record's annotations.
"""

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeGuard, TypeVar, Union, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields

from equipoise.errors import DataError, SpecError, UnknownNameError, hint
from equipoise.files import read_input, shipped_table
from equipoise.units import listed

RecordT = TypeVar("RecordT", bound=Struct)

# A table of facts has a few hundred kilobytes. tomllib is pure Python and quadratic in dotted keys, so other
# files must be rejected before they are parsed.
MAX_FILE_BYTES = 1_000_000
MAX_LINE_CHARS = 4_000
MAX_DOTS_PER_LINE = 50
MAX_NAME_CHARS = 1_000

SLUG = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
# The second form is a registered sign encoded as UTF-8 and decoded as Latin-1.
_MARKS = re.compile(r"\((?:r|tm|c)\)|\u00c2?[\u00ae\u00a9]|\u2122", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\W_]+")
# "[kind.slug]", "[[kind]]", "[kind]" or "kind = ..." at the start of a line.
_SLUG_PART = r"(?:[\"'](?P<quoted>[^\"']*)[\"']|(?P<slug>[\w-]+))"
_HEADER = re.compile(rf"\[{{0,2}} ?(?P<kind>[\w-]+) ?(?:\. ?{_SLUG_PART} ?)?[\]=]")
_HEADER_CHARS = 200
_NEAR_CHARS = 80
_UNIT_APART = re.compile(r"(?<=\d) (?=(?:gb|gib|mb|mib|w)\b)")


def close_names(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """Return up to five of the canonical `names` that are similar to a name. cutoff: similarity, 0..1."""
    return get_close_matches(canonical(name)[:_NEAR_CHARS], names, n=5, cutoff=cutoff)


def unknown_name(complaint: str, near: Iterable[str], *, kind: str, edit: str) -> UnknownNameError:
    """Return the error for an unknown name.

    near: similar known names. kind: argument of `equipoise list`. edit: the file to add the name to.
    """
    meant, remedy = hint(near, ""), f"`equipoise list {kind}` has all; describe another in {edit}"
    if not meant:
        return UnknownNameError(complaint, remedy=f"; {remedy}")
    return UnknownNameError(f"{complaint}; {meant}", remedy=f" {remedy}")


# Cached, because tables have some thousands of names and are reread for each user's file.
@lru_cache(maxsize=2**13)
def canonical(raw: str) -> str:
    """Return the canonical spelling of a name: lower case, one space for punctuation, no trademark signs.

    A number and the unit after it are joined, so that `80 GB` and `80GB` are equal.

    >>> canonical("NVIDIA H200-NVL-141GB") == canonical("NVIDIA H200 NVL 141 GB")
    True
    >>> canonical("Intel(R) Gaudi(R) 2 AI Accelerator")
    'intel gaudi 2 ai accelerator'
    """
    if len(raw) > MAX_NAME_CHARS:
        return raw  # no name is this long, and normalisation is quadratic in sequences of accents
    text = _MARKS.sub(" ", unicodedata.normalize("NFC", raw))
    text = _SEPARATORS.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()
    return _UNIT_APART.sub("", text)


# Words of a slug that distinguish variants of one chip: its form factor and its memory.
FORM = re.compile(r"sxm\d?h?|pcie|oam|nvl\d*|superchip|quad|apu|module|m2000|hbm\d?e?|cpu")
_MOST_VARIANT_WORDS = 4  # a user's slug with dozens of them would have millions of short names
MEMORY = re.compile(r"(\d+)(g|m)(?:i?b)?")


@cache
def family_of(slug: str) -> tuple[str, ...]:
    """Return the words of a slug without form factor and memory, which identify the chip.

    >>> family_of("rtx-4090-pcie-24gb"), family_of("tpu-v4")
    (('rtx', '4090'), ('tpu', 'v4'))
    """
    return tuple(part for part in slug.split("-") if not is_variant(part))


def is_variant(word: str) -> bool:
    """Return whether a word of a slug is a form factor or a memory size."""
    return FORM.fullmatch(word) is not None or MEMORY.fullmatch(word) is not None


def compact(name: str) -> str:
    """Return a name in the form in which short names are compared: canonical, without spaces, memory in GB.

    >>> compact("A100-80G"), compact("a10g 24 GiB")
    ('a10080gb', 'a10g24gb')
    """
    words = canonical(name).split()
    return "".join(f"{found[1]}{found[2]}b" if (found := MEMORY.fullmatch(word)) else word for word in words)


def short_names(
    vendors: Mapping[str, str], exact: Mapping[str, str], claimed: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return every compact short name with the slugs it may mean: the one that claims it, or else all.

    vendors: by slug. exact: slug by full name. claimed: by slug, the short name that its block claims.
    """
    having: dict[tuple[str, ...], list[str]] = {}
    for slug in vendors:
        for words in dict.fromkeys(_shortened(slug)):
            having.setdefault(words, []).append(slug)
    found: dict[str, tuple[str, ...]] = {}
    for words, slugs in having.items():
        claiming = [slug for slug in slugs if slug in claimed and set(claimed[slug].split()) <= set(words)]
        meant = tuple(claiming if len(claiming) == 1 else slugs)
        for vendor in ("", *dict.fromkeys(vendors[slug] for slug in meant)):
            found[compact(f"{vendor} {' '.join(words)}")] = meant
    return found | {compact(name): (slug,) for name, slug in exact.items()}


def _shortened(slug: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of a slug with any subset of its form and memory words; also `sxm` for `sxm5`.

    The product line (RTX, RX) may be omitted if a number follows: `4090`, `7900 xtx`.
    """
    family = family_of(slug)
    rest = [word for word in slug.split("-") if is_variant(word)]
    if not family or len(rest) > _MOST_VARIANT_WORDS:
        return
    named = [family, family[1:]] if family[1:] and family[1][0].isdecimal() else [family]
    for count in range(len(rest) + 1):
        for kept in combinations(rest, count):
            for words in named:
                yield (*words, *kept)
                yield (*words, *(_unnumbered(word) for word in kept))


def _unnumbered(word: str) -> str:
    """Return a form factor without its number; other words unchanged."""
    bare = word.rstrip("0123456789")
    return bare if FORM.fullmatch(word) and FORM.fullmatch(bare) else word


class PlausibleRange(Struct, frozen=True):
    """The plausible range of a number, as part of its annotation; others are probably in another unit.

    least, most: in `unit`, wide enough for small and future devices. usual_power: the power of ten that data
    sheets omit most often.
    """

    least: float
    most: float
    unit: str
    usual_power: int = 9

    def expected(self, value: float) -> str:
        """Return what an error message expects, with the power of ten that makes the value plausible."""
        words = f"{self.least:g} to {self.most:g} {self.unit}"
        tried = (self.usual_power, *_POWERS)
        fits = (power for power in tried if self.least <= value * 10.0**power <= self.most)
        power = next(fits, None) if _WRITTEN[0] <= value < _WRITTEN[1] else None
        return words if power is None else f"{words}, as {value:g}e{power} for {value:g} {_POWERS[power]}"


# Powers of ten that data sheets omit; a value outside of _WRITTEN already includes its power.
_POWERS: Final = {9: "giga", 12: "tera", 6: "mega", 3: "kilo", -6: "micro", -3: "milli"}
_WRITTEN: Final = (1e-2, 1e5)
# Common names for parts of field names.
_COMMON_NAMES: Final = {
    "bandwidth": "byte_per_s",
    "flops": "flop_per_s",
    "vram": "memory_bytes",
    "tdp": "power_w",
    "watts": "w",
    "_gb": "_bytes",
}


class _Field(NamedTuple):
    """A field of a record: its type other than None, its plausible range, and whether it is required."""

    kind: Any
    plausible: PlausibleRange | None
    is_required: bool


@cache
def _fields(kind: type[Struct]) -> dict[str, _Field]:
    """Return the fields of a record by name. Cached, because evaluating annotations is slow."""
    found = {}
    for each in fields(kind):
        held, plausible = each.type, None
        if get_origin(held) in {Union, UnionType}:
            (held,) = (one for one in get_args(held) if one is not NoneType)
        if get_origin(held) is Annotated:
            held, plausible = get_args(held)
        found[each.name] = _Field(held, plausible, each.required)
    return found


class FactBlock(Struct, frozen=True, kw_only=True):
    """One `[kind.slug]` table of a file: its raw fields and its location."""

    path: Path
    file_text: str  # of the whole file
    kind: str
    slug: str
    fields: dict[str, object]

    @property
    def line(self) -> int:
        """The line on which this block's top-level table begins."""
        return _line(self.file_text, self.kind, self.slug.partition(".")[0])

    @property
    def where(self) -> str:
        """The location `file:line [kind.slug]`, which begins every message about this block."""
        return f"{self.path}:{self.line}: [{self.kind}.{self.slug}]"

    def refuse(self, key: str, expected: str) -> SpecError:
        """Return the error for an invalid field."""
        return SpecError(f"{self.where}: {key}={shown(self.fields.get(key))}; expected {expected}")

    def lacks(self, keys: Sequence[str]) -> SpecError:
        """Return the error for absent fields without a default."""
        return SpecError(f"{self.where}: no {listed(keys)}; expected a value, as there is no default")

    def check_keys(self, known: frozenset[str]) -> None:
        """Raise SpecError for unknown fields, so that a misspelt name is not silently ignored."""
        for key in self.fields:
            if key not in known:
                meant = key
                for common, ours in _COMMON_NAMES.items():
                    meant = meant.replace(common, ours)
                near = map(repr, get_close_matches(meant, known, n=1))
                expected = f"expected one of {', '.join(sorted(known))}"
                raise SpecError(f"{self.where}: unknown field {shown(key)}; {hint(near, expected)}")

    def text(self, key: str) -> str | None:
        """Return a non-empty text, or None if the field is absent."""
        value = self.fields.get(key)
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise self.refuse(key, "text in quotes")
        return value

    def number(self, key: str, *, zero: bool = False) -> float | None:
        """Return a finite positive number (zero only if allowed), or None if the field is absent."""
        value = self.fields.get(key)
        if value is None:
            return None
        if not is_number(value):
            raise self.refuse(key, "a number")
        try:
            number = float(value)
        except OverflowError as err:
            raise self.refuse(key, "a number below 1e308") from err
        if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
            raise self.refuse(key, f"a finite number {'from zero up' if zero else 'above zero'}")
        return number

    def count(self, key: str, *, zero: bool = False) -> int | None:
        """Return a whole number (also written as 80e9), or None if the field is absent."""
        number = self.number(key, zero=zero)
        if number is None:
            return None
        if not number.is_integer():
            raise self.refuse(key, "a whole number")
        return int(number)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; empty if the field is absent."""
        value = self.fields.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise self.refuse(key, 'a list of texts, e.g. ["a", "b"]')
        return tuple(value)

    def counts(self, key: str) -> tuple[int, ...]:
        """Return a list of ascending whole numbers above 0; empty if the field is absent."""
        value = self.fields.get(key, [])
        counts = [each for each in value if type(each) is int and each > 0] if isinstance(value, list) else []
        if counts != value or counts != sorted(set(counts)):
            raise self.refuse(key, "a list of ascending whole numbers, e.g. [1, 4, 8]")
        return tuple(counts)

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str | None:
        """Return a text from a list of allowed ones, or None if the field is absent."""
        value = self.text(key)
        if value is not None and value not in allowed:
            raise self.refuse(key, " or ".join(allowed))
        return value

    def flag(self, key: str) -> bool | None:
        """Return true or false, or None if the field is absent."""
        value = self.fields.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def blocks(self, key: str) -> Iterator["FactBlock"]:
        """Yield the tables of an array of tables, e.g. `[[accelerator.tpu-v2.counted]]`."""
        value = self.fields.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.refuse(key, f"tables written as [[{self.kind}.{self.slug}.{key}]]")
        for item in value:
            yield self._inner(key, item)

    def block(self, key: str) -> "FactBlock | None":
        """Return a nested table, e.g. `[workload.bert.transformer]`; None if it is absent."""
        value = self.fields.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(key, f"a table written as [{self.kind}.{self.slug}.{key}]")
        return self._inner(key, value)

    def _inner(self, key: str, inner: dict[str, object]) -> "FactBlock":
        slug = f"{self.slug}.{key}"
        return FactBlock(path=self.path, file_text=self.file_text, kind=self.kind, slug=slug, fields=inner)

    def read(
        self,
        kind: type[RecordT],
        known: RecordT | None = None,
        *,
        also: Collection[str] = (),
        given: Mapping[str, object] | None = None,
        zero: bool = False,
    ) -> RecordT:
        """Return the record that this table describes.

        Each field comes from the table, or else from `known`, the record of an earlier file, or else from the
        record's default; aliases of both are combined.
        also: further allowed names. given: fields that are not read from the table; None leaves a field to
        `known` and the default. zero: whether numbers may be 0.
        Raises SpecError for an unknown name, an invalid value and a missing field.
        """
        given = {} if given is None else given
        read = _fields(kind)
        self.check_keys(frozenset((*(name for name in read if name not in given), *also)))
        found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        for name in self.fields:
            if name in read and name not in given:
                held, plausible, _ = read[name]
                found[name] = value = self._value(name, held, zero=zero)
                if plausible and value and not plausible.least <= value <= plausible.most:
                    raise self.refuse(name, plausible.expected(value))
        absent = [
            name
            for name, (_, _, is_required) in read.items()
            if name not in found or (is_required and found[name] == ())
        ]
        if known is not None:
            found |= {name: getattr(known, name) for name in absent}
        elif lacking := [name for name in absent if read[name].is_required]:
            raise self.lacks(lacking)
        if known is not None and "aliases" in found:
            found["aliases"] = tuple(dict.fromkeys((*known.aliases, *found["aliases"])))  # type: ignore[attr-defined]
        return kind(**found)

    def _value(self, key: str, kind: Any, *, zero: bool) -> Any:  # noqa: ANN401 - of the field
        """Return the validated value of a field of this type."""
        if kind is int:
            return self.count(key, zero=zero)
        if kind is float:
            return self.number(key, zero=zero)
        if get_origin(kind) is Literal:
            return self.one_of(key, get_args(kind))
        if isinstance(kind, type) and issubclass(kind, Struct):
            inner = self.block(key)
            return None if inner is None else inner.read(kind)
        return _READERS[kind](self, key)


_READERS: Final[Mapping[Any, Any]] = {
    str: FactBlock.text,
    bool: FactBlock.flag,
    tuple[str, ...]: FactBlock.texts,
    tuple[int, ...]: FactBlock.counts,
}


def claim_name(block: FactBlock, spelling: str, slug: str, owners: dict[str, str]) -> str:
    """Return the canonical spelling, registered for a slug. Raises SpecError if another slug already has it.

    owners: the slugs by canonical spelling in the same file.
    """
    name = canonical(spelling)
    if not name:
        raise SpecError(
            f"{block.where}: an alias without letter or digit; expected a name of the {block.kind}"
        )
    owner = owners.setdefault(name, slug)
    if owner != slug:
        raise SpecError(f"{block.where}: the name {name!r} already belongs to {owner}; keep it in one place")
    return name


def read_blocks(path: Path, kinds: frozenset[str]) -> Iterator[FactBlock]:
    """Yield every `[kind.slug]` table of a TOML file, in order.

    kinds: the allowed top-level tables.
    Raises SpecError with file and line if the file is invalid.
    """
    text = _read_text(path)
    for kind, blocks in _parse(text, path).items():
        if kind not in kinds or not isinstance(blocks, dict):
            expected = " and ".join(f"[{name}.<slug>]" for name in sorted(kinds))
            raise SpecError(f"{path}:{_line(text, kind)}: {shown(kind)}; expected tables {expected}")
        for slug, stated in blocks.items():
            if not isinstance(stated, dict):
                line = _line(text, kind, slug)
                raise SpecError(f"{path}:{line}: {kind}.{slug}={shown(stated)}; expected a table")
            if not SLUG.fullmatch(slug):
                expected = "lower case letters and digits joined by - or _"
                line = _line(text, kind, slug)
                raise SpecError(f"{path}:{line}: slug {shown(slug)}; expected {expected}")
            yield FactBlock(path=path, file_text=text, kind=kind, slug=slug, fields=stated)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Return a value's repr, shortened for an error message, whatever its size and depth."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep, or an integer of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004 - one terminal line


def _read_text(path: Path) -> str:
    """Return the file as text. Raises SpecError if it is unreadable, too large or not UTF-8."""
    try:
        data = read_input(path, MAX_FILE_BYTES, expected="a small TOML file")
    except DataError as err:
        raise SpecError(str(err)) from err
    try:
        text = data.decode()
    except UnicodeDecodeError as err:
        line = data.count(b"\n", 0, err.start) + 1
        found = f"{data[err.start]:#x}"
        raise SpecError(f"{path}:{line}: byte {found} is not UTF-8; save the file as UTF-8") from err
    return text


def _check_lines(text: str, path: Path) -> None:
    """Raise SpecError for lines that would take long to parse."""
    for number, line_text in enumerate(text.split("\n"), start=1):
        if len(line_text) > MAX_LINE_CHARS or line_text.count(".") > MAX_DOTS_PER_LINE:
            raise SpecError(
                f"{path}:{number}: a line of {len(line_text):,} characters and {line_text.count('.'):,} dots"
                f"; expected at most {MAX_LINE_CHARS:,} and {MAX_DOTS_PER_LINE}"
            )


def _parse(text: str, path: Path) -> dict[str, object]:
    """Return the parsed document; any failure of the parser becomes a SpecError."""
    try:
        return shipped_table(path, text.encode(), check=_check_lines)
    except RecursionError as err:
        raise SpecError(f"{path}:1: nested too deeply to be a table of facts") from err
    except ValueError as err:
        import tomllib  # noqa: PLC0415 - only needed after a failure

        if not isinstance(err, tomllib.TOMLDecodeError):
            raise SpecError(f"{path}:1: a value out of range: {err}") from err
        found = re.search(r"line (\d+)", str(err))
        line = found.group(1) if found else str(text.count("\n") + 1)
        raise SpecError(f"{path}:{line}: not TOML: {err}") from err


def _line(text: str, kind: str, slug: str = "") -> int:
    """Return the line on which a table begins, or else the first table of its kind, or else 1."""
    lines = _lines_of_tables(text)
    return lines.get(f"{kind}.{slug}", lines.get(kind, 1))


@lru_cache(maxsize=4)
def _lines_of_tables(text: str) -> dict[str, int]:
    """Return the 1-based line of each table and top-level key, if written in the plain form."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        header = _HEADER.match(line.strip()[:_HEADER_CHARS])
        if header is not None:
            kind, slug = header["kind"], header["quoted"] or header["slug"]
            lines.setdefault(kind, number)
            if slug:
                lines.setdefault(f"{kind}.{slug}", number)
    return lines
