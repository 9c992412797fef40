"""What `advise` is asked: its options, or a TOML file that holds the same, as a request for advice."""

import math
import tomllib
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from equipoise.advice.answer.asked import Request
from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.planned import ObjectiveName
from equipoise.cli.asked import choices
from equipoise.economics import DEFAULT_GRID, PriceTerms
from equipoise.errors import DataError, UsageError
from equipoise.units import HOUR_S, MIB, duration_s

_MOST_BYTES = MIB
_EXPECTED = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "text or a list of texts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of `advise`, as given on the command line or in a file; None: not given."""

    workload: str | None = None
    accelerator: tuple[str, ...] | None = None
    here: bool | None = None
    max_accelerators: int | None = None
    objective: str | None = None
    deadline: str | float | None = None
    budget: float | None = None
    price: float | None = None
    terms: str | None = None
    electricity: float | None = None
    pue: float | None = None
    region: str | None = None
    runs: str | None = None
    global_batch: int | None = None
    samples: float | None = None
    tokens: float | None = None
    precision: str | None = None


_TYPES: dict[str, tuple[type, ...]] = {
    "workload": (str,),
    "accelerator": (tuple,),
    "here": (bool,),
    "max_accelerators": (int,),
    "objective": (str,),
    "deadline": (float, str),
    "budget": (float,),
    "price": (float,),
    "terms": (str,),
    "electricity": (float,),
    "pue": (float,),
    "region": (str,),
    "runs": (str,),
    "global_batch": (int,),
    "samples": (float,),
    "tokens": (float,),
    "precision": (str,),
}
assert set(_TYPES) == {each.name for each in fields(Asked)}
_CHOICES: dict[str, tuple[str, ...]] = {"objective": get_args(ObjectiveName), "terms": get_args(PriceTerms)}


def from_file(path: Path) -> Asked:
    """What a TOML file asks. Raises DataError that names the key, what was found and what was expected."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as err:
        raise DataError(f"{path}: {err.strerror or err}; expected a TOML file with the options") from err
    if len(content) > _MOST_BYTES:
        raise DataError(f"{path}: more than {_MOST_BYTES} bytes; expected a short file of options")
    try:
        found = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}: no TOML: {err}") from err
    given: dict[str, Any] = {key: _value(path, key, value) for key, value in found.items()}
    return Asked(**given)


def _value(path: Path, key: str, value: object) -> object:
    """A value as the option of its name takes it."""
    name = key.replace("-", "_")
    if name != key or name not in _TYPES:
        near = get_close_matches(name, _TYPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(_TYPES)}"
        raise DataError(f"{path}: key {key!r} is unknown; {hint}")
    if tuple in _TYPES[name]:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and texts and all(isinstance(each, str) for each in texts):
            return tuple(texts)
    elif float in _TYPES[name] and isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):  # a whole number of more digits than any float has
            return float(value)
    elif any(type(value) is each for each in _TYPES[name]):
        if name in _CHOICES and value not in _CHOICES[name]:
            raise DataError(f"{path}: {key} = {value!r}; expected one of {', '.join(_CHOICES[name])}")
        return value
    expected = " or ".join(_EXPECTED[each] for each in _TYPES[name])
    raise DataError(f"{path}: {key} = {value!r}; expected {expected}")


def joined(given: Asked, base: Asked) -> Asked:
    """What is given, and what the other says where nothing is."""
    chosen: dict[str, Any] = {}
    for each in fields(Asked):
        value = getattr(given, each.name)
        chosen[each.name] = getattr(base, each.name) if value is None else value
    # Naming a machine on the command line takes the place of a file's `here`, and the other way round.
    if given.accelerator and not given.here:
        chosen["here"] = None
    if given.here and not given.accelerator:
        chosen["accelerator"] = None
    return Asked(**chosen)


def asked(given: Asked) -> Asked:
    """The options, with those of the file where the workload names one."""
    if given.workload is None or not given.workload.lower().endswith(".toml"):
        return given
    path = Path(given.workload)
    base = from_file(path)
    if base.workload is None:
        raise DataError(f'{path}: no workload; expected workload = "NAME" or "module:function"')
    if base.workload.lower().endswith(".toml"):
        raise DataError(f"{path}: workload = {base.workload!r} is another file; name a workload")
    runs = None if base.runs is None else str(path.parent / base.runs)
    whole = Asked(**({each.name: getattr(base, each.name) for each in fields(Asked)} | {"runs": runs}))
    return joined(_without_workload(given), whole)


def _without_workload(given: Asked) -> Asked:
    return Asked(**({each.name: getattr(given, each.name) for each in fields(Asked)} | {"workload": None}))


def request(found: Asked) -> Request:
    """The request that options make. Raises UsageError or SpecError for what no option can mean."""
    if found.workload is None:
        raise UsageError("advise needs a WORKLOAD, a module:function, or a CONFIG.toml")
    precisions: dict[str, Any] = dict(choices((), precision=found.precision))
    # Typer and the file have checked objective and terms against their lists.
    named: dict[str, Any] = {"objective": found.objective or "balance"}
    priced: dict[str, Any] = {"price_terms": found.terms or "on_demand"}
    return Request(
        workload=found.workload,
        accelerators=found.accelerator or (),
        here=bool(found.here),
        most=found.max_accelerators,
        deadline_s=_deadline_s(found.deadline),
        budget_usd=math.inf if found.budget is None else found.budget,
        terms=Terms(
            usd_per_accelerator_hour=found.price,
            region=found.region or DEFAULT_GRID,
            usd_per_kwh=found.electricity,
            pue=found.pue,
            **priced,
        ),
        runs=None if found.runs is None else Path(found.runs),
        global_batch_samples=found.global_batch,
        training_samples=found.samples,
        training_tokens=found.tokens,
        precision=tuple(precisions.get("precision", ())),
        **named,
    )


def _deadline_s(given: str | float | None) -> float:
    """Hours, or text with a unit, as seconds."""
    if given is None:
        return math.inf
    try:
        return float(given) * HOUR_S
    except ValueError:
        found = duration_s(str(given))
    if found is None:
        raise UsageError(f"--deadline {given!r}; expected hours, or a time with its unit such as 90min or 2d")
    return found
