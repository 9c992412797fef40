"""One process of a job: `python -m equipoise.bench.worker FOLDER`, RANK and WORLD_SIZE being set.

Joins the other ranks, does its part of the task, and leaves what was measured and on which nodes, or why it
could not be. LOCAL_RANK tells which of its node's cores and devices it takes.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.bench.attached import end_with_input, end_with_parent
from equipoise.bench.cell import Cell, cell_from
from equipoise.bench.collectives.asked import Asked, asked_from
from equipoise.bench.environment import conditions
from equipoise.bench.launchers.folder import (
    OUT_OF_MEMORY,
    leave_reason,
    leave_result,
    leave_so_far,
    told,
)
from equipoise.bench.launchers.launcher import Task
from equipoise.bench.timed_steps import measured
from equipoise.errors import EquipoiseError, UsageError

# Objects are gathered over gloo also where tensors are exchanged by NCCL (or RCCL, which has its name).
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# What a user's own model can raise.
_RAISED = (Exception,)


def _run(folder: Path, rank: int) -> None:
    """Join the other ranks, measure, leave the result."""
    job = told(folder)
    cell = _task(job, folder)
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    cores = job["core_sets"][local_rank]
    os.sched_setaffinity(0, cores)
    import torch  # noqa: PLC0415 - its threads take the cores they find
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    torch.set_num_threads(len(cores))
    torch.manual_seed(cell.seed)
    if cell.device == "cuda":
        _take_device(local_rank)
    meeting = "env://" if "MASTER_ADDR" in os.environ else (folder / "meeting").resolve().as_uri()
    backend = _BACKENDS[cell.device]
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=cell.num_ranks)
    nodes = _nodes(cell, rank, local_rank, cores)
    result = _measured(cell, rank, folder)
    if result is not None:
        leave_result(folder, {**result, "nodes": nodes})
    dist.barrier()
    dist.destroy_process_group()


def _task(job: Mapping[str, Any], folder: Path) -> Task:
    """What a job tells to do, by its kind."""
    if job["kind"] == Asked.kind:
        return asked_from(job["cell"])
    return cell_from(job["cell"], str(folder))


def _measured(task: Task, rank: int, folder: Path) -> dict[str, Any] | None:
    """What came of a task; None on ranks that leave nothing."""
    if isinstance(task, Asked):
        from equipoise.bench.collectives.timed import measured as timed  # noqa: PLC0415 - needs torch

        return timed(task, rank, lambda found: leave_so_far(folder, found))
    assert isinstance(task, Cell)
    return measured(task, rank)


def _take_device(local_rank: int) -> None:
    """Compute on the device of this rank of the node. Raises UsageError where it has too few."""
    import torch  # noqa: PLC0415 - after the cores are set

    num_devices = torch.cuda.device_count()
    # A scheduler that shows every rank a device of its own leaves nothing to choose.
    alone = num_devices == 1 and os.environ.get("EQUIPOISE_OWN_DEVICE") == "1"
    if local_rank >= num_devices and not alone:
        raise UsageError(
            f"{local_rank + 1} ranks on a node of {num_devices} accelerators; take smaller --sizes"
        )
    torch.cuda.set_device(0 if alone else local_rank)


def _nodes(cell: Task, rank: int, local_rank: int, cores: Sequence[int]) -> list[dict[str, Any]]:
    """The conditions of every node that takes part, each with its ranks and their cores."""
    import torch.distributed as dist  # noqa: PLC0415 - after the cores are set

    # The first rank of a node speaks for it: ranks of one node follow each other.
    found = conditions(core_sets=(), launcher="", backend=dist.get_backend()) if not local_rank else None
    everyone: list[Any] = [None] * cell.num_ranks
    dist.all_gather_object(everyone, {"rank": rank, "cores": list(cores), "node": found})
    nodes: list[dict[str, Any]] = []
    for one in everyone:
        if one["node"] is not None:
            nodes.append({**one["node"], "ranks": [], "core_sets": []})
            del nodes[-1]["launcher"]
        nodes[-1]["ranks"].append(one["rank"])
        nodes[-1]["core_sets"].append(one["cores"])
    return nodes


def main() -> None:
    """Run one rank; leave with exit code 1 and a reason when it fails."""
    end_with_parent()
    end_with_input()
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    try:
        _run(folder, rank)
    except EquipoiseError as err:
        leave_reason(folder, rank, f"refused: {err}")
        sys.exit(1)
    except _RAISED as err:
        short = isinstance(err, MemoryError) or any(words in str(err).lower() for words in _NO_MEMORY)
        said = f"{type(err).__name__}: {(str(err).strip().splitlines() or [''])[0]}"
        leave_reason(folder, rank, f"ran {OUT_OF_MEMORY}: {said}" if short else f"raised {said}")
        raise


if __name__ == "__main__":
    main()
