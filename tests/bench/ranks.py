"""One rank of the tests of ways to train: runs the named scenarios one after another, saves what each gives.

Usage: ranks.py STORE OUT SCENARIO...; rank and number of ranks come from RANK and WORLD_SIZE.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from msgspec.structs import replace

from equipoise.bench.training import OptimizerSettings, Trainee, method, trainee
from equipoise.bench.trial_rank import HeldOutEvaluator

SEED = 3
SEEDS = (3, 4, 5)
GLOBAL_BATCH = 64
NUM_FALLING = 120
NUM_SUMS = 9


def doubled(trainee):
    """The trainee in float64, so that only the order of sums can differ."""
    trainee.model.double()
    batches = ((images.double(), labels) for images, labels in trainee.batches)
    return replace(trainee, batches=batches)


def trained(
    text,
    *,
    num_runs,
    rank,
    world_size,
    batch_samples=GLOBAL_BATCH,
    momentum=0.0,
    double=True,
    after=None,
    seed=SEED,
):
    """Weights, losses and held-out losses of the digits MLP after so many runs of a method."""
    found, argument = method(text)
    subject = trainee("mlp", batch_samples=batch_samples, seed=seed, rank=rank, num_ranks=world_size)
    subject = doubled(subject) if double else subject
    subject = replace(subject, settings=OptimizerSettings(learning_rate=0.05, momentum=momentum))
    step = found.begin(subject, world_size=world_size, argument=argument)
    phases = []
    step.marks.append(phases.append)
    losses = []
    for _ in range(num_runs):
        losses.append(float(step.run(next(subject.batches)).detach()))
        if after is not None:
            after(step)
    step.close()
    weights = step.weights()
    held_out = None
    if not double:
        images, labels = subject.held_out
        with torch.no_grad():
            held_out = float(subject.loss(step.module, (images, labels)))
    return {
        "weights": weights,
        "losses": losses,
        "held_out": held_out,
        "phases": phases,
        "period": step.period,
    }


def falling(text, rank, world_size):
    """A training long enough to see the loss fall.

    DiLoCo without momentum inside: with it, its steps are too long here and rounding decides where they end.
    """
    momentum = 0.0 if text.startswith("diloco") else 0.9
    return trained(
        text, num_runs=NUM_FALLING, rank=rank, world_size=world_size, momentum=momentum, double=False
    )


def without_momentum(text, rank, world_size):
    """Held-out losses by seed, of trainings as long as `falling`, with SGD without momentum on each rank."""
    return [
        trained(text, num_runs=NUM_FALLING, rank=rank, world_size=world_size, double=False, seed=seed)[
            "held_out"
        ]
        for seed in SEEDS
    ]


def exact(text, rank, world_size):
    """A short training in float64."""
    return trained(text, num_runs=8, rank=rank, world_size=world_size)


def looked_at(text, rank, world_size):
    """The same training as `falling`, judged after every run; what was found in the middle of a cycle."""
    looks = []
    judge = HeldOutEvaluator(trainee("mlp", batch_samples=GLOBAL_BATCH, seed=SEED), rank, world_size)

    def look(step):
        own = step.weights()
        looks.append((own, judge.evaluate(step.weights())))

    result = trained(
        text, num_runs=NUM_FALLING, rank=rank, world_size=world_size, momentum=0.9, double=False, after=look
    )
    own, found = looks[5]  # six runs: two after an exchange every four
    return {"weights": result["weights"], "own": own, "found": found}


def many_buckets(text, rank, world_size):
    """A few steps of the small CNN, whose gradients fill two buckets."""
    found, argument = method(text)
    subject = trainee("small_cnn", batch_samples=4, seed=SEED, rank=rank, num_ranks=world_size)
    subject = replace(subject, settings=OptimizerSettings(learning_rate=0.01))
    step = found.begin(subject, world_size=world_size, argument=argument)
    for _ in range(5):
        step.run(next(subject.batches))
    step.close()
    return {"weights": step.weights()}


def sums(text, rank, world_size):
    """What steps of a linear loss applied, what they should have, and what each rank has not sent yet.

    The gradient of sum(W x) weighted by t is t x^T whatever W is: the true sum is known on any path.
    """
    torch.manual_seed(SEED)
    model = torch.nn.Linear(24, 16, bias=False)
    before = model.weight.detach().clone()
    drawing = torch.Generator().manual_seed(SEED + rank)
    batches = [torch.randn(16, 24, generator=drawing) for _ in range(NUM_SUMS)]
    subject = Trainee(
        model=model,
        batches=iter(batches),
        loss=lambda module, wanted: (module(torch.eye(24)) * wanted.T).sum(),
        num_samples=len,
        settings=OptimizerSettings(learning_rate=1.0),
    )
    found, argument = method(text)
    step = found.begin(subject, world_size=world_size, argument=argument)
    for batch in batches:
        step.run(batch)
    kept = step.hook_state.unsent if text.startswith("topk") else step.hook_state.error_dict
    (residual,) = kept.values()
    return {
        "applied": before - model.weight.detach(),
        "given": torch.stack(batches).sum(0),
        "residual": residual.reshape(16, 24).clone(),
    }


SCENARIOS = {
    "falling": falling,
    "without_momentum": without_momentum,
    "exact": exact,
    "looked_at": looked_at,
    "many_buckets": many_buckets,
    "sums": sums,
}


def main(store, out, scenarios):
    """Runs the scenarios; a file is there once its scenario is complete."""
    if scenarios == ["hang"]:
        time.sleep(3600)

    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    for scenario in scenarios:
        kind, _, text = scenario.partition("/")
        result = SCENARIOS[kind](text, rank, world_size)
        whole = Path(out, f"{scenario.replace('/', '-')}.{rank}.pt")
        torch.save(result, whole.with_suffix(".part"))
        whole.with_suffix(".part").rename(whole)
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo that still frees its last work aborts an interpreter that closes


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
