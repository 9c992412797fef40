"""Where the dashboard's data come from: named when it begins, never by who asks. What they hold to choose."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import polars as pl

from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.landscapes import Landscapes
from equipoise.advice.plans.planned import Plan, Question
from equipoise.runs.chosen import tables
from equipoise.runs.store import Tables
from equipoise.scaling.metrics import COMPARABLE
from equipoise.spec.rounds import round_order
from equipoise.study import DIVISION, MIN_ENTRIES, default_round


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Folders, as `report --data DIR --also DIR` takes them, and folders of sweeps."""

    data: Path | None = None
    also: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = field(default=())

    @cached_property
    def tables(self) -> Tables:
        """The tables as they were when first asked for."""
        return tables(data=self.data, also=self.also)

    @cached_property
    def default_round(self) -> str:
        """The round that a study is of unless another is named."""
        return default_round(self.tables.scores.rename({"campaign": "round"}))

    @cached_property
    def scored(self) -> pl.DataFrame:
        """The closed entries with a score, as the table `scores` has them."""
        named = pl.col("campaign").is_not_null() & pl.col("workload").is_not_null()
        return self.tables.scores.filter((pl.col("division") == DIVISION) & named & COMPARABLE)

    @cached_property
    def studied(self) -> dict[str, dict[str, int]]:
        """Rounds, the latest first, and in each the workloads of enough scored entries with their number."""
        counts = (
            self.scored.group_by("campaign", "workload")
            .agg(num=pl.len())
            .filter(pl.col("num") >= MIN_ENTRIES)
            .sort("workload")
        )
        rounds = sorted(counts["campaign"].unique(), key=round_order, reverse=True)
        return {
            name: dict(counts.filter(campaign=name).select("workload", "num").iter_rows()) for name in rounds
        }

    @cached_property
    def landscapes(self) -> Landscapes:
        """What was searched for plans so far: other money, deadlines and sizes are answered from it."""
        return Landscapes()

    def planned(self, question: Question, terms: Terms) -> Plan:
        """The plan that answers a question of the catalogue."""
        return self.landscapes.plan(question, terms=terms, scores=self.tables.scores)

    def stamp(self) -> str:
        """What changes when a file below the folders of data does: answers made before are then stale."""
        seen = "".join(_stamps(self.data, *self.also))
        return sha256(seen.encode()).hexdigest()[:16] if seen else ""


def _stamps(*folders: Path | None) -> Iterator[str]:
    for folder in folders:
        for path in sorted(folder.glob("*.parquet")) if folder is not None else ():
            with suppress(OSError):  # it is being replaced: its next state has another stamp
                found = path.stat()
                yield f"{path}:{found.st_mtime_ns}:{found.st_size};"
