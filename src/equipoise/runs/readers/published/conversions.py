"""Published figures as seconds, and seconds as such figures again. Assumptions about FLOP conventions live
here.
"""

from dataclasses import dataclass, replace

from equipoise.errors import DataError
from equipoise.runs.readers.published.models import Model
from equipoise.runs.readers.published.quantities import Quantity
from equipoise.spec.strategy import Recompute, Strategy

_BACKWARD_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """How a figure becomes seconds: factor x figure, or factor / figure where it is a rate.

    >>> Conversion(factor=100.0, is_rate=True).seconds(50.0)
    2.0
    """

    factor: float
    is_rate: bool

    def seconds(self, figure: float) -> float:
        """The time a figure stands for."""
        return self.factor / figure if self.is_rate else self.factor * figure

    def figure(self, seconds: float) -> float:
        """The figure a time stands for."""
        return self.factor / seconds if self.is_rate else seconds / self.factor


def step_conversion(
    quantity: Quantity, strategy: Strategy, model: Model, *, peak_flop_per_s: float | None
) -> Conversion:
    """How a figure becomes seconds a step.

    peak_flop_per_s: of one accelerator in the precision of the row, for shares of the peak.
    Raises DataError where the row lacks what its unit needs.
    """
    num_accelerators, batch = strategy.num_accelerators, strategy.global_batch_samples
    spread = num_accelerators if quantity.per_accelerator else 1
    match quantity.kind:
        case "time":
            work = 1.0
        case "steps":
            work = 1.0 / spread
        case "samples":
            work = batch / spread
        case "tokens":
            work = batch * _sequence(model) / spread
        case "run_time":
            work = batch * _sequence(model) / quantity.tokens
        case "flop" | "utilisation":
            work = _step_flop(model, strategy, quantity) / _flop_sharers(quantity, num_accelerators)
            if quantity.kind == "utilisation":
                if peak_flop_per_s is None:
                    raise DataError("unit is a share of the peak, and no peak of this accelerator is known")
                work /= peak_flop_per_s
        case _:
            raise DataError(f"unit: {quantity.kind} is not a figure of a training step")
    if quantity.is_rate:
        return Conversion(factor=work / quantity.si, is_rate=True)
    return Conversion(factor=work * quantity.si, is_rate=False)


def _sequence(model: Model) -> int:
    if model.sequence is None:
        raise DataError("column seq: empty; the unit counts tokens, so tokens a sample have to be known")
    return model.sequence


def _flop_sharers(quantity: Quantity, num_accelerators: int) -> int:
    if quantity.per_accelerator is None and num_accelerators > 1:
        raise DataError(
            "unit does not say whether FLOP/s are of one accelerator or of all: add /GPU or total"
        )
    return 1 if quantity.per_accelerator is False else num_accelerators


def _step_flop(model: Model, strategy: Strategy, quantity: Quantity) -> float:
    """FLOP of one step as people count them when they state FLOP/s.

    Assumes that FLOP/s of the model leave out masked scores, and that other figures count every query with
    every key; that logits are not computed again where layers are; that without a word about the model, what
    is computed again counts.
    Source: Narayanan et al. 2021, eq. 3: 96 B s l h^2 (1 + s/6h + V/16lh) with all layers computed again;
    PaLM (Chowdhery et al. 2022, appendix B) for shares of the peak; Megatron-Bridge, whose FLOP/s over its
    tokens/s are those of masked attention to 0.5 % on dense models.
    """
    counted = quantity.counted
    recompute: Recompute = strategy.recompute if counted == "executed" else "none"
    if model.transformer is None:
        whole = model.known.train_flop_per_sample if model.known else None
        if whole is None:
            raise DataError(
                "unit counts FLOP, and those of this workload are not known: add them to its catalogue entry"
            )
        again = 1 / (1 + _BACKWARD_FACTOR) if recompute == "full" else 0.0
        return strategy.global_batch_samples * whole * (1 + again)
    sequence = _sequence(model)
    is_masked = quantity.kind == "flop" and counted == "model" and model.transformer.causal
    sizes = replace(model.transformer, causal=is_masked)
    forward = sizes.forward_flop_per_token(sequence)
    logits = 2 * sizes.predicted_fraction * sizes.vocabulary * sizes.hidden
    again = {"none": 0.0, "selective": sizes.score_flop_per_token(sequence), "full": forward - logits}[
        recompute
    ]
    return strategy.global_batch_samples * sequence * ((1 + _BACKWARD_FACTOR) * forward + again)


# Bytes on the wire of the busiest link over bytes of the message, as nccl-tests (PERFORMANCE.md) divides by
# them.
def _twice_all_others(num_ranks: int) -> float:
    return 2 * (num_ranks - 1) / num_ranks


def _all_others(num_ranks: int) -> float:
    return (num_ranks - 1) / num_ranks


def _whole(num_ranks: int) -> float:  # noqa: ARG001 - one signature for all operations
    return 1.0


_BUS_FACTORS = {
    "all_reduce": _twice_all_others,
    "reduce_scatter": _all_others,
    "all_gather": _all_others,
    "all_to_all": _all_others,
    "broadcast": _whole,
    "send": _whole,
}


def collective_conversion(
    quantity: Quantity, operation: str, payload_bytes: float, num_ranks: int
) -> Conversion:
    """How a figure becomes seconds of one collective of so many bytes.

    Raises DataError for a unit that says nothing about collectives, or one rank.
    Source: nccl-tests, doc/PERFORMANCE.md: algbw = bytes / time, busbw = algbw x 2(n-1)/n for all-reduce.
    """
    if num_ranks <= 1:
        raise DataError(f"n_gpus={num_ranks}: a collective needs two ranks")
    if quantity.kind == "time":
        return Conversion(factor=quantity.si, is_rate=False)
    if quantity.kind == "payload":
        return Conversion(factor=payload_bytes / quantity.si, is_rate=True)
    if quantity.kind == "bus":
        return Conversion(
            factor=payload_bytes * _BUS_FACTORS[operation](num_ranks) / quantity.si, is_rate=True
        )
    raise DataError(
        f"unit: {quantity.kind} is not a figure of a collective; expected a time or busbw or algbw GB/s"
    )
