"""Where the dashboard's data come from, named when it begins, and what they hold to choose from."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Final

import polars as pl

from equipoise.runs.embedded import tables
from equipoise.runs.queries import comparable
from equipoise.runs.store import Tables
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.mlperf import round_order
from equipoise.study import MIN_ENTRIES, default_round

AT_FIRST: Final = {"workload": "llama2_70b_lora", "accelerator": "dgx-h100"}


@dataclass(frozen=True, kw_only=True)
class DataSources:
    """Folders, as `report --data DIR --also DIR` takes them, and folders of sweeps.

    catalogue: what names mean, and what the forms offer.
    """

    data: Path | None = None
    also: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = field(default=())
    catalogue: Catalogue = field(default_factory=shipped, repr=False)

    @cached_property
    def tables(self) -> Tables:
        """The tables as they were when first needed."""
        return tables(data=self.data, also=self.also)

    @cached_property
    def default_round(self) -> str:
        """The round that a study is of unless another is named."""
        return default_round(self.tables.scores.rename({"campaign": "round"}))

    @cached_property
    def scored(self) -> pl.DataFrame:
        """The closed entries with a score, as the table `scores` has them."""
        named = pl.col("campaign").is_not_null() & pl.col("workload").is_not_null()
        return comparable(self.tables.scores).filter(named)

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
    def at_first(self) -> dict[str, str]:
        """The question of a page before anything is chosen: its workload is one that these data have."""
        known = [each.slug for each in self.catalogue.workloads() if each.train_flop_per_sample is not None]
        held = set(self.scored["workload"])
        usual = AT_FIRST["workload"]
        workload = usual if usual in held else next((each for each in known if each in held), usual)
        return {**AT_FIRST, "workload": workload}

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
