"""One process of a cell: `python -m equipoise.bench.worker FOLDER`, RANK and WORLD_SIZE being set.

Joins the other ranks, has its cell measured, and leaves what was measured, or why it could not be.
"""

import os
import sys
from pathlib import Path

from equipoise.bench.attached import end_with_input, end_with_parent
from equipoise.bench.cell import cell_from
from equipoise.bench.launchers.folder import OUT_OF_MEMORY, leave_reason, leave_result, told
from equipoise.bench.timed_steps import measured
from equipoise.errors import EquipoiseError

_BACKEND = "gloo"
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# What a user's own model can raise.
_RAISED = (Exception,)


def _run(folder: Path, rank: int) -> None:
    """Join the other ranks, measure, leave the result."""
    job = told(folder)
    cell = cell_from(job["cell"], str(folder))
    cores = job["core_sets"][rank]
    os.sched_setaffinity(0, cores)
    import torch  # noqa: PLC0415 - its threads take the cores they find
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    torch.set_num_threads(len(cores))
    torch.manual_seed(cell.seed)
    meeting = "env://" if "MASTER_ADDR" in os.environ else (folder / "meeting").resolve().as_uri()
    dist.init_process_group(_BACKEND, init_method=meeting, rank=rank, world_size=cell.num_ranks)
    result = measured(cell, rank)
    if result is not None:
        leave_result(folder, result)
    dist.barrier()
    dist.destroy_process_group()


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
