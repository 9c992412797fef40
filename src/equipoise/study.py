"""The whole pipeline on one page: tables in, metrics, groups, claims, findings out."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from equipoise.findings import Findings


def scores(
    *,
    round: str | None = None,  # noqa: A002 - the name users say
    workload: str | None = None,
    accelerator: str | None = None,
    submitter: str | None = None,
    division: str | None = None,
    sort: str | None = None,
    data: Path | str | None = None,
    also: Sequence[Path | str] = (),
) -> pl.DataFrame: ...


def runs(*, data: Path | str | None = None, also: Sequence[Path | str] = ()) -> pl.DataFrame: ...


def study(
    round: str | None = None,  # noqa: A002 - the name users say
    workloads: Sequence[str] | None = None,
    *,
    k: int | None = None,
    data: Path | str | None = None,
    also: Sequence[Path | str] = (),
) -> Findings: ...
