"""The records of `list`: rounds, workloads and accelerators in the data, and known names."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, get_args

import polars as pl
from msgspec.structs import fields

from equipoise import economics, glossary
from equipoise.bench.training import METHODS, ZOO
from equipoise.calibration.profiles import RULES
from equipoise.economics import interruptions as rates
from equipoise.report.json import picked
from equipoise.runs.store import Tables
from equipoise.scaling.laws import LAWS
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.mlperf import round_order
from equipoise.spec.strategy import SOFTWARE, Strategy
from equipoise.units import SI_PREFIXES

_ACCELERATOR_FACTS: Final = (
    *("title", "vendor", "kind", "year", "memory_bytes", "peak_bf16_flop_per_s", "achievable_fraction"),
    *("achievable_is_measured", "power_w", "node_size", "topology", "link_byte_per_s", "host_byte_per_s"),
    *("inter_byte_per_s", "node_source", "source", "confidence"),
)


def rounds(tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per round, oldest first."""
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
    """One record per workload of the catalogue, with its entries in the data."""
    return [
        {
            **picked(one, "slug", "title", "params", "lacks", slug="workload"),
            **_seen(tables.scores, "workload", one.slug),
        }
        for one in catalogue.workloads()
    ]


def accelerators(tables: Tables, catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per accelerator of the catalogue, with its entries in the data."""
    return [
        {
            **picked(one, "slug", *_ACCELERATOR_FACTS, slug="accelerator"),
            **_seen(tables.scores, "accelerator", one.slug),
        }
        for one in catalogue.accelerators()
    ]


def systems(_tables: Tables, catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per system of the catalogue, with link rates per accelerator."""
    return [
        {
            **picked(one, "slug", "title", "accelerators", slug="system"),
            **picked(whole, "node_size", "num_nics", "topology"),
            "intra_byte_per_s": whole.intra.byte_per_s,
            "intra_latency_s": whole.intra.latency_s,
            "inter_byte_per_s": whole.inter.byte_per_s,
            "inter_latency_s": whole.inter.latency_s,
            "shared_host_byte_per_s": whole.shared_host_byte_per_s,
            **picked(one, "source", "confidence"),
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


def prices(_tables: Tables, catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per dated offer of an accelerator; minimum_months is null if the source does not say."""
    return [
        {
            "accelerator": one.slug,
            **picked(offer, "terms", "provider", "usd_per_accelerator_hour", "minimum_months"),
            "date": offer.read.isoformat(),
            "source": offer.source,
        }
        for one in catalogue.accelerators()
        for offer in economics.offers(one.slug)
    ]


def regions(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per region of `--region`, with the carbon intensity of its electricity."""
    grids = [economics.grid(name) for name in economics.table("grids.toml")["kg_co2_per_kwh"]]
    return [
        {"region": each.region, "g_co2_per_kwh": SI_PREFIXES["k"] * each.kg_co2_per_kwh, "source": each.basis}
        for each in grids
    ]


def interruptions(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per cluster or spot trace with published interruptions.

    hours_between: hours of one accelerator between failures. waves_per_hour: reclaims of spot nodes, with
    num_nodes nodes. share_of_nodes: fraction of the nodes reclaimed at once.
    """
    facts = ("hours_between", "waves_per_hour", "num_nodes", "share", "what", "source")
    return [
        {"seen_at": each.name, "kind": kind, **picked(each, *facts, share="share_of_nodes")}
        for kind, seen in (("failures", rates.clusters()), ("spot", rates.spot_traces()))
        for each in seen
    ]


def laws(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per law of `predict --law`."""
    pooled = {
        "law": "pooled",
        "params": [],
        "assumes": "curves of a workload share their shape across accelerators and rounds",
        "source": "docs/experiments/0002-pooled-law.md",
    }
    return [pooled, *(picked(one, "name", "params", "assumes", "source", name="law") for one in LAWS)]


def software(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per software of `--software`. default_of: cases in which it is assumed by default.

    TPUs run only software made for them; all other software runs on all other accelerators, although most of
    it was only measured on NVIDIA's.
    """
    return [
        {
            **picked(one, "name", "title", "vendor", "is_eager", name="software", vendor="measured_on"),
            "default_of": [
                f"{' and '.join(rule.architectures)} on {rule.vendor or 'all but TPUs'}: "
                f"{', '.join(rule.parts)}"
                for rule in RULES
                if rule.software == one.name
            ],
        }
        for one in SOFTWARE
    ]


def methods(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per method of `bench --strategy`."""
    return [
        {
            "method": one.name,
            "example": None if one.takes is None else f"{one.name}:{one.takes.example}",
            "needs_argument": one.takes is not None and one.takes.needed,
            "argument": None if one.takes is None else one.takes.meaning,
            **picked(one, "meaning", "source"),
        }
        for one in METHODS
    ]


def models(_tables: Tables, _catalogue: Catalogue) -> list[dict[str, Any]]:
    """One record per model that `bench` trains by name."""
    return [picked(one, "name", "title", "params", "data", "source", name="model") for one in ZOO]


def _seen(scores: pl.DataFrame, column: str, slug: str) -> dict[str, Any]:
    """The number of entries with `slug` in a column, and their rounds."""
    having = scores.filter(pl.col(column) == slug)
    return {
        "num_entries": having.height,
        "rounds": sorted(having["campaign"].drop_nulls().unique(), key=round_order),
    }


def has_any(record: Mapping[str, Any], accelerators: Collection[str]) -> bool:
    """Whether a record is for any of the accelerators, given by their slugs."""
    mine = record.get("accelerators", [record.get("accelerator")])
    return any(each in accelerators for each in mine)


LISTED: Final[Mapping[str, Callable[[Tables, Catalogue], list[dict[str, Any]]]]] = {
    rows_of.__name__: rows_of
    for rows_of in (
        *(rounds, workloads, accelerators, systems, strategies, software, methods, models, laws),
        *(prices, regions, interruptions),
    )
}
