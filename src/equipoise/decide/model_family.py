"""Models of other sizes in the proportions of one, each with the trainings that limits may allow."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.decide.answer import Candidate
from equipoise.decide.assess import Inputs, assess
from equipoise.decide.candidates import SystemCandidates, system_candidates
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.systems import LARGE_SYSTEM, RequestedSystem, usual_most
from equipoise.decide.question.training import fixed_budget
from equipoise.decide.select import Rule, choose, timed_figures
from equipoise.decide.user_evidence import UserEvidence
from equipoise.errors import SpecError
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.units import HOUR_S, SI_PREFIXES

# Widths of matrices come in steps of 128, the tiles of matrix units; in a family whose own does not, of the
# largest power of two that it is a multiple of. Source: NVIDIA, Matrix Multiplication Background (2023).
_WIDTH_STEP: Final = 128
# Widths grow by so many heads, that tensor parallel ranks can share them and their keys, and of few by fewer:
# by a quarter of them at most. Fewer heads than so many are tried only of families that have hardly more.
_FEW_HEADS: Final = 4
_MOST_HEADS: Final = 4096
# How many times as many, or as few, queries may share a key as in the family: 5 in place of 7 may.
_NEAR_SHARE: Final = 1.45


def of_size(shape: Transformer, params: float) -> Transformer:
    """A transformer of about so many parameters, in the proportions of another.

    Width and depth grow by the same factor; heads keep their size, keys about their share of queries, a
    mixture its number of experts; vocabulary and positions stay. The width comes in steps of whole heads, or
    of 128 where the heads together are not as wide as the model, and the depth makes up the rest: parameters
    miss by half a layer at most, unless a single layer is too much.
    Raises SpecError for a hybrid, which has no one way to grow.
    Assumes that models of a family have one ratio of width to depth.
    Source: Llama 3 (2024, table 3) and GPT-3 (2020, table 2.1) widen and deepen together, with heads of 128.
    """
    if shape.state_layers or shape.cross_layers or shape.towers or shape.compressed is not None:
        raise SpecError(
            "a hybrid transformer can grow in several ways; name a dense transformer or a mixture of experts"
        )
    widths = _widths(shape.heads, shape.kv_heads)
    place = bisect_left(widths, params, key=lambda heads: _params_at(shape, heads))
    beside = {widths[max(0, place - 1)], widths[min(place, len(widths) - 1)]}
    made = [_deep(_widened(shape, heads), params) for heads in sorted(beside)]
    return min(made, key=lambda each: abs(math.log(_ratio(each) / _ratio(shape))))


def _ratio(shape: Transformer) -> float:
    """Width over depth."""
    return shape.hidden / shape.layers


@lru_cache(maxsize=64)
def _widths(family_heads: int, family_kv_heads: int) -> tuple[int, ...]:
    """The numbers of heads that a family may have, ascending."""

    def is_shared(count: int, family_count: int) -> bool:
        unit = math.gcd(family_count, _FEW_HEADS)
        return count % min(unit, 1 << max(0, (count // 4).bit_length() - 1)) == 0

    def may_be(heads: int) -> bool:
        share = max(1.0, heads * family_kv_heads / family_heads)
        keys = _kv_heads(heads, share)
        if not (is_shared(heads, family_heads) and is_shared(keys, family_kv_heads)):
            return False
        return share / _NEAR_SHARE <= keys <= share * _NEAR_SHARE

    return tuple(filter(may_be, range(min(_FEW_HEADS, -(-family_heads // 2)), _MOST_HEADS + 1)))


def _kv_heads(heads: int, share: float) -> int:
    """The number of key heads that is nearest to `share` and divides the number of heads."""
    lower = [each for each in range(1, math.isqrt(heads) + 1) if heads % each == 0]
    divisors = (*lower, *(heads // each for each in lower))
    return min(divisors, key=lambda each: abs(math.log(each / share)))


def _params_at(shape: Transformer, heads: int) -> float:
    """Parameters at a width, in the family's ratio of width to depth."""
    wide = _widened(shape, heads)
    return wide.stack_params * heads / shape.heads + wide.embedding_params


def _widened(shape: Transformer, heads: int) -> Transformer:
    """As deep, but so many heads wide."""
    if heads == shape.heads:
        return shape

    def scaled(size: int) -> int:
        step = math.gcd(size, _WIDTH_STEP)
        return max(step, step * round(size * heads / shape.heads / step)) if size else 0

    is_all_heads = shape.hidden == shape.heads * shape.head_size
    return replace(
        shape,
        heads=heads,
        kv_heads=_kv_heads(heads, heads * shape.kv_heads / shape.heads),
        hidden=heads * shape.head_size if is_all_heads else scaled(shape.hidden),
        ffn_hidden=scaled(shape.ffn_hidden),
        expert_ffn_hidden=scaled(shape.expert_ffn_hidden),
        shared_expert_ffn_hidden=scaled(shape.shared_expert_ffn_hidden),
        query_rank=scaled(shape.query_rank),
        kv_rank=scaled(shape.kv_rank),
        expert_latent=scaled(shape.expert_latent),
        output_rank=scaled(shape.output_rank),
    )


def _deep(shape: Transformer, params: float) -> Transformer:
    """As wide, but as deep as so many parameters need; of a mixture the first layers stay dense."""
    layers = max(1, round((params - shape.embedding_params) / (shape.stack_params / shape.layers)))
    if shape.layers == layers:
        return shape

    def scaled(count: int | None) -> int | None:
        return None if count is None else round(count * layers / shape.layers)

    dense = shape.dense_layers
    if dense is not None and shape.experts:
        dense = min(dense, layers - 1) if layers > 1 else 0
    elif dense is not None:
        dense = scaled(dense)
    return replace(
        shape,
        layers=layers,
        attention_layers=scaled(shape.attention_layers),
        dense_layers=dense,
        expert_layers=None
        if shape.expert_layers is None or dense is not None
        else scaled(shape.expert_layers),
        windowed_layers=scaled(shape.windowed_layers) or 0,
    )


# Models from toys to what nobody has trained.
_LEAST_PARAMS: Final = SI_PREFIXES["M"]
_MOST_PARAMS: Final = 100 * SI_PREFIXES["T"]
# What the search for the largest model leaves open; half a layer is as much.
TOLERANCE: Final = 0.02
_MOST_TRIES: Final = 40
# The work of a training grows as the square of its model, whose tokens grow with it.
_SLOPE: Final = 2.0
_BATCH_FACTOR: Final = 0.292
_BATCH_POWER: Final = 0.3271


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
        shape = of_size(base.transformer, params)
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
                end: min((used_fraction(self.query, each, end) for each in candidates), default=math.inf)
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
            spent = used.get(fits, 0.0) >= (1.0 - TOLERANCE) ** _SLOPE
            if spent or fits == _MOST_PARAMS or fails <= max(fits * (1.0 + TOLERANCE), _LEAST_PARAMS):
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


def of_usual_sizes(query: TrainingQuery, one: SystemCandidates) -> tuple[Candidate, ...]:
    """The candidates of sizes that are usually tried, where the question states no limit.

    Up to how many that are depends on the amount of training, which is what is asked for.
    """
    if states_sizes(query, one):
        return one.allowed
    usual = max(usual_most(query, one.system, None), paid_for(query, one))
    beyond = (each.num_accelerators for each in one.allowed if each.num_accelerators >= usual)
    most = min(beyond, default=usual)  # whole nodes may be more
    return tuple(each for each in one.allowed if each.num_accelerators <= most)


def paid_for(query: TrainingQuery, one: SystemCandidates) -> int:
    """How many accelerators of a system the budget pays for through the whole deadline; 0 without both.

    Of more, the budget ends a training before the deadline does. Nobody has so many cards for desktop
    computers, and no published training had more than half of LARGE_SYSTEM.
    """
    rates = [each.usd_per_hour / each.num_accelerators for each in one.allowed if each.usd_per_hour]
    hours = query.within_s / HOUR_S
    if not rates or one.system.is_desktop or not math.isfinite(query.spend_usd * hours):
        return 0
    return math.floor(min(query.spend_usd / (min(rates) * hours), LARGE_SYSTEM)) if hours > 0.0 else 0


def states_sizes(query: TrainingQuery, one: SystemCandidates) -> bool:
    """Whether the question says up to how many accelerators of a system there are."""
    stated = (query.max_accelerators, query.sizes, query.num_nodes, one.system.stock)
    return any(each is not None for each in stated)


def used_fraction(query: TrainingQuery, candidate: Candidate, end: str) -> float:
    """The fraction of deadline or budget that a candidate uses, the larger, at an end of its intervals.

    Infinite where its time, or with a budget its money, is not known.
    """
    if candidate.time_s is None or (candidate.usd is None and query.budget_usd is not None):
        return math.inf
    late = getattr(candidate.time_s, end) / query.within_s
    spent = 0.0 if candidate.usd is None else getattr(candidate.usd, end) / query.spend_usd
    return float(max(late, spent))


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
    better = near * math.pow(known[near], -1.0 / _SLOPE) * (1.0 - TOLERANCE / 2)
    if not math.isfinite(fails):
        return min(max(better, 2.0 * low), high)
    if not fits and low < better < high:
        return better
    edge = (high / low) ** 0.05
    return better if low * edge <= better <= high / edge else math.sqrt(low * high)
