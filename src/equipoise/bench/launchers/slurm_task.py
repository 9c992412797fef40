"""One task of a Slurm job: runs a rank as others are run, and leaves how it ended. No torch.

Imported on the nodes by submitit, which names the function by its module.
"""

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from equipoise.bench.launchers.folder import End
from equipoise.bench.launchers.hosts import slurm_address
from equipoise.bench.launchers.processes import Order, Ranks

END = "end.json"
BEAT = "beat"
BEAT_S = 5.0
# Caches of a shared file system may hold back what was written a minute ago.
_PATIENCE_S = 150.0
_POLL_S = 0.05
_PORTS = range(20_000, 32_000)  # below those that Linux gives away


def task_folder(folder: Path, rank: int) -> Path:
    """Where a rank leaves what it has to say."""
    return folder / f"rank{rank}"


def run(folder_text: str, told: Mapping[str, Any], most_tasks: int) -> None:
    """Run the rank of this task; what came of it is in its folder.

    folder_text: of the job, shared by all nodes. most_tasks: on a node, in the whole sweep.
    """
    from submitit.helpers import TorchDistributedEnvironment  # noqa: PLC0415 - only where jobs run

    seat = TorchDistributedEnvironment()
    folder = task_folder(Path(folder_text), seat.rank)
    folder.mkdir()
    cores = _cores(seat.local_rank, most_tasks)
    order = Order(
        ranks=(seat.rank,),
        num_ranks=seat.world_size,
        # The name that submitit would take need not resolve; its port follows from the number of the job,
        # which jobs of another cluster may have too. The folder of a job is its own.
        address=slurm_address(os.environ["SLURM_JOB_NODELIST"]),
        port=_PORTS[crc32(folder_text.encode()) % len(_PORTS)],
        told={**told, "core_sets": [cores]},
        first_local_rank=seat.local_rank,
        num_local_ranks=seat.local_world_size,
    )
    ranks = Ranks(order, folder)

    def end_at_once(_number: int, _frame: object) -> None:
        ranks.end()
        os._exit(1)

    # submitit lets the signal pass, for jobs that save their state; this one is over when it is cancelled.
    signal.signal(signal.SIGTERM, end_at_once)
    try:
        end = _ended(ranks, Path(folder_text) / BEAT)
    finally:
        ranks.end()
    aside = folder / f".{END}"
    said = {"code": end.code, "why": end.why, "host": os.environ.get("SLURMD_NODENAME", "")}
    aside.write_text(json.dumps(said), encoding="utf-8")
    aside.replace(folder / END)


def _ended(ranks: Ranks, beat: Path) -> End:
    """How the rank ended; ends this task when the driver has stopped to write that it lives."""
    last, since = b"", time.monotonic()
    looked = 0.0
    while True:
        ends = ranks.ends()
        if ends:
            return ends[0]
        now = time.monotonic()
        if now - looked > BEAT_S:
            looked = now
            found = beat.read_bytes() if beat.exists() else last
            if found != last:
                last, since = found, now
            if now - since > _PATIENCE_S:
                raise TimeoutError(f"{beat}: unchanged for {_PATIENCE_S:g} s: the sweep is gone")
        time.sleep(_POLL_S)


def _cores(local_rank: int, most_tasks: int) -> tuple[int, ...]:
    """The cores of a rank: those that Slurm bound it to, or its share of the node's."""
    mine = tuple(sorted(os.sched_getaffinity(0)))
    on_node = int(os.environ.get("SLURM_CPUS_ON_NODE", len(mine)))
    each = int(os.environ.get("SLURM_CPUS_PER_TASK", max(1, on_node // most_tasks)))
    if len(mine) <= each:
        return mine
    first = local_rank * each
    return mine[first : first + each] or mine
