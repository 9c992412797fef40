"""What collectives that were measured add to the model's times: a factor by size and group, looked up.

Arrays in, arrays out. A search looks up millions of messages: a table of sizes, and a weight a group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.perfmodel.load import Floats

if TYPE_CHECKING:
    from equipoise.perfmodel.collective import Group

Numbers: TypeAlias = NDArray[np.float64]

# Sizes of a table: so many to an octave, from 1 byte to 1 TiB.
STEPS = 8
MOST_OCTAVES = 40
SIZES = 2.0 ** (np.arange(MOST_OCTAVES * STEPS + 1) / STEPS)
# What was measured says something of sizes and groups up to about four times as large, or small
# (docs/experiments/0005-collectives.md: results hardly change from 1 to 3 octaves).
OCTAVES = 2.0
# Groups nearer than the first are no surer, and groups farther away than the second no less sure: what the
# law itself is wrong by was seen between.
NEAREST_OCTAVES, FARTHEST_OCTAVES = 0.5, 3.0
_NEAR = 10.0**-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """Log(measured / modelled) of one operation by size, over the groups it was measured on.

    log_factor: (n_groups, n_sizes) at SIZES, or (n_draws, n_groups, n_sizes). log_inside, log_nodes:
    (n_groups,) ranks a node and nodes of each, in octaves. log_octave: what each octave away from a group
    measured adds; shape (n_draws, 1) where there are draws.
    """

    log_factor: Numbers
    log_inside: Numbers
    log_nodes: Numbers
    log_octave: Floats = 0.0

    def at(self, payload_bytes: Floats, group: "Group") -> Numbers:
        """Log(measured / modelled) of messages; arguments broadcast, and do not depend on draws.

        0 for groups within nodes where only groups over several were measured, and the other way round.
        Assumes that what the law leaves fades with the distance in octaves from what was measured.
        Source: weights of inverse distance (Shepard 1968) between several groups.
        """
        inside, nodes = np.log2(group.ranks_per_node), np.log2(group.num_nodes)
        place = np.clip(np.log2(np.maximum(payload_bytes, 1.0)) * STEPS, 0.0, len(SIZES) - 1.0)
        below = np.minimum(place.astype(np.intp), len(SIZES) - 2)
        share = place - below
        nearest, weight, found = np.full((), np.inf), np.zeros(()), np.zeros(())
        for number, (own_inside, own_nodes) in enumerate(zip(self.log_inside, self.log_nodes, strict=True)):
            alike = np.equal(np.greater(nodes, 0), own_nodes > 0)
            far = np.where(alike, np.hypot(inside - own_inside, nodes - own_nodes), np.inf)
            near = 1.0 / (far + _NEAR)
            table = self.log_factor[..., number, :]
            lower, upper = np.take(table, below, axis=-1), np.take(table, below + 1, axis=-1)
            found = found + near * (lower + share * (upper - lower))
            weight, nearest = weight + near, np.minimum(nearest, far)
        known = np.isfinite(nearest)
        far = np.where(known, nearest, 0.0)
        fades = known * np.exp(-far / OCTAVES) / np.where(known, weight, 1.0)
        doubt = np.clip(far, NEAREST_OCTAVES * (far > _NEAR), FARTHEST_OCTAVES)
        return np.asarray(found * fades + self.log_octave * doubt)


def stacked_corrections(draws: Sequence[Mapping[str, Correction] | None]) -> dict[str, Correction] | None:
    """Tables of several draws as one: an element a draw. None where there are none.

    draws: at least one, of the same operations and groups.
    """
    first = draws[0]
    if first is None:
        return None
    found = {}
    for operation, one in first.items():
        each = [told[operation] for told in draws if told is not None]
        found[operation] = Correction(
            log_factor=np.stack([table.log_factor for table in each]),
            log_inside=one.log_inside,
            log_nodes=one.log_nodes,
            log_octave=np.array([table.log_octave for table in each], dtype=float)[:, None],
        )
    return found
