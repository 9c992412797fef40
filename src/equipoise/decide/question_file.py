"""A question in a TOML file: its keys are the fields of the question; what is given beside it comes first."""

import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from equipoise.decide.field import Kind, Verb
from equipoise.decide.query import ATTRIBUTES, FIELDS, RIVALS, TrainingQuery, question, values
from equipoise.errors import DataError
from equipoise.units import MIB

SUFFIX: Final = ".toml"
_MOST_BYTES: Final = MIB
_PATHS: Final = {"path", "paths"}
_NOT_TAKEN: Final = "expected a value, or a list of values"
_WORDS: Final[Mapping[type, str]] = {str: "text", int: "a number", float: "a number", bool: "true or false"}


def read_question(given: Mapping[str, object], *, verb: Verb) -> TrainingQuery:
    """The question of options or arguments; of the file besides where the workload names one.

    given: by option name; None, off and empty are not given. What is given takes the place of what the file
    states of the same, also in other words: tokens of samples, a machine by name of the machine at hand.
    Raises DataError that names file, key, what was found and what was expected; UsageError for what is given.
    """
    stated = values({name: each for name, each in given.items() if each is not False}, verb=verb)
    named = str(stated.get("workload", ""))
    if not named.lower().endswith(SUFFIX):
        return question(stated)
    path = Path(named)
    base = file_values(path, verb=verb)
    if "workload" not in base:
        raise DataError(f'{path}: no workload; expected workload = "NAME" or "module:function"')
    if base["workload"].lower().endswith(SUFFIX):
        raise DataError(f"{path}: workload = {base['workload']!r} is another file; name a workload")
    del stated["workload"]
    for one, other, _ in RIVALS:
        if one in stated or other in stated:
            base.pop(one, None)
            base.pop(other, None)
    return question({**base, **stated})


def file_values(path: Path, *, verb: Verb) -> dict[str, Any]:
    """What a file states of a question, by attribute; paths in it are from its own folder."""
    found = {key: _value(path, key, value) for key, value in _content(path).items()}
    return values(found, verb=verb, where=str(path))


def _content(path: Path) -> dict[str, Any]:
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
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}: no TOML: {err}") from err


def _value(path: Path, key: str, value: object) -> object:
    """A value of TOML as a field reads it: of a plain type, with paths from the file's folder."""
    attribute = ATTRIBUTES.get(key.replace("-", "_"))
    if attribute is None:
        return value  # what the name could be is said where it is looked up
    kind = FIELDS[attribute].kind
    if isinstance(value, dict) and kind != "per_system":
        raise DataError(f"{path}: {key} is a table; {_NOT_TAKEN}")
    for each in _leaves(value):
        expected = _expected(kind)
        if type(each) not in expected or (isinstance(each, str) and "\0" in each):
            names = " or ".join(dict.fromkeys(_WORDS[one] for one in expected))
            raise DataError(f"{path}: {key} = {each!r}; expected {names}")
    if kind not in _PATHS:
        return value
    listed = [path.parent / str(each) for each in _leaves(value)]
    return listed if isinstance(value, list) else listed[0]


def _expected(kind: Kind) -> tuple[type, ...]:
    """The types of TOML values that a kind of field takes."""
    if kind == "flag":
        return (bool,)
    return (str,) if kind in {*_PATHS, "text", "texts", "choice"} else (str, int, float)


def _leaves(value: object) -> list[object]:
    """A value, the items of a list, or the values of a table."""
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]
