"""The whole pipeline on one page: tables in; metrics, factors, groups and claims; findings out."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import polars as pl

from equipoise.advice.answer.advice import Advice
from equipoise.advice.answer.advised import advise
from equipoise.advice.answer.asked import Request, Sought
from equipoise.advice.answer.reached import Reaches, reaches
from equipoise.advice.forecast import record
from equipoise.advice.forecast.advice_record import shipped_advice
from equipoise.advice.forecast.balance import Balances, Unanswered, balances
from equipoise.advice.forecast.diagnose import diagnose, diagnose_curves
from equipoise.advice.ledger import running
from equipoise.advice.plans import sizing
from equipoise.advice.plans.plan_record import plan_records
from equipoise.advice.plans.planned import Comparison
from equipoise.advice.validation.profiles import profiles
from equipoise.economics import SYSTEM_POWER, Bill, Rates, bill, grid
from equipoise.economics import rates as rates_of
from equipoise.errors import DataError, EvidenceError, SpecError, UsageError
from equipoise.findings import (
    AccuracyFindings,
    AdviceFindings,
    ComparedFindings,
    Findings,
    PlanFindings,
    ReachFindings,
    WorkloadFindings,
)
from equipoise.perfmodel.parameters import PRIORS
from equipoise.runs import embedded
from equipoise.runs.chosen import Folders, paths, tables
from equipoise.scaling.batches import BatchGrowth, batch_growth
from equipoise.scaling.claims import claims_about
from equipoise.scaling.decompose import losses, with_factors
from equipoise.scaling.groups import Grouping, grouped
from equipoise.scaling.metrics import COMPARABLE, ENTRY_COLUMNS, SCORE_COLUMNS, curves, spots, with_metrics
from equipoise.scaling.pointers import pointers
from equipoise.scaling.reference import Attributed, Published, table_row
from equipoise.scaling.shared import shared_systems
from equipoise.scaling.summary import headline, summary
from equipoise.scaling.titles import workload_title
from equipoise.spec.hardware import accelerator as known_accelerator
from equipoise.spec.hardware import accelerator_slug
from equipoise.spec.workload import workload_slug

# Open entries may change the model and the target: they are listed, but no study compares them.
DIVISION = "closed"
MIN_ENTRIES = 3


def scores(
    *,
    round: str | None = None,  # noqa: A002 - what users call it
    workload: str | None = None,
    accelerator: str | None = None,
    submitter: str | None = None,
    division: str | None = None,
    sort: str | None = None,
    data: Folders | None = None,
    also: Folders = (),
) -> pl.DataFrame:
    """Every entry, scored or not, with speedup, E' and like-for-like E: the columns of `SCORE_COLUMNS`.

    Filters take the names of data, in any case, or their aliases (`4.1`, `NVIDIA H100-SXM5-80GB`); reference
    and baseline are found before filtering. sort: a column, `-column` for descending; else by round,
    workload, accelerators and score.
    Raises SpecError for a name that the data do not hold, naming those they do.
    """
    rows = with_metrics(tables(data=data, also=also).scores).rename({"campaign": "round"})
    rows = _ordered(rows.sort("num_accelerators", "score_s", "entry_id", nulls_last=True), sort)
    filters: tuple[tuple[str, str | None, Callable[[str], str]], ...] = (
        ("round", round, round_name),
        ("workload", workload, _workload_spelling(round)),
        ("accelerator", accelerator, lambda name: known_accelerator(name).slug),
        ("submitter", submitter, str),
        ("division", division, str.lower),
    )
    held = {column: rows[column] for column, wanted, _ in filters if wanted is not None}
    for column, wanted, spelt in filters:
        if wanted is not None:
            named = _named(wanted, held[column], spelt)
            rows = rows.filter(pl.col(column).str.to_lowercase() == named.lower())
    return rows.select(SCORE_COLUMNS)


def study(
    round: str | None = None,  # noqa: A002 - what users call it
    workloads: Sequence[str] | None = None,
    *,
    k: int | None = None,
    data: Folders | None = None,
    also: Folders = (),
) -> Findings:
    """What the closed entries of one round say about scaling.

    round: the published study's (v4.1) unless given; the latest one where the data lack that. workloads: the
    study's in its round, else every workload with at least three scored entries. k: number of groups; by
    silhouette unless given.
    Raises EvidenceError when a workload has fewer than three scored entries, SpecError for unknown names.
    """
    everything = tables(data=data, also=also).scores.rename({"campaign": "round"})
    published = _published()
    chosen_round = _chosen_round(round, everything)
    entries = everything.filter((pl.col("round") == chosen_round) & (pl.col("division") == DIVISION))
    own = {row.workload: row for row in published if row.round == chosen_round}
    chosen = _chosen_workloads(workloads, entries, default=tuple(own), round_=chosen_round)
    measured = with_factors(with_metrics(entries.rename({"round": "campaign"}))).rename({"campaign": "round"})
    of_round = {workload: measured.filter(pl.col("workload") == workload) for workload in chosen}
    stops = balances(
        everything.rename({"round": "campaign"}),
        {workload: curves(rows) for workload, rows in of_round.items()},
        round_=chosen_round,
    )
    each = tuple(
        _workload_findings(rows, own.get(workload), stops[workload], _batches(everything, workload), k=k)
        for workload, rows in of_round.items()
    )
    by_workload = {found.workload: found.entries for found in each}
    claims = claims_about(by_workload, label=f"{chosen_round}, {DIVISION}")
    names = {found.workload: found.name for found in each}
    return Findings(
        round=chosen_round,
        division=DIVISION,
        dataset=embedded.version(),
        sources=_sources(data, also),
        headline=headline(f"MLPerf Training {chosen_round}", by_workload, claims),
        summary=summary(names, by_workload, [pointer for found in each for pointer in found.pointers]),
        workloads=each,
        claims=claims,
        shared=shared_systems(
            by_workload, num_published=_num_systems_in_all() if own.keys() == by_workload.keys() else None
        ),
        attributed=_attributed(chosen_round),
        record=_record(),
    )


def compared(
    round: str | None = None,  # noqa: A002 - what users call it
    workload: str | None = None,
    entries: Sequence[str] = (),
    *,
    data: Folders | None = None,
    also: Folders = (),
) -> ComparedFindings:
    """Closed entries of one round and workload side by side.

    round: as for `study`. workload: the first that a study of the round takes unless given. entries: their
    entry_id; those that `scaling.pointers` points to unless given.
    Raises EvidenceError where too few entries have a score, SpecError for unknown names.
    """
    everything = tables(data=data, also=also).scores.rename({"campaign": "round"})
    chosen_round = _chosen_round(round, everything)
    of_round = everything.filter((pl.col("round") == chosen_round) & (pl.col("division") == DIVISION))
    wanted = None if workload is None else (workload,)
    usual = tuple(row.workload for row in _published() if row.round == chosen_round)
    slug = _chosen_workloads(wanted, of_round, default=usual, round_=chosen_round)[0]
    measured = with_factors(
        with_metrics(of_round.filter(pl.col("workload") == slug).rename({"round": "campaign"}))
    ).rename({"campaign": "round"})
    scored = measured.filter(COMPARABLE).sort("num_accelerators", "score_s", "entry_id")
    ids = tuple(dict.fromkeys(entries)) or tuple(each.entry_id for each in pointers(scored, slug))
    unknown = next((each for each in ids if each not in scored["entry_id"]), None)
    if unknown is not None:
        raise SpecError(f"entry {unknown!r} has no score for {slug} in {chosen_round}, {DIVISION}")
    chosen = scored.filter(pl.col("entry_id").is_in(ids))
    kinds = chosen["accelerator"].drop_nulls().unique().to_list()
    return ComparedFindings(
        round=chosen_round,
        division=DIVISION,
        dataset=embedded.version(),
        sources=_sources(data, also),
        workload=slug,
        name=workload_title(slug),
        entries=scored,
        chosen=chosen,
        bills=tuple(_bill_of(row) for row in chosen.iter_rows(named=True)),
        losses=losses(chosen),
        curves=curves(scored.filter(pl.col("accelerator").is_in(kinds))),
        are_given=bool(entries),
    )


def _bill_of(entry: Mapping[str, Any]) -> Bill:
    """What one run of an entry costs, its energy as measured where it was."""
    known = None
    if entry["accelerator"] is not None and accelerator_slug(entry["accelerator"]) is not None:
        known = known_accelerator(entry["accelerator"])
    rates = Rates(price=None, grid=grid(), accelerator_power_w=None, system_power=SYSTEM_POWER)
    return bill(
        entry["num_accelerators"],
        entry["score_s"],
        rates if known is None else rates_of(known),
        measured_energy_j=entry["energy_j"],
    )


def plan_findings(comparison: Comparison) -> PlanFindings:
    """What a page shows of the plans of `advice.plans`, the one to take first."""
    plan = comparison.plan
    stored = sizing.stored(plan)
    return PlanFindings(
        comparison=comparison,
        plan=plan,
        sizes=sizing.by_size(plan),
        layouts=sizing.layouts(plan),
        spent=sizing.spent(plan.by_size),
        stored=stored,
        held=sizing.held(stored),
        priors=PRIORS,
        dataset=embedded.version(),
    )


def advice(request: Request, *, data: Folders | None = None, also: Folders = ()) -> AdviceFindings:
    """What to take for a training, with its evidence, reasons, alternatives and record.

    Raises EvidenceError, naming what is missing, where nothing tells how long it takes.
    """
    return advice_findings(advise(request, scores=tables(data=data, also=also).scores))


def reach(sought: Sought, *, data: Folders | None = None, also: Folders = ()) -> ReachFindings:
    """How many tokens, or how large a model, money and time are enough for.

    Raises EvidenceError where nothing tells, UsageError where they are not enough for a start.
    """
    return reach_findings(reaches(sought, scores=tables(data=data, also=also).scores))


def reach_findings(found: Reaches) -> ReachFindings:
    """What a page shows of what money and time are enough for."""
    return ReachFindings(reaches=found, dataset=embedded.version())


def advice_findings(found: Advice) -> AdviceFindings:
    """What a page shows of an advice."""
    return AdviceFindings(advice=found, dataset=embedded.version())


def accuracy() -> AccuracyFindings:
    """How wrong every kind of answer was on what was held out, and one's own ledger of predictions."""
    return AccuracyFindings(
        forecasts=_record(),
        profiles=profiles(),
        plans=plan_records(),
        advised=shipped_advice().errors,
        own=running(),
        dataset=embedded.version(),
    )


def round_name(name: str) -> str:
    """A round as the data name it: `4.1`, `V4.1` and `v4.1` are one.

    >>> round_name("4.1")
    'v4.1'
    """
    return re.sub(r"^v?(?=\d)", "v", name.strip(), flags=re.IGNORECASE)


def default_round(entries: pl.DataFrame) -> str:
    """The round a study is of unless another is named: the published study's, else the latest.

    entries: scores with their `round`. Raises EvidenceError where there are none.
    """
    held = entries["round"].drop_nulls()
    if held.is_empty():
        raise EvidenceError(
            "the data hold no entries", missing=("the results of a round: see `equipoise ingest`",)
        )
    published = next((row.round for row in _published() if row.round in held), None)
    return published or max(held.unique(), key=round_order)


def _workload_findings(
    entries: pl.DataFrame,
    published: Published | None,
    stops: Balances,
    batches: BatchGrowth | Unanswered,
    *,
    k: int | None,
) -> WorkloadFindings:
    workload = entries["workload"][0]
    ordered = entries.sort("num_accelerators", "score_s", "entry_id", nulls_last=True)
    grouping: Grouping | None = None
    grouping_missing = None
    try:
        grouping, marked = grouped(ordered, k=k)
    except EvidenceError as err:
        grouping_missing = str(err)
        marked = ordered.with_columns(cluster=pl.lit(None, pl.Int64))
    best = curves(marked)
    return WorkloadFindings(
        workload=workload,
        name=published.name if published else workload_title(workload),
        table=table_row(ordered, workload, published),
        entries=marked.select(ENTRY_COLUMNS),
        spots=spots(marked),
        curves=best,
        grouping=grouping,
        grouping_missing=grouping_missing,
        pointers=pointers(marked, workload),
        energy=marked.select(ENTRY_COLUMNS).filter(pl.col("energy_j").is_not_null()),
        losses=losses(marked),
        diagnoses=diagnose(marked),
        curve_diagnoses=diagnose_curves(best),
        batches=batches,
        balances=stops,
    )


def _batches(everything: pl.DataFrame, workload: str) -> BatchGrowth | Unanswered:
    """Samples against batch over all rounds of a workload, or why they tell nothing."""
    entries = everything.filter((pl.col("workload") == workload) & (pl.col("division") == DIVISION))
    try:
        return batch_growth(entries)
    except EvidenceError as err:
        return Unanswered(subject=workload, reason=str(err), missing=err.missing)


def _record() -> record.Shipped | None:
    """How wrong predictions were; None in a checkout whose record has not been made yet."""
    try:
        return record.shipped()
    except DataError:
        return None


def _chosen_round(wanted: str | None, entries: pl.DataFrame) -> str:
    return default_round(entries) if wanted is None else _named(wanted, entries["round"], round_name)


def _chosen_workloads(
    wanted: Sequence[str] | None, entries: pl.DataFrame, *, default: Sequence[str], round_: str
) -> tuple[str, ...]:
    """The workloads to study, each with enough scored entries."""
    num_scored = dict(
        entries.drop_nulls("workload").group_by("workload").agg(COMPARABLE.sum()).sort("workload").iter_rows()
    )
    if wanted:
        where = f"the {DIVISION} entries of {round_}"
        names = [
            _named(name, entries["workload"], _workload_spelling(round_), where=where) for name in wanted
        ]
        chosen = tuple(dict.fromkeys(names))
    else:
        enough = [workload for workload, count in num_scored.items() if count >= MIN_ENTRIES]
        chosen = tuple(workload for workload in default if workload in enough) or tuple(enough)
    thin = [workload for workload in chosen if num_scored[workload] < MIN_ENTRIES]
    if thin or not chosen:
        counts = (
            ", ".join(f"{workload} has {count}" for workload, count in num_scored.items())
            or "it has no entries"
        )
        raise EvidenceError(
            f"{round_}, {DIVISION}: a study needs {MIN_ENTRIES} entries of a workload with a score; {counts}",
            missing=tuple(f"scored {DIVISION} entries of {workload} in {round_}" for workload in thin)
            or (f"scored {DIVISION} entries in {round_}",),
        )
    return chosen


def _named(wanted: str, held: pl.Series, spelt: Callable[[str], str], *, where: str = "the data") -> str:
    """The value of the data that a user's word stands for: itself in any case, or its catalogue's spelling.

    where: what `held` was taken from, for the complaint.
    """
    values = held.drop_nulls().unique().sort().to_list()
    if wanted in values:
        return wanted
    try:
        value = spelt(wanted)
    except SpecError:
        value = wanted
    for each in (value, *values):
        if each in values and each.lower() == value.lower():
            return str(each)
    listed = sorted(values, key=round_order) if held.name == "round" else values
    raise SpecError(f"{held.name} {wanted!r} is not in {where}; they hold {', '.join(listed)}")


def _workload_spelling(round_: str | None) -> Callable[[str], str]:
    """The slug a name stands for in a round: `ssd` was another model before v2.0."""
    number = re.fullmatch(r"v(\d+(?:\.\d+)?)", round_name(round_)) if round_ else None
    return lambda name: workload_slug(name, float(number[1]) if number else None) or name


def _ordered(rows: pl.DataFrame, sort: str | None) -> pl.DataFrame:
    if sort is None:
        names = sorted(rows["round"].drop_nulls().unique(), key=round_order)
        position = pl.col("round").replace_strict(
            names, range(len(names)), default=None, return_dtype=pl.Int64
        )
        return rows.sort(position, "workload", nulls_last=True, maintain_order=True)
    column = sort.removeprefix("-")
    if column not in SCORE_COLUMNS:
        raise UsageError(f"cannot sort by {column!r}; expected one of {', '.join(SCORE_COLUMNS)}")
    return rows.sort(column, descending=sort.startswith("-"), nulls_last=True, maintain_order=True)


def round_order(name: str) -> tuple[tuple[int, ...], str]:
    """A key: rounds in the order of their numbers, v10.0 after v9.0; other names by their letters."""
    return tuple(int(digits) for digits in re.findall(r"\d+", name)), name


def _sources(data: Folders | None, also: Folders) -> str:
    first = "the embedded dataset" if not data else ", ".join(str(each) for each in paths(data))
    beside = ", ".join(str(each) for each in paths(also))
    return f"{first}, and beside it {beside}" if beside else first


def _published() -> tuple[Published, ...]:
    """The rows that published studies print, first study first."""
    return tuple(
        Published(
            round=each["round"],
            num_decimals=each["num_decimals"],
            source=_source(each),
            **row,
        )
        for each in _published_facts()
        for row in each["row"]
    )


def _attributed(round_: str) -> tuple[Attributed, ...]:
    """What others ascribe to the studies of a round."""
    return tuple(
        Attributed(source=_source(each), **stated)
        for each in _published_facts()
        if each["round"] == round_
        for stated in each.get("attributed", ())
    )


def _source(facts: dict[str, Any]) -> str:
    return f"{facts['name']}, {facts['where']}, {facts['url']}"


def _num_systems_in_all() -> int | None:
    return next((each["num_systems_in_all"] for each in _published_facts()), None)


def _published_facts() -> list[dict[str, Any]]:
    text = files("equipoise").joinpath("published.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text)["study"])
