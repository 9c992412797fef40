"""Which shipped profile speaks for a row: that of the same software on the same chip, else none."""

import re
from collections.abc import Callable
from typing import TypeAlias

from equipoise.advice.validation.predictor import Basis
from equipoise.advice.validation.profiles import Profile, profile, profiles
from equipoise.errors import SpecError
from equipoise.runs.readers.published.rows import PublishedRow
from equipoise.spec.cluster_text import cluster_in_text

BasisOf: TypeAlias = Callable[[PublishedRow], Basis | None]

AUTO, PRIORS = "auto", "priors"
# Calibrations do not carry over from one software to another: torchtitan foretold by Megatron-Bridge's is off
# by # 24 %, by the priors alone 15 %. So words of the software have to be there, or its time's way of
# attention.
_SOFTWARE: dict[str, re.Pattern[str]] = {
    "blackwell-bridge": re.compile(r"\bnemo\b|megatron[- ]bridge", re.IGNORECASE),
    "h100-torchtitan": re.compile(r"\bfsdp2\b|torchtitan|async[- ]?tp", re.IGNORECASE),
    "a100-megatron": re.compile(r"megatron(?![- ]bridge)|turing|deepspeed", re.IGNORECASE),
}
_OLD_ATTENTION = "a100-megatron"


def basis_of(name: str) -> BasisOf:
    """How each row is foretold where nothing is fitted: `auto`, `priors`, or the profile of a name for all.

    Raises SpecError for a profile that is not known.
    """
    if name == PRIORS:
        return lambda _: None
    if name == AUTO:
        return _matching
    try:
        chosen = _basis(profile(name))
    except SpecError as err:
        raise SpecError(f"{err}, or {AUTO} or {PRIORS}") from err
    return lambda _: chosen


def _matching(row: PublishedRow) -> Basis | None:
    """The profile of a row's own software and chip."""
    cluster = cluster_in_text(row.hardware, num_accelerators=row.num_accelerators, catalogue=row.catalogue)
    if cluster is None or row.strategy is None:
        return None
    chip = cluster.accelerator.slug.partition("-")[0]
    text = " ".join((row.workload, row.cells.get("parallel_config", ""), row.cells.get("source", "")))
    for each in profiles():
        words = _SOFTWARE.get(each.name)
        is_old = each.name == _OLD_ATTENTION and not row.strategy.fused_attention
        speaks = is_old or (words is not None and words.search(text) is not None)
        if speaks and chip in {slug.partition("-")[0] for slug in each.accelerators}:
            return _basis(each)
    return None


def _basis(found: Profile) -> Basis:
    return Basis(
        name=found.name,
        parameters=found.parameters,
        log_half_width=found.record.log_half_width,
        file_names=found.file_names,
    )
