"""What `equipoise list` prints: each kind of thing, with how often the data have it."""

from collections.abc import Callable
from textwrap import fill
from typing import Any, get_args

import polars as pl
from msgspec import Struct
from msgspec.structs import fields

from equipoise import glossary
from equipoise.bench.methods import METHODS
from equipoise.bench.models import ZOO
from equipoise.cli.output import counted, table_text, width_columns
from equipoise.runs.store import Tables
from equipoise.scaling.laws import LAWS
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.mlperf import round_order
from equipoise.spec.strategy import Strategy
from equipoise.units import format_count, format_si


def rounds(tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
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
    return sorted(zeros.to_dicts(), key=lambda row: round_order(row["round"]))


def workloads(tables: Tables, catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record a workload of the catalogue, with what the data have of it."""
    return [
        {"workload": one.slug, "title": one.title, **_seen(tables.scores, "workload", one.slug)}
        for one in catalogue.workloads()
    ]


def accelerators(tables: Tables, catalogue: Catalogue) -> list[dict[str, Any]]:
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
            "achievable_fraction": one.achievable_fraction,
            "achievable_is_measured": one.achievable_is_measured,
            "power_w": one.power_w,
            "node_size": one.node_size,
            "topology": one.topology,
            "link_byte_per_s": one.link_byte_per_s,
            "host_byte_per_s": one.host_byte_per_s,
            "inter_byte_per_s": one.inter_byte_per_s,
            "node_source": one.node_source,
            "source": one.source,
            "confidence": one.confidence,
            **_seen(tables.scores, "accelerator", one.slug),
        }
        for one in catalogue.accelerators()
    ]


def clusters(_tables: Tables, catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record a system of the catalogue, its links as one accelerator sees them."""
    return [
        {
            "cluster": one.slug,
            "title": one.title,
            "accelerators": list(one.accelerators),
            "node_size": whole.node_size,
            "num_nics": whole.num_nics,
            "topology": whole.topology,
            "intra_byte_per_s": whole.intra.byte_per_s,
            "intra_latency_s": whole.intra.latency_s,
            "inter_byte_per_s": whole.inter.byte_per_s,
            "inter_latency_s": whole.inter.latency_s,
            "shared_host_byte_per_s": whole.shared_host_byte_per_s,
            "source": one.source,
            "confidence": one.confidence,
        }
        for one in catalogue.systems()
        for whole in [catalogue.cluster(one.slug)]
    ]


def strategies(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per parameter of a strategy: how it is written, its values, and what it means."""
    return [
        {
            "parameter": each.name.removesuffix("_samples"),
            "default": None if each.required else each.default,
            "values": list(get_args(each.type)) or ([False, True] if each.type is bool else None),
            "meaning": glossary.explain(each.name).meaning,
        }
        for each in fields(Strategy)
    ]


def laws(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
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


def methods(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record a way to train that `bench --strategy` knows."""
    return [
        {
            "method": one.name,
            "example": None if one.takes is None else f"{one.name}:{one.takes.example}",
            "needs_argument": one.takes is not None and one.takes.needed,
            "argument": None if one.takes is None else one.takes.meaning,
            "meaning": one.meaning,
            "source": one.source,
        }
        for one in METHODS
    ]


def models(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record a model that `bench` trains by name."""
    return [
        {"model": one.name, "title": one.title, "params": one.params, "data": one.data, "source": one.source}
        for one in ZOO
    ]


def _seen(scores: pl.DataFrame, column: str, slug: str) -> dict[str, Any]:
    """How many entries there are of it, and in which rounds."""
    having = scores.filter(pl.col(column) == slug)
    return {
        "num_entries": having.height,
        "rounds": sorted(having["campaign"].drop_nulls().unique(), key=round_order),
    }


class ListedKind(Struct, frozen=True, kw_only=True):
    """One kind that can be listed: its rows as in the JSON document, and the columns people see of them."""

    kind: str
    rows: Callable[[Tables, Catalogue], list[dict[str, Any]]]
    columns: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...]  # head, alignment, cell
    from_data: bool = True  # whether the rows say what the data have
    below: Callable[[dict[str, Any]], str] | None = None  # a sentence under each row
    remark: str = ""  # what to know about all of them
    counts: str = ""  # what the rows are, where they are not of the kind

    def text(self, rows: list[dict[str, Any]]) -> str:
        """The rows as a table."""
        heads = [head for head, _, _ in self.columns]
        cells = [[cell(row) for _, _, cell in self.columns] for row in rows]
        table = table_text(heads, cells, align="".join(align for _, align, _ in self.columns))
        if self.below is not None:
            lines = table.splitlines(keepends=True)
            shown = (
                f"{line}{_indented(self.below(row))}\n" for line, row in zip(lines[1:], rows, strict=True)
            )
            table = lines[0] + "".join(shown)
        remark = f"\n{fill(self.remark, width_columns())}\n" if self.remark else "\n"
        return table + remark

    def count(self, rows: list[dict[str, Any]], sources: str) -> str:
        """How many there are, and in which data they were counted."""
        many = self.counts or self.kind
        number = counted(len(rows), many.removesuffix("s"), many)
        return f"{number}{f'; {sources}' if self.from_data else ''}.\n"


def _as_given(row: dict[str, Any]) -> str:
    """A way to train as it is written, in brackets what may be left out."""
    method: str = row["method"]
    example: str | None = row["example"]
    if example is None or row["needs_argument"]:
        return example or method
    return f"{method}[{example.removeprefix(method)}]"


def _indented(text: str) -> str:
    """A sentence under a row."""
    gap = "    "
    return fill(text, width_columns(), initial_indent=gap, subsequent_indent=gap, break_on_hyphens=False)


def _written(value: object) -> str:
    """A value as the text form of a strategy has it."""
    return "needed" if value is None else str(value).lower()


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
    ListedKind(
        kind="rounds",
        rows=rounds,
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
    ListedKind(
        kind="workloads",
        rows=workloads,
        columns=(
            ("workload", "<", _field("workload")),
            ("entries", ">", _field("num_entries")),
            ("rounds", "<", _span),
            ("title", "<", _field("title")),
        ),
    ),
    ListedKind(
        kind="accelerators",
        rows=accelerators,
        columns=(
            ("accelerator", "<", _field("accelerator")),
            ("entries", ">", _field("num_entries")),
            ("rounds", "<", _span),
            ("memory", ">", _quantity("memory_bytes", "B")),
            ("dense bf16", ">", _quantity("peak_bf16_flop_per_s", "FLOP/s")),
        ),
    ),
    ListedKind(
        kind="clusters",
        rows=clusters,
        columns=(
            ("cluster", "<", _field("cluster")),
            ("accelerator", "<", lambda row: row["accelerators"][0]),
            ("node", ">", _field("node_size")),
            ("inside", ">", _quantity("intra_byte_per_s", "B/s")),
            ("between", ">", _quantity("inter_byte_per_s", "B/s")),
        ),
        from_data=False,
        remark="Rates are one direction, of one accelerator.",
    ),
    ListedKind(
        kind="strategies",
        counts="parameters",
        rows=strategies,
        columns=(
            ("parameter", "<", _field("parameter")),
            ("default", "<", lambda row: _written(row["default"])),
            (
                "values",
                "<",
                lambda row: " ".join(map(_written, row["values"])) if row["values"] else "whole number",
            ),
        ),
        from_data=False,
        below=lambda row: row["meaning"],
        remark="A strategy is written as its parameters that differ from the default, in any order: "
        "dp=8 tp=4 microbatch=1 global_batch=512 zero_stage=1 recompute=selective",
    ),
    ListedKind(
        kind="methods",
        counts="ways to train",
        rows=methods,
        columns=(("as --strategy", "<", _as_given),),
        from_data=False,
        below=lambda row: (
            row["meaning"] + (f"; behind the colon: {row['argument']}" if row["argument"] else "")
        ),
        remark="`equipoise bench --strategy` takes several, with commas between.",
    ),
    ListedKind(
        kind="models",
        rows=models,
        columns=(
            ("model", "<", _field("model")),
            ("parameters", ">", lambda row: format_count(row["params"])),
            ("title", "<", _field("title")),
        ),
        from_data=False,
        remark="`equipoise bench MODEL` trains it, or module:function of your own.",
    ),
    ListedKind(
        kind="laws",
        rows=laws,
        columns=(
            ("law", "<", _field("law")),
            ("parameters", "<", lambda row: ", ".join(row["params"]) or "-"),
            ("source", "<", _field("source")),
        ),
        from_data=False,
    ),
)
