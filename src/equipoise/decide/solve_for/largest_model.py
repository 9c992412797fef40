"""The largest model with the workload's proportions whose training is within budget and deadline."""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.decide.answer import Candidate
from equipoise.decide.assessment import Inputs
from equipoise.decide.candidates import SystemCandidates, system_candidates
from equipoise.decide.collect import assess
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.systems import RequestedSystem
from equipoise.decide.question.training import fixed_budget
from equipoise.decide.select import Rule, choose, timed_figures
from equipoise.decide.solve_for.budget_reach import (
    AS_GOOD,
    BudgetReach,
    FasterModel,
    LargerModel,
    ReachLimit,
    of_usual_sizes,
    stated_limits,
    used_fraction,
)
from equipoise.decide.user_evidence import UserEvidence
from equipoise.errors import EvidenceError, UsageError
from equipoise.intervals import Interval, exact, product
from equipoise.spec.scaled_transformer import scaled_to
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.units import SI_PREFIXES, format_si

# Range of models searched, beyond any trained so far.
_MIN_PARAMS: Final = SI_PREFIXES["M"]
_MAX_PARAMS: Final = 100 * SI_PREFIXES["T"]
# Relative tolerance of the search for the largest model; half a layer is as much.
_TOLERANCE: Final = 0.02
_MAX_TRIES: Final = 40
# Work grows with the square of the parameters, because tokens are proportional to them.
_SLOPE: Final = 2.0
_BATCH_FACTOR: Final = 0.292
_BATCH_POWER: Final = 0.3271
_WHY_TOKENS: Final = (
    "20 give the least loss for a training budget (Hoffmann et al. 2022); models for heavy use are trained "
    "on more: --tokens-per-param"
)
# The loss of mixtures depends on active parameters; the best number of tokens for each varies with the number
# of experts, so 20 is assumed as for dense models.
_WHY_TOKENS_OF_A_MIXTURE: Final = (
    "these determine the loss of a mixture (Ludziejewski et al. 2025), but 20 is the optimum of dense models "
    "(Hoffmann et al. 2022): --tokens-per-param"
)
# Gain of speed from which a slightly smaller model is preferred, and how much smaller it may be: one layer of
# 20, a small part of the interval of the result.
_MUCH_FASTER: Final = 0.1
_SLIGHTLY_SMALLER: Final = 0.05
# If less of budget or deadline is used, the next larger model is reported with its needs.
_NEARLY_USED: Final = 0.97
_NEXT_NEEDS: Final = 1.1


class ModelFamily(Struct, kw_only=True):
    """Models with the workload's proportions on one system. tried: models by requested parameters."""

    query: TrainingQuery
    inputs: Inputs
    system: RequestedSystem
    tried: dict[float, "TriedModel"] = field(default_factory=dict)

    def at(self, params: float) -> "TriedModel":
        """The model with about this number of parameters, and the candidates of its training; cached."""
        if params not in self.tried:
            self.tried[params] = self._try(params)
        return self.tried[params]

    def _try(self, params: float) -> "TriedModel":
        about = self.inputs.training
        base = about.workload
        assert base.transformer is not None
        assert base.sequence_tokens is not None
        shape = scaled_to(base.transformer, params)
        tokens = self.query.tokens_per_param * shape.active_params
        workload = replace(base, transformer=shape, params=float(shape.params))
        samples = max(1.0, tokens / base.sequence_tokens)
        inputs = replace(
            self.inputs,
            query=replace(self.query, ask=None, training_tokens=samples * base.sequence_tokens),
            training=replace(
                about,
                workload=workload,
                budget=fixed_budget(workload, samples),
                global_batch_samples=self._batch(workload, tokens),
            ),
            # The user's runs and traces are of another model; measured links still apply.
            user=UserEvidence(collectives=self.inputs.user.collectives),
        )
        candidates = of_usual_sizes(self.query, system_candidates(inputs, assess(inputs, self.system)))
        return TriedModel(
            shape=shape,
            candidates=candidates,
            used={
                end: min((used_fraction(self.query, each, end)[0] for each in candidates), default=math.inf)
                for end in ("low", "value", "high")
            },
        )

    def _batch(self, workload: Workload, tokens: float) -> int:
        """The requested global batch, else the best one for the training's FLOP, as a power of two.

        Assumes FLOP of the model without recomputation. Source: Bi et al. 2024 (DeepSeek LLM), equation 1:
        0.292 C ** 0.3271 tokens.
        """
        assert workload.sequence_tokens is not None
        most = max(1.0, tokens / workload.sequence_tokens)
        given = self.query.global_batch_samples
        if given is not None:
            return min(given, math.floor(most))
        flop = (workload.train_flop_per_sample or 0.0) / workload.sequence_tokens * tokens
        samples = _BATCH_FACTOR * flop**_BATCH_POWER / workload.sequence_tokens
        return int(2 ** max(0, math.floor(math.log2(min(samples, most)))))

    def largest_fitting(self) -> "TriedModel | None":
        """The largest model tried that is within budget and deadline."""
        fit = [each for each in self.tried.values() if each.used["value"] <= 1.0]
        return max(fit, key=lambda each: each.shape.params, default=None)

    @property
    def smallest(self) -> "TriedModel":
        """The smallest model tried; after a search without any allowed model, the smallest possible."""
        return min(self.tried.values(), key=lambda each: each.shape.params)

    def largest(self, end: str) -> float:
        """The approximate largest number of parameters within budget and deadline.

        end: of the intervals of time and cost. Returns 0 if no model is small enough.
        Assumes larger models take more time; where divisibility of sizes makes some take less, one of them
        may be missed. Source: work grows with the square of the parameters; bisection where that fails.
        """
        base = self.inputs.training.workload.params or _MIN_PARAMS
        self.at(min(max(base, _MIN_PARAMS), _MAX_PARAMS))
        fits, fails = 0.0, math.inf
        for _ in range(_MAX_TRIES):
            used = {params: each.used[end] for params, each in self.tried.items()}
            fits = max((params for params, share in used.items() if share <= 1.0), default=0.0)
            fails = min((params for params in used if params > fits), default=math.inf)
            spent = used.get(fits, 0.0) >= (1.0 - _TOLERANCE) ** _SLOPE
            if spent or fits == _MAX_PARAMS or fails <= max(fits * (1.0 + _TOLERANCE), _MIN_PARAMS):
                break
            self.at(_next_size(used, fits, fails))
        return fits


class TriedModel(Struct, frozen=True, kw_only=True):
    """A model and the candidates of its training.

    used: by end of the intervals, the smallest fraction of its limits that any candidate uses.
    """

    shape: Transformer
    candidates: tuple[Candidate, ...]
    used: Mapping[str, float]

    def fastest_within(self, query: TrainingQuery) -> Candidate:
        """The fastest candidate within budget and deadline; there must be one."""
        rule = Rule(objective="time", deadline_s=query.within_s, spend_usd=query.spend_usd)
        chosen = choose(timed_figures(self.candidates), rule, {})
        return next(each for each in self.candidates if each.id == chosen)


def _next_size(used: Mapping[float, float], fits: float, fails: float) -> float:
    """The next size to try, by extrapolation of work from the size nearest to the limit, within the bracket.

    used: fraction of budget or deadline by size; infinite where nothing fits into memory.
    """
    low, high = max(fits, _MIN_PARAMS), min(fails, _MAX_PARAMS)
    known = {params: share for params, share in used.items() if 0.0 < share < math.inf}
    if not known:
        return math.sqrt(low * high)
    near = min(known, key=lambda params: abs(math.log(known[params])))
    # Slightly below the extrapolated size, so that it fits and ends the search.
    better = near * math.pow(known[near], -1.0 / _SLOPE) * (1.0 - _TOLERANCE / 2)
    if not math.isfinite(fails):
        return min(max(better, 2.0 * low), high)
    if not fits and low < better < high:
        return better
    edge = (high / low) ** 0.05
    return better if low * edge <= better <= high / edge else math.sqrt(low * high)


def largest_model(query: TrainingQuery, inputs: Inputs, one: SystemCandidates) -> BudgetReach:
    """The largest model of the workload's family."""
    base, base_shape = inputs.training.workload, _shape_of_family(inputs, one)
    family = ModelFamily(query=query, inputs=inputs, system=one.system)
    family.largest("value")
    found = family.largest_fitting()
    if found is None:
        least = format_si(float(family.smallest.shape.params))
        raise UsageError(
            f"{stated_limits(query)} does not allow the smallest model with the proportions of {base.title}, "
            f"{least} parameters, with {query.tokens_per_param:g} tokens per{_active_text(base_shape)} "
            "parameter"
        )
    found, smaller = _with_faster_model(query, family, found)
    best = found.fastest_within(query)
    limit, larger = _limit(query, best, found, family)
    count = float(found.shape.params)
    size = Interval(
        value=count,
        # If the high end of time or cost allows no model, the interval starts at the smallest one.
        low=min(family.largest("high") or float(family.smallest.shape.params), count),
        high=max(family.largest("low"), count),
        level=best.known_time_s.level,
    )
    return BudgetReach(
        ask="model",
        question=query,
        workload=base,
        system=one.system.name,
        title=one.system.title,
        training_budget=product(
            exact(query.tokens_per_param * found.shape.active_params / found.shape.params, level=size.level),
            size,
        ),
        unit="tokens",
        params=size,
        shape=found.shape,
        recommended=best,
        limit=limit,
        larger=larger,
        faster=smaller,
        by_size=(),
        assumes=(
            f"{query.tokens_per_param:g} tokens per{_active_text(found.shape)} parameter; "
            + (_WHY_TOKENS_OF_A_MIXTURE if found.shape.idle_params else _WHY_TOKENS),
            f"the proportions of {base.title}: width and depth grow together",
            "the global batch that --global-batch states"
            if query.global_batch_samples is not None
            else "a global batch of 0.292 FLOP ** 0.3271 tokens (Bi et al. 2024, equation 1)",
        ),
    )


def _shape_of_family(inputs: Inputs, one: SystemCandidates) -> Transformer:
    """The transformer whose proportions define the workload's family.

    Raises EvidenceError if there is no such family, or its models cannot be timed.
    """
    base = inputs.training.workload
    if base.transformer is None or base.sequence_tokens is None:
        raise EvidenceError(
            f"{base.title} is not a transformer with published sizes, so larger and smaller models "
            "of its kind are not known",
            missing=("a language model, as llama31_8b: `equipoise list workloads`",),
        )
    if one.assessment.cluster is None:
        raise EvidenceError(
            f"{one.system.title} is not in the catalogue: models of other sizes cannot be timed",
            missing=("its description: --hardware FILE.toml",),
        )
    if base.trained != "full":
        raise EvidenceError(
            f"{base.title} trains adapters, whose tokens do not follow from parameters",
            missing=("a workload that trains all weights: `equipoise list workloads`",),
        )
    return base.transformer


def _active_text(shape: Transformer) -> str:
    """The word "active" for models in which tokens are counted per active parameter."""
    return " active" if shape.idle_params else ""


def _with_faster_model(
    query: TrainingQuery, family: ModelFamily, largest: TriedModel
) -> tuple[TriedModel, FasterModel | None]:
    """The largest model, and the next smaller one if its training is much faster for its size.

    Without a deadline, a slightly smaller one replaces it, as in `_fastest_of_the_best`; with few layers, the
    next one may be much smaller. Times are compared per square of the parameters.
    """
    near = family.at(largest.shape.params * (1.0 - AS_GOOD))

    def pace(each: TriedModel) -> float:
        return each.fastest_within(query).known_time_s.value / float(each.shape.params) ** 2

    is_smaller = near.used["value"] <= 1.0 and near.shape.params < largest.shape.params
    if not is_smaller or pace(near) >= pace(largest) * (1.0 - _MUCH_FASTER):
        return largest, None
    if query.deadline_s is None and near.shape.params >= (1.0 - _SLIGHTLY_SMALLER) * largest.shape.params:
        return near, None
    best = near.fastest_within(query)
    return largest, FasterModel(
        params=float(near.shape.params),
        num_accelerators=best.num_accelerators,
        time_s=best.known_time_s.value,
    )


def _limit(
    query: TrainingQuery, best: Candidate, found: TriedModel, family: ModelFamily
) -> tuple[ReachLimit, LargerModel | None]:
    """The limit exceeded by the next larger model tried, and that model if much of the limit is unused.

    Memory if no strategy of it fits. best: the training of the model found.
    """
    larger = (
        each
        for each in family.tried.values()
        if each.shape.params > found.shape.params and each.used["value"] > 1.0
    )
    beyond = min(larger, key=lambda each: each.shape.params, default=None)
    if beyond is None:
        return used_fraction(query, best, "value")[1], None
    timed = [each for each in beyond.candidates if each.time_s is not None]
    if not timed:
        return "memory", None
    least = min(timed, key=lambda each: used_fraction(query, each, "value")[0])
    needed, limit = used_fraction(query, least, "value")
    # If the next model exceeds the limit by far, the search did not need to try models between.
    if used_fraction(query, best, "value")[0] >= _NEARLY_USED or needed > _NEXT_NEEDS:
        return limit, None
    usd = None if least.usd is None else least.usd.value
    return limit, LargerModel(params=float(beyond.shape.params), time_s=least.known_time_s.value, usd=usd)
