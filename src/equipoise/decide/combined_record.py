"""How wrong each estimator is about times nobody ran, and the combined estimate: the record that ships.

records/combined.py makes it: it holds estimates against published results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import orjson

from equipoise.decide.strategies.plan_record import ModelKind
from equipoise.errors import DataError

NAME = "joined.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """Errors at sizes up to `most` times the largest known; None: without end.

    published_scale: root mean square error of the pooled law over the standard deviation that its interval
    stands for. modelled_log_sd: root mean square error of plans.
    """

    most: float | None
    num_held_out: int
    published_scale: float
    modelled_log_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedRecord:
    """Errors of logarithms of time on the largest size of a group, held out, where a plan has it too.

    by_jump: errors by how many times the largest size known the size is. modelled_log_sd: root mean square
    error of plans that choose their batch, by kind of model, of all. correlation: between the two errors.
    carried_log_sd: of a published time carried by the model over so many doublings, from 0. median, p90,
    coverage: of the joint answer, errors as |joint / published - 1|; published_median, published_p90,
    modelled_median: of each alone.
    """

    num_held_out: int
    by_jump: tuple[Jump, ...]
    modelled_log_sd: Mapping[ModelKind, float]
    correlation: float
    carried_log_sd: tuple[float, ...]
    num_carried: int
    median: float
    p90: float
    coverage: float
    published_median: float
    published_p90: float
    modelled_median: float

    def at(self, jump: float) -> Jump:
        """The errors at a size so many times the largest known."""
        return next(each for each in self.by_jump if each.most is None or jump <= each.most)

    def carried(self, num_doublings: float) -> float:
        """The error of carrying a time over so many doublings, straight between whole numbers of them."""
        places = np.arange(len(self.carried_log_sd))
        return float(np.interp(num_doublings, places, self.carried_log_sd))


@cache
def combined_record() -> CombinedRecord:
    """The record that ships. Raises DataError where its file is missing or not what `main` writes."""
    path = files("equipoise") / "data" / NAME
    try:
        found = orjson.loads(path.read_bytes())["record"]
        jumps = tuple(Jump(**each) for each in found["by_jump"])
        return CombinedRecord(
            **(found | {"by_jump": jumps, "carried_log_sd": tuple(found["carried_log_sd"])})
        )
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"{path}: {err!r}; expected the record of joint answers: `make profiles` writes it"
        ) from err
