"""Where to look next: which configuration for speed, which for efficiency, which in between."""

from typing import Final

from equipoise.report.blocks import Block, Heading, Tile, Tiles, note, prose
from equipoise.report.section import Section
from equipoise.report.words import TIMES, accelerator_name, count, entry_name, printable, ratio, sentence
from equipoise.scaling.pointers import RULE, Pointer
from equipoise.study.findings import Findings, WorkloadFindings
from equipoise.units import format_duration

LABELS: Final = {"speed": "For speed", "between": "In between", "efficiency": "For efficiency"}


def _blocks(findings: Findings) -> tuple[Block, ...]:
    intro = prose(
        "Three purposes, three configurations, each an entry that was measured: the shortest time, the least "
        "accelerator-time, and the one nearest to both. E' is against the workload's reference, "
        "E against the smallest system of the same accelerator."
    )
    rule = note(f"Rule: {sentence(RULE)}.")
    return (intro, *(block for workload in findings.workloads for block in _of_workload(workload)), rule)


def _of_workload(workload: WorkloadFindings) -> tuple[Block, ...]:
    if not workload.pointers:
        return (prose(f"{printable(workload.name)}: no entry with a score, hence nothing to point at."),)
    tiles = Tiles(items=tuple(_tile(pointer) for pointer in workload.pointers))
    return (Heading(name=f"next-{workload.workload}", text=printable(workload.name)), tiles)


def _tile(pointer: Pointer) -> Tile:
    shown = f"E' {ratio(pointer.relative_efficiency)}"
    if pointer.like_for_like_efficiency is not None:
        shown += f" · E {ratio(pointer.like_for_like_efficiency)}"
    name = entry_name(pointer.submitter, pointer.system)
    words = sentence(pointer.words).removesuffix(".")
    return Tile(
        label=LABELS[pointer.purpose],
        value=f"{count(pointer.num_accelerators)} {TIMES} {accelerator_name(pointer.accelerator)}",
        detail=f"{format_duration(pointer.score_s)} · {shown} · {name}",
        words=f"{words[:1].upper()}{words[1:]}.",
    )


SECTION: Final[Section[Findings]] = Section(
    name="next", title="Where to look next", needs=("workloads",), blocks=_blocks
)
