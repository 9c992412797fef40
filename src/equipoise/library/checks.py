"""`validate` and `topology` as functions: errors of the model on measured rows, and what links mean."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from equipoise.bench.topology import MOST_BYTES, here, read
from equipoise.bench.topology.topology import Topology
from equipoise.calibration.validate import Validation, basis_of
from equipoise.calibration.validate import validate as validation_of
from equipoise.diagnose.links import USUAL_BATCH, Meaning, meaning
from equipoise.errors import UsageError, in_a_line
from equipoise.files import Folders, one_path, paths, read_input
from equipoise.library import Presentation, Result
from equipoise.library.decisions import in_python
from equipoise.report.pages.backtest import validation_fields, validation_page
from equipoise.report.pages.topology import TOPOLOGY, topology_fields
from equipoise.spec.catalogue import catalogue
from equipoise.stats import one_thread


@in_python(None, own=("calibrate", "split"))
def validate(
    files: Folders = (),
    *,
    calibrate: Folders = (),
    split: str = "none",
    software: str = "auto",
    hardware: Folders = (),
    workloads: Folders = (),
) -> Result[Validation]:
    """Compare the performance model with measured rows.

    files: CSV or Parquet, one row per figure; by default the shipped published steps. calibrate: files to
    whose rows the model is fitted first. split: `none`, or `leave-COLUMN-out`. software: the software assumed
    for rows if nothing is fitted: `auto` for each row's own (for runs that name none, the one that `advise`
    uses), or `priors`. hardware, workloads: TOML files that extend the catalogue. Raises DataError for a file
    that cannot be read, EvidenceError if nothing can be predicted.
    """
    for name, given in (("split", split), ("software", software)):
        if not isinstance(given, str):
            raise UsageError(f"{name}={in_a_line(given)}; expected a text, as 'none' or 'auto'")
    with one_thread():
        found = validation_of(
            paths(files),
            calibrate_on=paths(calibrate),
            split=split,
            basis_of=basis_of(software),
            catalogue=catalogue(paths(hardware), paths(workloads)),
        )
    return Result(record=found, presentation=_shown_validation())


def topology(
    file: str | PathLike[str] | None = None,
    *,
    accelerator: str | None = None,
    batch: int = USUAL_BATCH,
    fp32: bool = False,
    hardware: Folders = (),
) -> Result[Meaning]:
    """The links between accelerators, and what they mean for training on two of them.

    file: the output of `nvidia-smi topo -m` or rocm-smi; by default this machine is inspected.
    accelerator: the name of the devices, if the file does not state it. batch: samples per step, split
    between two. fp32: predict for fp32 instead of autocast. Raises DataError for a file that is not a
    topology, UsageError for an accelerator if there is none, or if it is another one.
    """
    known = catalogue(paths(hardware))
    if not isinstance(accelerator, str | None):
        raise UsageError(f"accelerator={in_a_line(accelerator)}; expected a name")
    chip = None if accelerator is None else known.cluster(accelerator).accelerator
    found = here() if file is None else _topology_of(one_path(file))
    about = meaning(found, chip=chip, batch=batch, with_autocast=not fp32, catalogue=known)
    return Result(record=about, presentation=_shown_topology())


def _topology_of(file: Path) -> Topology:
    content = read_input(file, MOST_BYTES, expected="what nvidia-smi or rocm-smi print")
    return read(content, where=file.name)


_VERDICT_COLUMNS: Final[Mapping[str, type]] = {
    "file": str,
    "row": int,
    "workload": str,
    "num_accelerators": int,
    "unit": str,
    "measured": float,
    "predicted": float,
    "low": float,
    "high": float,
    "error": float,
    "fold": str,
    "reason": str,
}
_GAIN_COLUMNS: Final[Mapping[str, type]] = {
    "link_class": str,
    "workload": str,
    "params": float,
    "speedup": float,
    "low": float,
    "high": float,
    "verdict": str,
}


def _rows(found: Validation) -> list[dict[str, Any]]:
    """One row per measured row."""
    return [
        {name: getattr(each.row if hasattr(each.row, name) else each, name) for name in _VERDICT_COLUMNS}
        for each in found.verdicts
    ]


def _gains(found: Meaning) -> list[dict[str, Any]]:
    """One row per link class and model: two accelerators compared with one."""
    return [{name: getattr(each, name) for name in _GAIN_COLUMNS} for each in found.gains]


def _shown_validation() -> Presentation[Validation]:
    return Presentation(
        verb="validate",
        fields=validation_fields,
        columns=_VERDICT_COLUMNS,
        rows=_rows,
        page=validation_page(),
        made_by=_shown_validation,
    )


def _shown_topology() -> Presentation[Meaning]:
    return Presentation(
        verb="topology",
        fields=topology_fields,
        columns=_GAIN_COLUMNS,
        rows=_gains,
        page=TOPOLOGY,
        made_by=_shown_topology,
    )
