"""What the study concludes, as statements that data can test: words, printed rule, test.

A new statement is a record here and its test in readings.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from equipoise.scaling import readings
from equipoise.scaling.readings import MARGIN, Reading
from equipoise.scaling.views import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement about a workload: its words, its rule, and the test of a view."""

    words: str
    rule: str
    test: Callable[[View], Reading]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """One claim of the study about one workload: its number, words and statements."""

    number: int
    workload: str
    words: str
    statements: tuple[Statement, ...]


_FALLS_FROM_SIXTEEN = Statement(
    words="efficiency falls from 16 accelerators on",
    rule=f"best efficiency from 16 on / best below 16: holds below {1 / (1 + MARGIN):.2f}, reverses above "
    f"{1 / (1 - MARGIN):.2f}",
    test=readings.falls_from_sixteen,
)

BERT = (
    Statement(
        words="efficiency is best near 8 accelerators",
        rule=f"best efficiency at 6 to 11 accelerators / best elsewhere: holds above {1 + MARGIN:.2f}, "
        f"reverses below {1 - MARGIN:.2f}",
        test=readings.best_near_eight,
    ),
    _FALLS_FROM_SIXTEEN,
    Statement(
        words="the largest system is about as efficient as the smallest",
        rule="efficiency of the largest against the baseline: holds from 0.5 to 2, reverses below 0.5",
        test=readings.largest_like_smallest,
    ),
)

_LLAMA2 = (
    Statement(
        words="efficiency is above 1 at 4 to 8 accelerators",
        rule="median efficiency at 4 to 8, baseline left out: holds above 1, reverses below "
        f"{1 - MARGIN:.2f}",
        test=readings.above_one_at_four_to_eight,
    ),
    _FALLS_FROM_SIXTEEN,
    Statement(
        words="the largest system is fast and inefficient",
        rule="the largest has the shortest time and an efficiency below 0.5: both hold, neither reverses",
        test=readings.largest_fast_and_inefficient,
    ),
)

RETINANET = (
    Statement(
        words="the largest system has a low efficiency",
        rule="efficiency of the largest: holds below 0.5, reverses from 0.8",
        test=readings.largest_inefficient,
    ),
)

_STABLE_DIFFUSION = (
    Statement(
        words="efficiency is moderate to high at 4 to 8 accelerators",
        rule="median efficiency at 4 to 8, baseline left out: holds from 0.5, reverses below",
        test=readings.moderate_at_four_to_eight,
    ),
    Statement(
        words="efficiency falls at 16, at 32 and at hundreds",
        rule="best efficiency from step to step (below 16, 16-31, 32-99, 100 on): holds when every ratio is "
        f"below {1 - MARGIN:.2f}, reverses when every one is above {1 + MARGIN:.2f}",
        test=readings.falls_in_steps,
    ),
    Statement(
        words="TPU v5p is present",
        rule="holds when a scored entry ran on it",
        test=readings.tpu_v5p_present,
    ),
)

BALANCE = Statement(
    words="an intermediate size balances time and efficiency",
    rule="the size with the highest efficiency x speedup (best entry a size): holds when it lies inside the "
    "range, reverses at the smallest, not supported at the largest",
    test=readings.balance_is_interior,
)

CAUSE = Statement(
    words="the loss is communication and gradient synchronisation",
    rule="share of the log loss at the largest size that is throughput, the only factor communication can "
    "be in: holds from 2/3, reverses up to 1/3",
    test=readings.loss_is_throughput,
)

# The claims about one workload. Claim 3 compares two, claims 5 and 6 are about all.
STATED = (
    Stated(
        number=1,
        workload="bert",
        words="BERT: best near 8 accelerators, falling from 16; the largest is as efficient as the smallest",
        statements=BERT,
    ),
    Stated(
        number=2,
        workload="llama2_70b_lora",
        words="Llama 2 LoRA: above 1 at 4 to 8, falling from 16; the largest is fast and inefficient",
        statements=_LLAMA2,
    ),
    Stated(
        number=4,
        workload="stable_diffusion",
        words="Stable Diffusion: moderate to high at 4 to 8, falling at 16, 32 and hundreds; with TPU v5p",
        statements=_STABLE_DIFFUSION,
    ),
)
COMPARED = ("retinanet", "llama2_70b_lora")
STUDIED = ("bert", "llama2_70b_lora", "retinanet", "stable_diffusion")
