"""The names of columns that have a meaning in a user's own measurements, and the units that names end in."""

import re

from equipoise.units import DAY_S, HOUR_S, MILLISECOND_S, MINUTE_S

SIZE = "num_accelerators"
BATCH = "global_batch_samples"
STATUS = "status"
STRATEGY = "strategy"
ENTRY = ("entry", "label", "entry_id")
SERIES = ("workload", "accelerator", STRATEGY)
# What a law of time against size does not need, and the table `runs` holds.
OF_RUNS = ("energy_j", "precision", "framework", "num_nodes", "system", "submitter")

UNIT_S = {"ms": MILLISECOND_S, "s": 1.0, "min": MINUTE_S, "h": HOUR_S, "d": DAY_S}
TIMED = re.compile(rf"(time_to_train|step)_({'|'.join(UNIT_S)})|(samples)_per_(s|min|h)")


def wanted_column(name: str) -> bool:
    """Whether a column, by its name in lower case, has a meaning here."""
    named = (SIZE, BATCH, STATUS, *ENTRY, *SERIES, *OF_RUNS)
    return name in named or TIMED.fullmatch(name) is not None
