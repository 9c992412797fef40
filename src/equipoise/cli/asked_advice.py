"""What `advise` is asked: its options, or a TOML file that holds the same, as a request for advice."""

import math
import stat
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from equipoise.advice.answer.asked import USUAL_HORIZON_MONTHS, Owning, Request, Sought
from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.planned import ObjectiveName
from equipoise.advice.reach import TOKENS_PER_PARAM, Ask
from equipoise.cli.asked import choices
from equipoise.cli.options import deadline_s
from equipoise.economics import DEFAULT_GRID, PriceTerms
from equipoise.errors import DataError, UsageError
from equipoise.units import HOUR_S, MIB

_MOST_BYTES = MIB
# Options that are no keys of a file, and why.
NOT_KEYS: Final = {
    "html": "where the answer goes is said anew each time",
    "as_json": "how the answer looks is said anew each time",
    "json_out": "where the answer goes is said anew each time",
    "recorded": "what is kept in one's ledger is decided anew each time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of `advise`, as given on the command line or in a file; None: not given.

    Annotations say what a file may hold: a new option is a field here and one in cli/advise.py.
    """

    workload: str | None = None
    accelerator: tuple[str, ...] | None = None
    here: bool | None = None
    max_accelerators: int | None = None
    objective: ObjectiveName | None = None
    deadline: float | str | None = None
    budget: float | None = None
    price: float | None = None
    terms: PriceTerms | None = None
    electricity: float | None = None
    pue: float | None = None
    region: str | None = None
    runs: Path | None = None
    global_batch: int | None = None
    samples: float | None = None
    tokens: float | None = None
    precision: str | None = None
    collectives: tuple[Path, ...] | None = None
    trace: tuple[Path, ...] | None = None
    traced_as: str | None = None
    ask: Ask | None = None
    tokens_per_param: float | None = None
    queue: float | None = None
    buy: bool | None = None
    purchase: float | None = None
    hosting: float | None = None
    utilisation: float | None = None
    horizon: float | None = None
    data: Path | None = None
    also: tuple[Path, ...] | None = None
    hardware: tuple[Path, ...] | None = None
    workloads: tuple[Path, ...] | None = None


KEYS: Final = {
    name: tuple(each for each in get_args(hint) if each is not NoneType)
    for name, hint in get_type_hints(Asked).items()
}


def given(options: Mapping[str, object]) -> Asked:
    """The options of a command line by name: what is None, off or empty was not given."""
    chosen: dict[str, Any] = {}
    for name in KEYS:
        value = options[name]
        if value is not None and value is not False and value != []:
            chosen[name] = tuple(value) if isinstance(value, list) else value
    return Asked(**chosen)


def from_file(path: Path) -> Asked:
    """What a TOML file asks. Raises DataError that names the key, what was found and what was expected."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening anything else may wait forever
            raise DataError(f"{path}: not a regular file; expected a TOML file with the options")
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
    values: dict[str, Any] = {key: _value(path, key, value) for key, value in found.items()}
    return Asked(**values)


def _value(path: Path, key: str, value: object) -> object:
    """A value as the option of its name takes it."""
    name = key.replace("-", "_")
    if name != key or name not in KEYS:
        if name in NOT_KEYS:
            raise DataError(f"{path}: key {key!r} is only an option: {NOT_KEYS[name]}")
        near = get_close_matches(name, KEYS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(KEYS)}"
        raise DataError(f"{path}: key {key!r} is unknown; {hint}")
    for kind in KEYS[name]:
        found = _as(kind, value, path.parent)
        if found is not None:
            return found
    expected = " or ".join(_expected(kind) for kind in KEYS[name])
    raise DataError(f"{path}: {key} = {value!r}; expected {expected}")


def _as(kind: Any, value: object, folder: Path) -> object:  # noqa: ANN401 - an annotation
    """A value of a file as an annotation asks; None where it is no such. Paths are from the file's folder."""
    if get_origin(kind) is tuple:
        listed = value if isinstance(value, list) else [value]
        items = [_as(get_args(kind)[0], each, folder) for each in listed]
        return tuple(items) if items and None not in items else None
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else None
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):  # a whole number of more digits than any float has
            return float(value)
    if kind is Path:
        return folder / value if isinstance(value, str) and "\0" not in value else None
    return value if type(value) is kind else None


def _expected(kind: Any) -> str:  # noqa: ANN401 - an annotation
    """What an annotation asks for, in words."""
    if get_origin(kind) is tuple:
        one = _expected(get_args(kind)[0])
        return f"{one} or a list of such"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
    return words[kind]


def joined(given: Asked, base: Asked) -> Asked:
    """What is given, and what the other says where nothing is."""
    chosen: dict[str, Any] = {}
    for name in KEYS:
        value = getattr(given, name)
        chosen[name] = getattr(base, name) if value is None else value
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
    return joined(replace(given, workload=None), base)


def wanted(found: Asked) -> Request | Sought:
    """What options ask for: advice, or what money and time are enough for.

    Raises UsageError or SpecError for what no option can mean.
    """
    request = _request(found)
    if found.ask is None:
        if found.tokens_per_param is not None:
            raise UsageError("--tokens-per-param belongs to --ask model")
        return request
    per_param = TOKENS_PER_PARAM if found.tokens_per_param is None else found.tokens_per_param
    return Sought(request=request, ask=found.ask, tokens_per_param=per_param)


def _request(found: Asked) -> Request:
    if found.workload is None:
        raise UsageError("advise needs a WORKLOAD, a module:function, or a CONFIG.toml")
    precisions: dict[str, Any] = dict(choices((), precision=found.precision))
    limit_s = deadline_s(found.deadline)
    return Request(
        workload=found.workload,
        accelerators=found.accelerator or (),
        here=bool(found.here),
        most=found.max_accelerators,
        objective=found.objective or "balance",
        deadline_s=math.inf if limit_s is None else limit_s,
        budget_usd=math.inf if found.budget is None else found.budget,
        terms=Terms(
            usd_per_accelerator_hour=found.price,
            region=found.region or DEFAULT_GRID,
            price_terms=found.terms or "on_demand",
            usd_per_kwh=found.electricity,
            pue=found.pue,
        ),
        runs=found.runs,
        global_batch_samples=found.global_batch,
        training_samples=found.samples,
        training_tokens=found.tokens,
        precision=tuple(precisions.get("precision", ())),
        collectives=found.collectives or (),
        traces=found.trace or (),
        traced_as=found.traced_as,
        queue_s=None if found.queue is None else found.queue * HOUR_S,
        owning=_owning(found),
    )


def _owning(found: Asked) -> Owning | None:
    """What is said of buying; each of its amounts asks for it."""
    amounts = (found.purchase, found.hosting, found.utilisation, found.horizon)
    if not found.buy and amounts == (None,) * len(amounts):
        return None
    return Owning(
        purchase_usd=found.purchase,
        hosting_usd_per_month=found.hosting,
        utilisation=found.utilisation,
        horizon_months=USUAL_HORIZON_MONTHS if found.horizon is None else found.horizon,
    )
