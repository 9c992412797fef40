"""A small builder of `scores` tables: each test states only the columns its claim is about."""

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from equipoise.runs.store import SCORES, polars_schema
from equipoise.scaling.metrics import with_factors, with_metrics

Row = dict[str, Any]

_DEFAULTS = {
    "origin": "mlperf",
    "campaign": "v9.9",
    "division": "closed",
    "availability": "available_onprem",
    "submitter": "lab",
    "workload": "bert",
    "accelerator": "h100-sxm5-80gb",
    "convergence_scaling": 1.0,
}


def scores_table(rows: Iterable[Row]) -> pl.DataFrame:
    """A valid `scores` frame; an entry gets a name by its place, and unscaled_s and rates from what is stated."""
    complete = []
    for place, row in enumerate(rows):
        whole = _DEFAULTS | {"system": f"s{place}", "entry_id": f"e{place}"} | row
        score_s = whole.get("score_s")
        if score_s is not None:
            whole.setdefault("unscaled_s", score_s / whole["convergence_scaling"])
            if whole.get("samples_to_target") is not None:
                whole.setdefault("samples_per_s", whole["samples_to_target"] / whole["unscaled_s"])
        complete.append(whole)
    return pl.DataFrame(complete, schema=polars_schema(SCORES))


@pytest.fixture(scope="session")
def table() -> Callable[[Iterable[Row]], pl.DataFrame]:
    return scores_table


@pytest.fixture(scope="session")
def entries() -> Callable[[Iterable[Row]], pl.DataFrame]:
    """The same with metrics and factors, as the study sees it."""
    return lambda rows: with_factors(with_metrics(scores_table(rows)))


@pytest.fixture(scope="session")
def truth() -> dict[str, Any]:
    """Published and independently measured figures of v4.1."""
    return tomllib.loads((Path(__file__).parents[1] / "truth" / "scaling_study_v41.toml").read_text())
