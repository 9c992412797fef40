"""What exchanging and computing cost each other on a rank, and each way to train without a network.

A message takes longer where its core computes, and computing where a message is under way; gradients are
copied, rounded or sorted before they are sent. Both are measured on made-up weights.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from equipoise.bench.environment import shared_core_sets
from equipoise.bench.launchers.folder import Launcher, LaunchJob
from equipoise.errors import EvidenceError
from equipoise.units import MIB

SCHEMA = "equipoise.interference/1"
DEFAULT_SIZES_BYTES = (8, 2**12, 2**15, 2**17, 2**19, 2 * MIB, 8 * MIB, 32 * MIB)
OPERATIONS = ("all_reduce", "all_gather")
DEFAULT_METHODS = ("ddp", "fp16", "powersgd:1", "powersgd:4", "topk:0.01", "topk:0.1")
LIMIT_S = 300.0


class InterferenceTask(Struct, frozen=True, kw_only=True):
    """What to measure: with one rank the work of methods themselves, with more messages during computing.

    operations and sizes_bytes: of messages, what a rank holds whole. num_rounds: how often each is timed;
    large ones less often.
    """

    kind: ClassVar[str] = "interference"

    num_ranks: int = 2
    operations: tuple[str, ...] = OPERATIONS
    sizes_bytes: tuple[int, ...] = DEFAULT_SIZES_BYTES
    methods: tuple[str, ...] = DEFAULT_METHODS
    num_rounds: int = 15
    seed: int = 0
    device: str = "cpu"


def interference(task: InterferenceTask, launch_with: Launcher) -> dict[str, Any]:
    """One document: messages between the ranks alone and during computing, and methods' work on one rank.

    Raises EvidenceError where it could not be measured, with the reason.
    """
    alone = replace(task, num_ranks=1)
    return {
        "schema": SCHEMA,
        "launcher": launch_with.name,
        "num_ranks": task.num_ranks,
        "conditions": launch_with.conditions(shared_core_sets(task.num_ranks)),
        **_result(task, launch_with, task.num_ranks),
        "own_work": _result(alone, launch_with, task.num_ranks)["own_work"],
    }


def _result(task: InterferenceTask, launch_with: Launcher, most_ranks: int) -> Mapping[str, Any]:
    """What processes left; a rank has as many cores as it would among the most."""
    with tempfile.TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True) as name:
        cores = shared_core_sets(most_ranks)[: task.num_ranks]
        job = LaunchJob(
            task=task,
            folder=Path(name),
            core_sets=cores if launch_with.binds_here else (),
            limit_s=LIMIT_S,
            most_ranks=most_ranks,
        )
        outcome = launch_with.launch(job)
    if outcome.result is None:
        raise EvidenceError(f"exchanges during computing could not be measured: {outcome.reason}")
    return outcome.result
