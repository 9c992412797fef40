"""The largest model in the proportions of the workload's whose training budget and deadline allow."""

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

# Models from toys to what nobody has trained.
_LEAST_PARAMS: Final = SI_PREFIXES["M"]
_MOST_PARAMS: Final = 100 * SI_PREFIXES["T"]
# What the search for the largest model leaves open; half a layer is as much.
_TOLERANCE: Final = 0.02
_MOST_TRIES: Final = 40
# The work of a training grows as the square of its model, whose tokens grow with it.
_SLOPE: Final = 2.0
_BATCH_FACTOR: Final = 0.292
_BATCH_POWER: Final = 0.3271
_WHY_TOKENS: Final = (
    "20 give the least loss of a training budget (Hoffmann et al. 2022); models that are used much are "
    "trained on more: --tokens-per-param"
)
# The loss of mixtures is stated in active parameters; how many tokens each is best trained on differs with
# the number of experts, so 20 is carried over from dense models.
_WHY_TOKENS_OF_A_MIXTURE: Final = (
    "the loss of a mixture follows from these (Ludziejewski et al. 2025), but 20 is best for dense models "
    "(Hoffmann et al. 2022): --tokens-per-param"
)
# From which gain of speed on a model hardly smaller is taken for it: by no more than a layer of 20 has of the
# parameters, where the interval of what is allowed is many times as wide.
_MUCH_FASTER: Final = 0.1
_HARDLY_SMALLER: Final = 0.05
# Where less of budget or deadline is used, what the next larger model would take is said.
_NEARLY_USED: Final = 0.97
_NEXT_NEEDS: Final = 1.1


class ModelFamily(Struct, kw_only=True):
    """Models in the proportions of the workload's, on one system. tried: by parameters asked for."""

    query: TrainingQuery
    inputs: Inputs
    system: RequestedSystem
    tried: dict[float, "TriedModel"] = field(default_factory=dict)

    def at(self, params: float) -> "TriedModel":
        """The model of about so many parameters, with the candidates of its training."""
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
            # The user's runs and traces are of another model; the links stay what they are.
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
        """The global batch asked for, else the one that loses least at such a training's FLOP.

        Assumes the FLOP of the model alone. Source: Bi et al. 2024 (DeepSeek LLM), equation 1:
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
        """Of the models tried, the largest that budget and deadline allow."""
        fit = [each for each in self.tried.values() if each.used["value"] <= 1.0]
        return max(fit, key=lambda each: each.shape.params, default=None)

    @property
    def smallest(self) -> "TriedModel":
        """The smallest model tried: the smallest there is, after a search in which none is allowed."""
        return min(self.tried.values(), key=lambda each: each.shape.params)

    def largest(self, end: str) -> float:
        """About the most parameters that budget and deadline allow, at one end of their intervals.

        end: of the interval of time and money. Returns 0 where no model is small enough.
        Assumes that larger models take more; where divisors of sizes make some take less, one of them may be
        passed over. Source: the work grows as the square of the parameters; bisection where that misleads.
        """
        base = self.inputs.training.workload.params or _LEAST_PARAMS
        self.at(min(max(base, _LEAST_PARAMS), _MOST_PARAMS))
        fits, fails = 0.0, math.inf
        for _ in range(_MOST_TRIES):
            used = {params: each.used[end] for params, each in self.tried.items()}
            fits = max((params for params, share in used.items() if share <= 1.0), default=0.0)
            fails = min((params for params in used if params > fits), default=math.inf)
            spent = used.get(fits, 0.0) >= (1.0 - _TOLERANCE) ** _SLOPE
            if spent or fits == _MOST_PARAMS or fails <= max(fits * (1.0 + _TOLERANCE), _LEAST_PARAMS):
                break
            self.at(_next(used, fits, fails))
        return fits


class TriedModel(Struct, frozen=True, kw_only=True):
    """A model, the candidates of its training, and the least fraction of budget or deadline that one uses.

    used: by end of the intervals, the larger of both fractions.
    """

    shape: Transformer
    candidates: tuple[Candidate, ...]
    used: Mapping[str, float]

    def fastest_within(self, query: TrainingQuery) -> Candidate:
        """The fastest of the candidates that keep budget and deadline, of which there is one."""
        rule = Rule(objective="time", deadline_s=query.within_s, spend_usd=query.spend_usd)
        chosen = choose(timed_figures(self.candidates), rule, {})
        return next(each for each in self.candidates if each.id == chosen)


def _next(used: Mapping[float, float], fits: float, fails: float) -> float:
    """The next size to try: by how work grows with it from the size nearest to the end, within the bracket.

    used: fraction of budget or deadline, by size; infinite where nothing fits into memory.
    """
    low, high = max(fits, _LEAST_PARAMS), min(fails, _MOST_PARAMS)
    known = {params: share for params, share in used.items() if 0.0 < share < math.inf}
    if not known:
        return math.sqrt(low * high)
    near = min(known, key=lambda params: abs(math.log(known[params])))
    # A little below the law: what just fits ends the search.
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
            f"{stated_limits(query)} does not allow the smallest model in the proportions of {base.title}, "
            f"of {least} parameters, with {query.tokens_per_param:g} tokens per{_active(base_shape)} "
            "parameter"
        )
    found, smaller = _with_smaller(query, family, found)
    best = found.fastest_within(query)
    limit, larger = _limit(query, best, found, family)
    count = float(found.shape.params)
    size = Interval(
        value=count,
        # Where the high end of time or money allows no model, the smallest there is ends the interval.
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
            f"{query.tokens_per_param:g} tokens per{_active(found.shape)} parameter; "
            + (_WHY_TOKENS_OF_A_MIXTURE if found.shape.idle_params else _WHY_TOKENS),
            f"the proportions of {base.title}; width and depth grow together",
            "the global batch that --global-batch states"
            if query.global_batch_samples is not None
            else "a global batch of 0.292 FLOP ** 0.3271 tokens (Bi et al. 2024, equation 1)",
        ),
    )


def _shape_of_family(inputs: Inputs, one: SystemCandidates) -> Transformer:
    """The sizes whose proportions all models of the workload's family have.

    Raises EvidenceError where there is no such family, or its models cannot be timed.
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
            missing=("its facts: --hardware FILE.toml",),
        )
    if base.trained != "full":
        raise EvidenceError(
            f"{base.title} trains adapters, whose tokens do not follow from parameters",
            missing=("a workload that trains all weights: `equipoise list workloads`",),
        )
    return base.transformer


def _active(shape: Transformer) -> str:
    """Which parameters the tokens are counted for, where not all are meant."""
    return " active" if shape.idle_params else ""


def _with_smaller(
    query: TrainingQuery, family: ModelFamily, largest: TriedModel
) -> tuple[TriedModel, FasterModel | None]:
    """The largest model, and the next smaller one where its training is much faster for its size.

    One that is hardly smaller is taken in its place, as `_fastest_of_the_best` does, unless a deadline says
    how long training may take; the next may be much smaller where layers are few. Compared are times over the
    square of the parameters, as which the work grows.
    """
    near = family.at(largest.shape.params * (1.0 - AS_GOOD))

    def pace(each: TriedModel) -> float:
        return each.fastest_within(query).known_time_s.value / float(each.shape.params) ** 2

    is_smaller = near.used["value"] <= 1.0 and near.shape.params < largest.shape.params
    if not is_smaller or pace(near) >= pace(largest) * (1.0 - _MUCH_FASTER):
        return largest, None
    if query.deadline_s is None and near.shape.params >= (1.0 - _HARDLY_SMALLER) * largest.shape.params:
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
    """What ends it: what the next larger model tried would break, and that model where much of it is left.

    The memory where no strategy of it fits. best: the training of the model found.
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
    # Where the next one is far beyond, models between were left out: the search was near enough to the end.
    if used_fraction(query, best, "value")[0] >= _NEARLY_USED or needed > _NEXT_NEEDS:
        return limit, None
    usd = None if least.usd is None else least.usd.value
    return limit, LargerModel(params=float(beyond.shape.params), time_s=least.known_time_s.value, usd=usd)
