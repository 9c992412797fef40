"""A trial: one run of a sweep, in processes of its own; its parameters and its permanent name. No torch."""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from math import inf
from types import NoneType
from typing import Any, ClassVar, get_args

from msgspec import Struct, to_builtins
from msgspec.structs import fields

from equipoise.errors import DataError, UsageError

PRECISIONS = ("fp32", "tf32", "bf16")
DEVICES = ("cpu", "cuda")

_HASH_DIGITS = 10
_LONGEST_WORD = 40
# Numbers are parts of file names, and columns of tables have 64 bits.
_MOST_COUNT = 10**15


class Trial(Struct, frozen=True, kw_only=True):
    """One run: what is trained, how, on how many ranks; `repetition` counts equal runs from 1.

    batch_samples: samples of a step over all ranks. num_steps: timed steps, after warm-up.
    device: where ranks compute, as torch names it (`cuda` is AMD's too). train_samples: None to time steps;
    else how many samples to train on, with the held-out loss on the way. learning_rate: None for the
    workload's own. arm: 1, or 2 for the second of two equal arms that are compared with each other (A/A).
    """

    kind: ClassVar[str] = "trial"

    workload: str
    method: str
    num_ranks: int
    batch_samples: int
    precision: str = "fp32"
    num_steps: int = 20
    repetition: int = 1
    seed: int = 0
    device: str = "cpu"
    train_samples: int | None = None
    learning_rate: float | None = None
    arm: int = 1

    def __post_init__(self) -> None:
        """Refuse a trial that cannot be run."""
        if min(self.num_ranks, self.batch_samples, self.num_steps, self.repetition) < 1:
            raise UsageError(
                f"{self.num_ranks} ranks, batch {self.batch_samples}, {self.num_steps} steps, "
                f"repetition {self.repetition}: expected at least 1 of each"
            )
        if self.batch_samples % self.num_ranks:
            raise UsageError(
                f"a batch of {self.batch_samples} samples cannot be shared equally by "
                f"{self.num_ranks} ranks; take a multiple of {self.num_ranks}"
            )
        if self.device not in DEVICES:
            raise UsageError(f"device {self.device!r}; expected one of {', '.join(DEVICES)}")
        if self.train_samples is not None and self.train_samples < self.batch_samples:
            raise UsageError(
                f"training on {self.train_samples} samples; expected at least a batch, {self.batch_samples}"
            )
        if self.learning_rate is not None and not 0 < self.learning_rate < inf:
            raise UsageError(f"learning rate {self.learning_rate}; expected a number above 0")
        if self.precision not in PRECISIONS:
            raise UsageError(f"precision {self.precision!r}; expected one of {', '.join(PRECISIONS)}")

    @property
    def rank_batch_samples(self) -> int:
        """Samples of a step on each rank."""
        return self.batch_samples // self.num_ranks

    @property
    def trial_id(self) -> str:
        """A name that is safe for a file: readable words, and a hash over every field."""
        return f"{self._words}-{self.repetition}-{_digest(to_builtins(self))}"

    @property
    def configuration(self) -> tuple[object, ...]:
        """What repetitions of the same run share: every field but the repetition and the arm.

        Trainings start from other weights each: their seed is no part of it either.
        """
        return tuple(self._shared().values())

    @property
    def configuration_id(self) -> str:
        """A name of what repetitions share, safe for a file."""
        return f"{self._words}-{_digest(self._shared())}"

    def _shared(self) -> dict[str, Any]:
        excluded = {"repetition", "arm"} | (set() if self.train_samples is None else {"seed"})
        return {name: value for name, value in to_builtins(self).items() if name not in excluded}

    @property
    def _words(self) -> str:
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.workload}-{self.method}")[:_LONGEST_WORD].strip("-")
        return f"{words}-{self.num_ranks}x{self.rank_batch_samples}"

    def as_json(self) -> dict[str, Any]:
        """Its fields, for a file."""
        return dict(to_builtins(self))


def _digest(named: Mapping[str, Any]) -> str:
    return sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:_HASH_DIGITS]


def trial_from(found: Mapping[str, Any], where: str) -> Trial:
    """The trial that `as_json` gave. Raises DataError naming the file and the field."""
    expected = {each.name: each.type for each in fields(Trial)}
    if set(found) != set(expected):
        differing = ", ".join(sorted(set(found) ^ set(expected)))
        raise DataError(f"{where}: a trial with fields that are missing or unknown: {differing}")
    for name, kind in expected.items():
        allowed = get_args(kind) or (kind,)
        if type(found[name]) not in allowed:
            words = " or ".join("null" if one is NoneType else one.__name__ for one in allowed)
            raise DataError(f"{where}: {name}={found[name]!r} of a trial; expected {words}")
        if isinstance(found[name], int) and abs(found[name]) > _MOST_COUNT:
            raise DataError(f"{where}: {name} of a trial has a number beyond {_MOST_COUNT:,}")
    return Trial(**found)
