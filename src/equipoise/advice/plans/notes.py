"""What to know of a plan that its figures do not show: where it guesses, extrapolates or has little room."""

import math
from collections.abc import Iterator, Sequence

from equipoise.advice.plans.mixed import kinds, speed_shares_gain
from equipoise.advice.plans.planned import Option, Question
from equipoise.advice.plans.setting import Setting
from equipoise.units import format_percent

# Estimates of memory miss the rows that state it by up to some percent (benchmarks/accuracy.py).
_NEARLY_FULL = 0.95


def notes(
    question: Question, ground: Setting, chosen: Option | None, others: Sequence[Option]
) -> Iterator[str]:
    """Notes on the length of the training, on what was asked, and on the strategy chosen."""
    yield from ground.length.notes
    yield from _asked(question, ground)
    yield from _mixed(ground, question, chosen)
    yield from _full(ground, chosen, others)


def _asked(question: Question, ground: Setting) -> Iterator[str]:
    """What the answer does not show by itself."""
    length, batch = ground.length, question.global_batch_samples
    if length.batches is None and batch is None:
        yield (
            "The global batch is the usual one of language models, 4 Mi tokens: no published result tells "
            "how many more samples a larger one needs. Give --global-batch for another."
        )
    elif length.batches is None and length.is_whole:
        yield "The number of samples is taken to be the same at every global batch."
    elif length.batches and batch and not length.batches[0] <= batch <= length.batches[1]:
        yield (
            f"A global batch of {batch:,} lies outside those of published results, {length.batches[0]:,} to "
            f"{length.batches[1]:,}: its samples are an extrapolation."
        )
    if question.objective in {"cost", "energy"} and math.isinf(question.deadline_s):
        yield f"Without --deadline the least {question.objective} is nearly always at the fewest that fit."
    if ground.rates.price is None:
        yield f"No price of {ground.cluster.accelerator.slug} is known: give --price."


def _mixed(ground: Setting, question: Question, chosen: Option | None) -> Iterator[str]:
    """Of unequal accelerators: what sharing out by speed would gain."""
    if chosen is None or len(kinds(ground.cluster.accelerator)) == 1:
        return
    gain = speed_shares_gain(question, ground.cluster, ground.load, ground.model.parameters, chosen)
    yield (
        "Equal shares go at the pace of the slower accelerator; samples shared out by speed would make a "
        f"step at most {format_percent(round(gain, 3))} shorter."
    )


def _full(ground: Setting, chosen: Option | None, others: Sequence[Option]) -> Iterator[str]:
    """Where the memory is all but full: what to take if the estimate of it is a little too low."""
    held = ground.cluster.accelerator.memory_bytes
    if chosen is None or held is None or chosen.memory_bytes <= _NEARLY_FULL * held:
        return
    share = format_percent(round(chosen.memory_bytes / held, 3))
    lean = [each for each in others if each.memory_bytes <= _NEARLY_FULL * held]
    instead = f"; else take {lean[0].strategy.text()!r}" if lean else ""
    yield f"It fills {share} of the memory, which estimates miss by some percent: try it first{instead}."
