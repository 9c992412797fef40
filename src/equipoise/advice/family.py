"""Models in the proportions of one, each with the trainings that money and time may be enough for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from equipoise.advice.plans.landscape import Landscape, surveyed
from equipoise.advice.plans.length import training_length
from equipoise.advice.plans.planned import Option, Question
from equipoise.advice.plans.setting import Setting
from equipoise.perfmodel.load import workload_load
from equipoise.spec.family import of_size
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.units import SI_PREFIXES

# Models from toys to what nobody has trained.
_LEAST_PARAMS, _MOST_PARAMS = SI_PREFIXES["M"], 100 * SI_PREFIXES["T"]
# What the search for the largest model leaves open; half a layer is as much.
TOLERANCE = 0.02
_MOST_TRIES = 40
# Work a training takes grows as the square of its model, whose tokens grow with it.
_SLOPE = 2.0
_BATCH_FACTOR, _BATCH_POWER = 0.292, 0.3271


@dataclass(slots=True, kw_only=True)
class Family:
    """Models in the proportions of one, each with the training that takes the least of what there is.

    tokens_per_param: of each model. tried: by parameters asked for.
    """

    question: Question
    ground: Setting
    sizes: tuple[int, ...]
    tokens_per_param: float
    tried: dict[float, "Tried"] = field(default_factory=dict)

    def at(self, params: float) -> "Tried":
        """The model of about so many parameters, on the accelerators that use up the least."""
        if params not in self.tried:
            self.tried[params] = self._try(params)
        return self.tried[params]

    def _try(self, params: float) -> "Tried":
        base = self.ground.workload
        assert base.transformer is not None
        assert base.sequence_tokens is not None
        shape = of_size(base.transformer, params)
        tokens = self.tokens_per_param * shape.params
        about = replace(base, transformer=shape, params=float(shape.params))
        samples = max(1.0, tokens / base.sequence_tokens)
        ground = replace(
            self.ground,
            workload=about,
            load=workload_load(about),
            length=training_length(about, None, stated_samples=samples),
            global_batch_samples=self._batch(about, tokens),
        )
        found = surveyed(Landscape(ground=ground), self.sizes)
        options = [each.best for each in found.sized if each.best is not None]
        return Tried(
            shape=shape,
            tokens=tokens,
            options=tuple(options),
            used={
                end: min((used_up(self.question, each, end) for each in options), default=math.inf)
                for end in ("low", "value", "high")
            },
        )

    def _batch(self, about: Workload, tokens: float) -> int:
        """The global batch asked for, else the one that loses least at such a training's FLOP.

        Source: Bi et al. 2024 (DeepSeek LLM), equation 1: 0.292 C ** 0.3271 tokens.
        """
        given = self.question.global_batch_samples
        if given is not None:
            return given
        assert about.sequence_tokens is not None
        flop = (about.train_flop_per_sample or 0.0) / about.sequence_tokens * tokens
        samples = _BATCH_FACTOR * flop**_BATCH_POWER / about.sequence_tokens
        most = max(1.0, tokens / about.sequence_tokens)
        return int(2 ** max(0, math.floor(math.log2(min(samples, most)))))

    def largest_fitting(self) -> "Tried | None":
        """Of the models tried, the largest that money and time are enough for."""
        fit = [each for each in self.tried.values() if each.used["value"] <= 1.0]
        return max(fit, key=lambda each: each.shape.params, default=None)

    def largest(self, end: str) -> float:
        """About the most parameters that money and time are enough for, at one end of their intervals.

        end: of the interval of time and money. Returns 0 where no model is small enough.
        Assumes that larger models take more; where divisors of sizes make some take less, one of them may
        be passed over.
        """
        base = self.ground.workload.params or _LEAST_PARAMS
        self.at(min(max(base, _LEAST_PARAMS), _MOST_PARAMS))
        fits, fails = 0.0, math.inf
        for _ in range(_MOST_TRIES):
            used = {params: each.used[end] for params, each in self.tried.items()}
            fits = max((params for params, share in used.items() if share <= 1.0), default=0.0)
            fails = min((params for params in used if params > fits), default=math.inf)
            spent = used.get(fits, 0.0) >= (1.0 - TOLERANCE) ** _SLOPE
            if spent or fits == _MOST_PARAMS or fails <= max(fits * (1.0 + TOLERANCE), _LEAST_PARAMS):
                break
            self.at(_next(used, fits, fails))
        return fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A model, its trainings, and the least share that one takes of money or time, whichever is more."""

    shape: Transformer
    tokens: float
    options: tuple[Option, ...]
    used: Mapping[str, float]


def used_up(question: Question, option: Option, end: str) -> float:
    """The share of deadline or budget that an option takes, the larger, at an end of its intervals."""
    late = getattr(option.time, end) / question.deadline_s
    if option.bill.money is None:
        return float(late)
    return float(max(late, getattr(option.bill.money, end) / question.budget_usd))


def _next(used: Mapping[float, float], fits: float, fails: float) -> float:
    """The next size to try: by how work grows with it from the size nearest to the end, within the bracket.

    used: share of money or time, by size; infinite where nothing fits into memory.
    """
    low, high = max(fits, _LEAST_PARAMS), min(fails, _MOST_PARAMS)
    known = {params: share for params, share in used.items() if 0.0 < share < math.inf}
    if not known:
        return math.sqrt(low * high)
    near = min(known, key=lambda params: abs(math.log(known[params])))
    # A little below what the law says: what just fits ends the search.
    better = near * math.pow(known[near], -1.0 / _SLOPE) * (1.0 - TOLERANCE / 2)
    if not math.isfinite(fails):
        return min(max(better, 2.0 * low), high)
    if not fits and low < better < high:
        return better
    edge = (high / low) ** 0.05
    return better if low * edge <= better <= high / edge else math.sqrt(low * high)
