"""Two momenta in DiLoCo: docs/experiments/0013-convergence.md, "Why DiLoCo ends high".

Held-out loss of the digits MLP over seeds, with momentum on the ranks and without. To compute as another
processor does: ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41, or avx2, AVX2, AVX2.

  torchrun --nproc-per-node=2 experiments/diloco_momentum.py [--methods ddp,diloco:4] [--seeds 10]
           [--steps 120] [--optimizer sgd] [--rate 0.05]
"""

import argparse

import torch
import torch.distributed as dist
from msgspec.structs import replace

from equipoise.bench.training import OptimizerSettings, method, trainee

BATCH_SAMPLES = 64
MOMENTA = (0.9, 0.5, 0.0)


def held_out_loss(text: str, settings: OptimizerSettings, *, seed: int, num_steps: int) -> float:
    """The loss on held-out digits after so many steps of a method on this process group."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    found, argument = method(text)
    subject = trainee("mlp", batch_samples=BATCH_SAMPLES, seed=seed, rank=rank, num_ranks=world_size)
    subject = replace(subject, settings=settings)
    step = found.begin(subject, world_size=world_size, argument=argument)
    for _ in range(num_steps):
        step.run(next(subject.batches))
    step.close()
    with torch.no_grad():
        return float(subject.loss(step.module, subject.held_out))


def main() -> None:
    """Print one line for each momentum and method: the losses of all seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default="ddp,diloco:4,diloco_fp16:4")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--rate", type=float, default=0.05)
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for momentum in MOMENTA if asked.optimizer == "sgd" else (0.0,):
        settings = OptimizerSettings(name=asked.optimizer, learning_rate=asked.rate, momentum=momentum)
        for text in asked.methods.split(","):
            losses = [
                held_out_loss(text, settings, seed=seed, num_steps=asked.steps) for seed in range(asked.seeds)
            ]
            if dist.get_rank() == 0:
                print(f"{momentum} {text:16}", *(f"{loss:.3f}" for loss in losses), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
