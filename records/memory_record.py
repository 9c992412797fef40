"""How wrong the memory of published executions is predicted, by software, and data/memory.json."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from step_table import source_of

from equipoise.calibration.published import published_steps, rows_of_table
from equipoise.calibration.published.executions import chosen, software_of, with_executions
from equipoise.calibration.step_rows import refusal, step_rows
from equipoise.intervals import DEVIATE, LEVEL
from equipoise.perfmodel.parameters import Parameters


def memory_document() -> Mapping[str, Any]:
    """Quantile of |log(stated / predicted)| at LEVEL, as an sd: by software, and of all with equal source
    weights.

    No memory parameter was fitted, so all rows are held out.
    """
    rows = chosen(with_executions(rows_of_table(published_steps())))
    rows = tuple(row for row in rows if row.memory_bytes is not None and refusal(row) is None)
    predicted = step_rows(rows).memory_bytes(Parameters(), [row.memory_counted for row in rows])
    stated = np.array([row.memory_bytes for row in rows], dtype=float)
    errors = np.abs(np.log(stated / predicted))
    names = np.array([ran.name if (ran := software_of(row)) else "" for row in rows])
    _, source, counts = np.unique([source_of(row) for row in rows], return_inverse=True, return_counts=True)
    every = np.quantile(errors, LEVEL, method="inverted_cdf", weights=1.0 / counts[source])
    by_software = {
        name: {
            "num_executions": int(np.count_nonzero(names == name)),
            "log_sd": float(np.quantile(errors[names == name], LEVEL) / DEVIATE),
        }
        for name in sorted(set(names.tolist()) - {""})
    }
    return {"num_executions": len(rows), "log_sd": float(every / DEVIATE), "by_software": by_software}
