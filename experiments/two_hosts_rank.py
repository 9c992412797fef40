"""One process of two_hosts.py: times the trials it is given, one JSON a line; rank 0 answers with results.

Usage: two_hosts_rank.py RANK NUM_RANKS CORE. A repetition's trials share a process: starting one takes longer
than timing most trials.
"""

import gc
import json
import os
import sys

from msgspec import convert

from equipoise.bench.trial import Trial
from equipoise.bench.worker import end_with_parent


def main(rank: int, num_ranks: int, core: int) -> None:
    """Time until there is nothing more to read."""
    end_with_parent()
    os.sched_setaffinity(0, {core})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    import torch  # noqa: PLC0415 - its threads take the cores they find
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    from equipoise.bench.trial_rank import time_steps  # noqa: PLC0415 - likewise

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=num_ranks)
    for line in sys.stdin:
        torch.manual_seed(0)
        result = time_steps(convert(json.loads(line), Trial), rank, torch.device("cpu"))
        gc.collect()
        if result is not None:
            print(json.dumps(result, allow_nan=False), file=answers, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
