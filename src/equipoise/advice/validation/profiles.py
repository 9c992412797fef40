"""Profiles: parameters of the performance model fitted to published measurements, and how wrong they were.

`python -m equipoise.advice.validation.profiles DIR` fits them to files of DIR and writes data/profiles.json.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from threadpoolctl import threadpool_limits

from equipoise.advice.validation.accuracy import LEVEL, half_width
from equipoise.advice.validation.step_rows import calibrated, refusal
from equipoise.advice.validation.validate import Validation, validate
from equipoise.errors import DataError, SpecError, UsageError
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.runs.readers.published.executions import read_executions
from equipoise.runs.readers.published.rows import PublishedRow
from equipoise.spec.cluster_text import cluster_in_text
from equipoise.units import significant

_NAME = "profiles.json"
_NUM_DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a profile is made: the files it is fitted to, and the split that tells how wrong it is."""

    name: str
    title: str
    file_names: tuple[str, ...]
    split: str


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        name="a100-megatron",
        title="Megatron of 2021 to 2023 on A100, fp16, attention not fused (vTrain, Selene)",
        file_names=(
            "vtrain_single.csv",
            "vtrain_multi.csv",
            "korthikanti_table5.csv",
            "megatron_sc21_mtnlg.csv",
        ),
        split="leave-n_gpus-out",
    ),
    Recipe(
        name="h100-torchtitan",
        title="torchtitan of 2024 and 2025 on H100 and H200, bf16 and fp8",
        file_names=("torchtitan.csv",),
        split="leave-strategy-out",
    ),
    Recipe(
        name="blackwell-bridge",
        title="NVIDIA Megatron-Bridge of 2025 and 2026 on Blackwell and H100, bf16 to nvfp4",
        file_names=("megatron_bridge_nemo.csv",),
        split="leave-model-out",
    ),
)


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
    return read_profiles(Path(str(files("equipoise") / "data" / _NAME)))


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


def profile_for(accelerator_slug: str) -> Profile | None:
    """The profile measured on this accelerator, or else on one of the same chip; None where none was.

    Assumes the first word of a slug names the chip: `a100-pcie-40gb` is an a100 as `a100-sxm4-80gb` is.

    >>> profile_for("b200-sxm6-180gb").name
    'blackwell-bridge'
    >>> profile_for("tpu-v4") is None
    True
    """
    chip = accelerator_slug.partition("-")[0]
    measured = [each for each in profiles() if accelerator_slug in each.accelerators]
    alike = [each for each in profiles() if chip in {slug.partition("-")[0] for slug in each.accelerators}]
    return next(iter((*measured, *alike)), None)


def fitted(recipe: Recipe, directory: Path) -> Profile:
    """The profile a recipe makes of the files of a directory.

    Raises as `read_executions` and `validate` do.
    """
    paths = [directory / name for name in recipe.file_names]
    rows = [row for row in read_executions(paths) if row.kind == "step" and refusal(row) is None]
    found = calibrated(rows)
    values = {name: found.parameters.value(name) for name in found.moved}
    return Profile(
        name=recipe.name,
        title=recipe.title,
        file_names=recipe.file_names,
        accelerators=_accelerators(rows),
        values=values,
        log_sd=dict(zip(found.moved, found.log_sd.tolist(), strict=True)),
        record=_record(validate(paths, split=recipe.split)),
    )


def _accelerators(rows: Sequence[PublishedRow]) -> tuple[str, ...]:
    """Slugs of the accelerators of some rows, in order of first appearance."""
    clusters = [cluster_in_text(row.hardware, num_accelerators=row.num_accelerators) for row in rows]
    return tuple(dict.fromkeys(each.accelerator.slug for each in clusters if each is not None))


def _record(held_out: Validation) -> ProfileRecord:
    """The errors of a validation, and the interval that follows from them."""
    ratios: dict[int, tuple[float, int]] = {}
    for each in held_out.verdicts:
        row, conversion = each.row, each.row.conversion
        if each.predicted is not None and conversion is not None and row.seconds is not None:
            ratios[row.execution] = (np.log(row.seconds / conversion.seconds(each.predicted)), row.cluster)
    logs, clusters = (np.array(each) for each in zip(*ratios.values(), strict=True))
    errors = held_out.errors
    return ProfileRecord(
        split=held_out.split,
        num_executions=errors.num_executions,
        num_clusters=errors.num_clusters,
        mape=errors.mape,
        median=errors.median,
        p90=errors.p90,
        coverage=errors.coverage,
        level=LEVEL,
        log_half_width=float(half_width(logs, clusters.astype(np.intp), level=LEVEL)),
    )


def main(arguments: Sequence[str]) -> int:
    """Fit every profile and write the file beside the embedded tables. arguments: the directory of
    measurements.

    Raises UsageError for other arguments.
    """
    if len(arguments) != 1:
        raise UsageError(
            f"python -m equipoise.advice.validation.profiles DIR: got {len(arguments)} arguments; "
            "expected one, the directory of torchtitan.csv and the other measurements"
        )
    directory = Path(arguments[0])
    with threadpool_limits(limits=1):
        made = [asdict(fitted(each, directory)) for each in RECIPES]
    path = Path(str(files("equipoise") / "data" / _NAME))
    document = significant({"profiles": made}, _NUM_DIGITS)
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
