"""Strategies that people reach for first: data parallelism, plain and fully sharded."""

from dataclasses import replace
from typing import Final

from equipoise.decide.strategies.problem import Problem
from equipoise.errors import SpecError
from equipoise.perfmodel.layouts import divisors
from equipoise.spec.strategy import Strategy

_MOST_MICROBATCH: Final = 64  # samples


def plain_strategies(problem: Problem, best: Strategy) -> tuple[Strategy, ...]:
    """Plain DDP and FSDP of the best strategy's size, batch and precision, where they are legal and fit.

    The largest micro-batch that fits is taken.
    """
    size, batch = best.num_accelerators, best.global_batch_samples
    held = problem.cluster.accelerator.memory_bytes
    if size == 1 or batch % size:
        return ()
    found = []
    for stage in (0, 3):
        if "zero_stage" in problem.choices and stage not in problem.choices["zero_stage"]:
            continue
        plain = [
            each
            for microbatch in divisors(batch // size)
            if microbatch <= _MOST_MICROBATCH
            if (each := _plain(best, size, stage, microbatch)) is not None
        ]
        timed = problem.timed(plain).strategies
        fitting = [each for each in timed if held is None or each.memory_bytes <= held]
        if fitting:
            found.append(min(fitting, key=lambda each: each.work_s.value).strategy)
    return tuple(found)


def _plain(best: Strategy, size: int, stage: int, microbatch: int) -> Strategy | None:
    usual = Strategy(global_batch_samples=best.global_batch_samples)
    try:
        return replace(
            usual,
            dp=size,
            microbatch_samples=microbatch,
            zero_stage=stage,
            precision=best.precision,
            implementation=best.implementation,
            optimizer=best.optimizer,
            trained=best.trained,
            lora_rank=best.lora_rank,
        )
    except SpecError:
        return None
