"""One process of a crew: trains the trials it is given, a line of JSON each; rank 0 answers with results.

Usage: crew.py RANK NUM_RANKS STORE. Loss against samples needs no fresh processes.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from msgspec import convert

from equipoise.bench.trial import Trial
from equipoise.bench.trial_rank import train


def main(rank: int, num_ranks: int, store: str) -> None:
    """Train until there is nothing more to read."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    for line in sys.stdin:
        result = train(convert(json.loads(line), Trial), rank, torch.device("cpu"))
        if result is not None:
            print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
