"""The search of `tune.py` on this machine: costs of messages first, then runs as they are chosen."""

from dataclasses import asdict, replace

from equipoise.advice.measured.exchange_costs import exchange_costs, needed
from equipoise.advice.measured.foretold_steps import one_device
from equipoise.advice.measured.tune import Found, search
from equipoise.advice.measured.ways import Space, alone_cells
from equipoise.bench.trials import Trials
from equipoise.errors import UsageError


def tuned(
    space: Space, trials: Trials, *, num_trials: int, num_repetitions: int, resume: bool = False
) -> Found:
    """The fastest way that was found to train here; everything measured is kept in the folder of the trials.

    Raises UsageError where only one device is to be tried or the folder holds other trials, EvidenceError
    where nothing could be measured, DataError where it cannot be kept.
    """
    sizes = [size for size in space.sizes if size > 1]
    if not sizes:
        raise UsageError("--find with one device: expected --sizes with at least 2, such as 1,2")
    asked = {**asdict(space), "num_trials": num_trials, "num_repetitions": num_repetitions}
    trials.begin({**asked, "launcher": trials.launch_with.name}, resume=resume)
    gradient_bytes = one_device(trials.measured(alone_cells(space))).gradient_bytes
    costs = {}
    for size in sizes:
        rivals = needed(space.methods, num_ranks=size, device=space.device, gradient_bytes=gradient_bytes)
        costs[size] = exchange_costs(trials.costs(rivals), str(trials.folder))
    found = search(space, trials.measured, costs, num_trials=num_trials, num_repetitions=num_repetitions)
    return replace(found, folder=trials.folder)
