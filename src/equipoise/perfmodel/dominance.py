"""Which values of knobs need not be tried: others alike but for one or two are never slower, or heavier.

A group of places in, numbers of its combinations out. tests/perfmodel/test_fastest.py holds every rule.
"""

from collections.abc import Callable
from typing import Any

from equipoise.perfmodel.grid import CODES
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.places import Alike
from equipoise.perfmodel.space import LAYER_KNOBS, STATE_KNOBS, Combinations

# Of the ZeRO stages that shard no weights, the fastest first: sharded states make the optimizer's step
# shorter, sharded gradients leave it as it is; traffic is that of none (Rajbhandari et al. 2020, section 7).
_WHOLE_WEIGHTS = (1, 2, 0)


def fastest_layers(group: Alike, parameters: Parameters) -> tuple[int, ...]:
    """The numbers of layer knobs that no others alike but for recomputation and overlap are faster than."""
    return _firsts(
        LAYER_KNOBS,
        group.layers,
        kind=lambda told: told | {"recompute": None, "tp_overlap": _overlap_kind(told, parameters)},
        rank=lambda told: (CODES["recompute"].index(told["recompute"]), not told["tp_overlap"]),
    )


def unbeaten_layers(group: Alike, parameters: Parameters) -> tuple[int, ...]:
    """The numbers of layer knobs that none alike but for overlap are faster than."""
    return _firsts(
        LAYER_KNOBS,
        group.layers,
        kind=lambda told: told | {"tp_overlap": _overlap_kind(told, parameters)},
        rank=lambda told: (not told["tp_overlap"],),
    )


def _overlap_kind(told: dict[str, Any], parameters: Parameters) -> bool | None:
    """None where overlap leaves no more of the traffic than there is; a calibration may say otherwise."""
    return None if parameters.tp_overlap <= 1 else told["tp_overlap"]


def fastest_states(group: Alike) -> tuple[int, ...]:
    """The numbers of state knobs that none alike but for a ZeRO stage of whole weights are faster than."""
    return _firsts(
        STATE_KNOBS,
        group.states,
        kind=lambda told: told | {"shard_state": told["shard_state"] in _WHOLE_WEIGHTS},
        rank=lambda told: (_order(told["shard_state"]),),
    )


def unbeaten_states(group: Alike) -> tuple[int, ...]:
    """The numbers of state knobs that none are both faster and lighter than: whole states, if need not be."""
    return _firsts(
        STATE_KNOBS,
        group.states,
        kind=lambda told: told | {"shard_state": max(1, told["shard_state"])},
        rank=lambda told: (_order(told["shard_state"]),),
    )


def heaviest_layers(group: Alike) -> tuple[int, ...]:
    """The numbers of layer knobs that none alike but for recomputation and overlap are heavier than."""
    return _firsts(
        LAYER_KNOBS,
        group.layers,
        kind=lambda told: told | {"recompute": None, "tp_overlap": None},
        rank=lambda told: (CODES["recompute"].index(told["recompute"]),),
    )


def heaviest_states(group: Alike) -> tuple[int, ...]:
    """The numbers of state knobs that none alike but for a ZeRO stage of whole weights are heavier than."""
    return _firsts(
        STATE_KNOBS,
        group.states,
        kind=lambda told: told | {"shard_state": told["shard_state"] in _WHOLE_WEIGHTS},
        rank=lambda told: (told["shard_state"],),
    )


def _order(stage: int) -> int:
    return _WHOLE_WEIGHTS.index(stage) if stage in _WHOLE_WEIGHTS else 0


def _firsts(
    names: tuple[str, ...],
    combinations: Combinations,
    *,
    kind: Callable[[dict[str, Any]], dict[str, Any]],
    rank: Callable[[dict[str, Any]], tuple[int, ...]],
) -> tuple[int, ...]:
    """The numbers of the combinations of least rank among those of their kind, in order."""
    least: dict[tuple[Any, ...], tuple[tuple[int, ...], int]] = {}
    for number, values in enumerate(combinations):
        told = dict(zip(names, values, strict=True))
        key, place = tuple(kind(told).values()), (rank(told), number)
        least[key] = min(least.get(key, place), place)
    return tuple(sorted(number for _, number in least.values()))
