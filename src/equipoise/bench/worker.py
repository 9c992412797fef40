"""One process of a job: `python -m equipoise.bench.worker FOLDER`, with RANK and WORLD_SIZE set."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import convert

from equipoise.bench.collectives import CollectivesTask
from equipoise.bench.devices import device, every_rank
from equipoise.bench.environment import conditions
from equipoise.bench.launchers import (
    INSTRUCTIONS,
    OUT_OF_MEMORY,
    RESULT,
    SEAT,
    SO_FAR,
    WorkerTask,
    read_document,
    write_document,
    write_reason,
)
from equipoise.bench.sweep import InterferenceTask
from equipoise.bench.trial import Trial
from equipoise.errors import EquipoiseError, UsageError, first_line

if TYPE_CHECKING:
    import torch

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends.

    Unlike `end_with_input`, this also ends a process that hangs and no longer runs any of its threads.
    """
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent or parent == 1:  # the parent ended before the call
            os._exit(1)


def end_with_input() -> None:
    """End this process when its standard input closes; the parent holds the other end and never writes."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# A user's own model can raise anything.
_RAISED = (Exception,)
_TASKS: Mapping[str, type[WorkerTask]] = {
    each.kind: each for each in (Trial, CollectivesTask, InterferenceTask)
}


def _run(folder: Path, rank: int) -> None:
    """Rendezvous with the other ranks, measure, and write the result."""
    job = read_document(folder, INSTRUCTIONS) or {}
    task: WorkerTask = convert(job["task"], _TASKS[job["kind"]])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    cores = job["core_sets"][int(os.environ.get(SEAT, local_rank))]
    os.sched_setaffinity(0, cores)
    import torch  # noqa: PLC0415 - torch's threads use the cores set at import
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    torch.set_num_threads(len(cores))
    torch.manual_seed(task.seed)
    on = device(task.device)
    refusal = on.why_not()
    if refusal:
        raise UsageError(refusal)
    place = on.bind(local_rank)
    # A path instead of a URI, because torch does not decode escaped spaces; bytes, because file names need
    # not be UTF-8.
    store_path: Any = os.fsencode(folder / "meeting")
    store = None if "MASTER_ADDR" in os.environ else dist.FileStore(store_path, task.num_ranks)
    dist.init_process_group(on.backend, store=store, rank=rank, world_size=task.num_ranks)
    nodes = _nodes(rank, local_rank, cores, on.conditions(place))
    result = _measure(task, rank, folder, place)
    if result is not None:
        write_document(folder, RESULT, {**result, "nodes": nodes})
    dist.barrier()
    dist.destroy_process_group()


def _measure(task: WorkerTask, rank: int, folder: Path, place: "torch.device") -> dict[str, Any] | None:
    """Run a task and return its result; None on ranks without one."""
    if isinstance(task, Trial):
        from equipoise.bench import trial_rank  # noqa: PLC0415 - torch's threads use the cores set at import

        run = trial_rank.time_steps if task.train_samples is None else trial_rank.train
        return run(task, rank, place)
    from equipoise.bench import communication_rank  # noqa: PLC0415 - likewise

    if isinstance(task, CollectivesTask):
        return communication_rank.measure_collectives(
            task, rank, lambda found: write_document(folder, SO_FAR, found)
        )
    assert isinstance(task, InterferenceTask)
    return communication_rank.measure_interference(task, rank)


def _nodes(
    rank: int, local_rank: int, cores: Sequence[int], accelerator: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the conditions of every participating node, with its ranks and their cores."""
    import torch.distributed as dist  # noqa: PLC0415 - after the cores are set

    # The first rank of a node reports its conditions; ranks of one node are consecutive.
    here = {**conditions(core_sets=(), launcher="", backend=dist.get_backend()), **accelerator}
    found = None if local_rank else here
    everyone = every_rank({"rank": rank, "cores": list(cores), "node": found})
    nodes: list[dict[str, Any]] = []
    for one in everyone:
        if one["node"] is not None:
            nodes.append({**one["node"], "ranks": [], "core_sets": []})
            del nodes[-1]["launcher"]
        nodes[-1]["ranks"].append(one["rank"])
        nodes[-1]["core_sets"].append(one["cores"])
    return nodes


def main() -> None:
    """Run one rank and exit; with exit code 1 and a written reason if it fails."""
    end_with_parent()
    end_with_input()
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    try:
        _run(folder, rank)
    except EquipoiseError as err:
        write_reason(folder, rank, f"refused: {err}")
        sys.exit(1)
    except _RAISED as err:
        short = isinstance(err, MemoryError) or any(words in str(err).lower() for words in _NO_MEMORY)
        message = f"{type(err).__name__}: {first_line(err)}"
        write_reason(folder, rank, f"ran {OUT_OF_MEMORY}: {message}" if short else f"raised {message}")
        raise
    # Skip the interpreter's shutdown, because a running gloo thread aborted it in 2 of 26 trials. All results
    # are on disk.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
