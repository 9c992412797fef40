"""What `equipoise list` prints: each kind of thing with how often the data have it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from equipoise.cli.output import counted, table_text
from equipoise.runs.store import Tables
from equipoise.scaling.laws import LAWS
from equipoise.spec.hardware import accelerators
from equipoise.spec.workload import workloads
from equipoise.units import format_si


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One kind that can be listed: its rows as in the JSON document, and the columns people see of them."""

    kind: str
    rows: Callable[[Tables], list[dict[str, Any]]]
    columns: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...]  # head, alignment, cell
    from_data: bool = True  # whether the rows say what the data have

    def text(self, rows: list[dict[str, Any]]) -> str:
        """The rows as a table."""
        heads = [head for head, _, _ in self.columns]
        cells = [[cell(row) for _, _, cell in self.columns] for row in rows]
        return table_text(heads, cells, align="".join(align for _, align, _ in self.columns)) + "\n"

    def count(self, rows: list[dict[str, Any]], sources: str) -> str:
        """How many there are, and in which data they were counted."""
        number = counted(len(rows), self.kind.removesuffix("s"), self.kind)
        return f"{number}{f'; {sources}' if self.from_data else ''}.\n"


def _rounds(tables: Tables) -> list[dict[str, Any]]:
    """One record a round, oldest first."""
    by_round = tables.scores.group_by("campaign").agg(
        num_entries=pl.len(),
        num_scored=pl.col("score_s").count(),
        num_workloads=pl.col("workload").n_unique(),
        num_accelerator_kinds=pl.col("accelerator").n_unique(),
        max_accelerators=pl.col("num_accelerators").max(),
    )
    num_runs = tables.runs.group_by("campaign").agg(num_runs=pl.len())
    joined = by_round.join(num_runs, on="campaign", how="full", coalesce=True).rename({"campaign": "round"})
    zeros = joined.with_columns(pl.col("num_entries", "num_scored", "num_runs").fill_null(0))
    return sorted(zeros.to_dicts(), key=lambda row: _in_order(row["round"]))


def _in_order(name: str | None) -> tuple[bool, tuple[int, ...], str]:
    """Rounds by their number, other campaigns after them by name."""
    found = re.fullmatch(r"v(\d+)\.(\d+)", name or "")
    return (found is None, tuple(map(int, found.groups())) if found else (), name or "")


def _workloads(tables: Tables) -> list[dict[str, Any]]:
    """One record a workload of the catalogue, with what the data have of it."""
    return [
        {"workload": one.slug, "title": one.title, **_seen(tables.scores, "workload", one.slug)}
        for one in workloads()
    ]


def _accelerators(tables: Tables) -> list[dict[str, Any]]:
    """One record an accelerator of the catalogue, with what the data have of it."""
    return [
        {
            "accelerator": one.slug,
            "title": one.title,
            "vendor": one.vendor,
            "kind": one.kind,
            "year": one.year,
            "memory_bytes": one.memory_bytes,
            "peak_bf16_flop_per_s": one.peak_bf16_flop_per_s,
            "power_w": one.power_w,
            "source": one.source,
            "confidence": one.confidence,
            **_seen(tables.scores, "accelerator", one.slug),
        }
        for one in accelerators()
    ]


def _laws(_tables: Tables) -> list[dict[str, Any]]:
    """One record a law that `predict --law` knows."""
    pooled = {
        "law": "pooled",
        "params": [],
        "assumes": "curves of a workload share their shape across accelerators and rounds",
        "source": "docs/experiments/0002-pooled-law.md",
    }
    single = [
        {"law": one.name, "params": list(one.params), "assumes": one.assumes, "source": one.source}
        for one in LAWS
    ]
    return [pooled, *single]


def _seen(scores: pl.DataFrame, column: str, slug: str) -> dict[str, Any]:
    """How many entries there are of it, and in which rounds."""
    having = scores.filter(pl.col(column) == slug)
    return {
        "num_entries": having.height,
        "rounds": sorted(having["campaign"].drop_nulls().unique(), key=_in_order),
    }


def _field(key: str) -> Callable[[dict[str, Any]], str]:
    """A cell that shows a field as it is; a dash where it is unknown."""
    return lambda row: "-" if row[key] is None else str(row[key])


def _quantity(key: str, unit: str) -> Callable[[dict[str, Any]], str]:
    """A cell that shows a quantity with its SI prefix."""
    return lambda row: "-" if row[key] is None else format_si(row[key], unit)


def _span(row: dict[str, Any]) -> str:
    """First and last round."""
    rounds = row["rounds"]
    return "-" if not rounds else rounds[0] if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"


LISTINGS = (
    Listing(
        kind="rounds",
        rows=_rounds,
        columns=(
            ("round", "<", _field("round")),
            ("entries", ">", _field("num_entries")),
            ("scored", ">", _field("num_scored")),
            ("runs", ">", _field("num_runs")),
            ("workloads", ">", _field("num_workloads")),
            ("accelerators", ">", _field("num_accelerator_kinds")),
            ("largest system", ">", _field("max_accelerators")),
        ),
    ),
    Listing(
        kind="workloads",
        rows=_workloads,
        columns=(
            ("workload", "<", _field("workload")),
            ("entries", ">", _field("num_entries")),
            ("rounds", "<", _span),
            ("title", "<", _field("title")),
        ),
    ),
    Listing(
        kind="accelerators",
        rows=_accelerators,
        columns=(
            ("accelerator", "<", _field("accelerator")),
            ("entries", ">", _field("num_entries")),
            ("rounds", "<", _span),
            ("memory", ">", _quantity("memory_bytes", "B")),
            ("dense bf16", ">", _quantity("peak_bf16_flop_per_s", "FLOP/s")),
        ),
    ),
    Listing(
        kind="laws",
        rows=_laws,
        columns=(
            ("law", "<", _field("law")),
            ("parameters", "<", lambda row: ", ".join(row["params"]) or "-"),
            ("source", "<", _field("source")),
        ),
        from_data=False,
    ),
)
