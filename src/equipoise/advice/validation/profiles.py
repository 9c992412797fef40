"""Profiles that ship: parameters of the performance model fitted to measurements, and how wrong they were.

How they are made is in fitted_profiles.py: to plan with one takes none of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from equipoise.errors import DataError, SpecError
from equipoise.perfmodel.parameters import PRIORS, Parameters

NAME = "profiles.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """How wrong predictions of held-out rows were: |predicted time / measured time - 1|, by configuration.

    log_half_width: of the interval at `level`, of the logarithm of a time, from the same errors.
    """

    split: str
    num_executions: int
    num_clusters: int
    mape: float
    median: float
    p90: float
    coverage: float
    level: float
    log_half_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One calibration that ships. accelerators: slugs of those it was measured on.

    values, log_sd: fitted parameters by name, and the standard deviation of each one's logarithm; all others
    are their priors' medians.
    """

    name: str
    title: str
    file_names: tuple[str, ...]
    accelerators: tuple[str, ...]
    values: Mapping[str, float]
    log_sd: Mapping[str, float]
    record: ProfileRecord

    @property
    def parameters(self) -> Parameters:
        """The parameters of the model under this calibration."""
        return Parameters().changed(self.values)


@cache
def profiles() -> tuple[Profile, ...]:
    """All profiles that ship. Raises DataError where their file is missing or not what `main` writes."""
    return read_profiles(Path(str(files("equipoise") / "data" / NAME)))


def read_profiles(path: Path) -> tuple[Profile, ...]:
    """The profiles of a file. Raises DataError where it is missing or not what `main` writes."""
    try:
        return tuple(_profile(each) for each in orjson.loads(path.read_bytes())["profiles"])
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(f"{path}: {err!r}; expected fitted profiles: `make profiles` writes them") from err


def _profile(found: Mapping[str, Any]) -> Profile:
    known = {each.name for each in PRIORS}
    # A parameter that the model no longer has would silently be without effect.
    strange = sorted(set(found["values"]) - known)
    if strange:
        raise ValueError(f"parameters {', '.join(strange)} of profile {found['name']!r} are not the model's")
    return Profile(
        name=found["name"],
        title=found["title"],
        file_names=tuple(found["file_names"]),
        accelerators=tuple(found["accelerators"]),
        values=found["values"],
        log_sd=found["log_sd"],
        record=ProfileRecord(**found["record"]),
    )


def profile(name: str) -> Profile:
    """The profile of a name. Raises SpecError with the names there are."""
    for each in profiles():
        if each.name == name:
            return each
    names = ", ".join(each.name for each in profiles())
    raise SpecError(f"profile {name!r} is not known; expected one of {names}")
