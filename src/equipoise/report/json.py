"""Records as plain values for JSON (SI units, fractions, null where unknown), and the document of a verb."""

import datetime as dt
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from msgspec import Struct

from equipoise import __version__
from equipoise.calibration import EstimatorName, EvidenceSource
from equipoise.decide.answer import Alternative, Answer, Candidate, Relaxation
from equipoise.decide.explanation.published_nearby import near_published_pretrainings, near_published_steps
from equipoise.economics import Bill
from equipoise.errors import EvidenceError
from equipoise.files import encodable
from equipoise.intervals import Interval
from equipoise.notes import Note
from equipoise.report.format import usable, wins_when
from equipoise.runs import embedded
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import Workload
from equipoise.units import round_up, significant

if TYPE_CHECKING:
    from equipoise.decide.allocation import Allocation, JobShare
    from equipoise.decide.ledger import LedgerEntry, LedgerReport
    from equipoise.decide.prediction import Prediction
    from equipoise.decide.question.query import TrainingQuery
    from equipoise.decide.solve_for import Reaches


# Versions of schemas other than 1, by name of the document, usually a verb (docs/reference/json.md).
# docs/schemas.py writes the JSON schemas that are shipped.
SCHEMA_VERSIONS: Final[Mapping[str, int]] = {
    "advise": 2,
    "advise-ask": 1,
    "plan": 2,
    "predict": 2,
    "allocate": 2,
    "bench": 2,
    "validate": 2,
}


def schema_id(name: str) -> str:
    """The value of `schema` in a document of this name."""
    return f"equipoise.{name}/{SCHEMA_VERSIONS.get(name, 1)}"


def document(verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The head and the fields of a document; the fields may override the schema."""
    head = {
        "schema": schema_id(verb),
        "equipoise": __version__,
        "dataset": embedded.version(),
    }
    return {**head, **fields}


def bill_fields(bill: Bill) -> dict[str, float | str | None]:
    """The bill as in documents: each amount, and the bounds of its interval at LEVEL."""
    found: dict[str, float | str | None] = {"accelerator_hours": bill.accelerator_hours.value}
    for name in ("usd", "energy_j", "carbon_kg", "electricity_usd"):
        amount: Interval | None = getattr(bill, name)
        found[name] = None if amount is None else amount.value
        found[f"low_{name}"] = None if amount is None else amount.low
        found[f"high_{name}"] = None if amount is None else amount.high
    return found | {"energy_basis": bill.energy_basis}


def missing_fields(err: EvidenceError) -> dict[str, Any]:
    """The fields of a document that states why there is no answer, and which evidence is missing."""
    return {"status": "not_enough_evidence", "reason": str(err), "missing": list(err.missing)}


def encode(whole: Mapping[str, Any]) -> bytes:
    """JSON text with a final newline; NaN and infinity become null."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    try:
        return orjson.dumps(whole, option=option)
    except orjson.JSONEncodeError:
        return orjson.dumps(encodable(whole), option=option)


class WeightedSource(Struct, frozen=True, kw_only=True):
    """One source. kind: its estimator. weight: in the time; the weights of all sources sum to 1.

    ref: an entry or a run; for an estimator without named sources, such as the model, its name.
    """

    kind: EstimatorName
    estimate: str
    ref: str
    weight: float
    num_accelerators: int | None = None
    time_s: float | None = None
    source_uri: str | None = None
    source_line: int | None = None


def evidence_of(answer: Answer) -> tuple[WeightedSource, ...]:
    """The sources of the time of the recommended candidate, or of the fastest if none is recommended."""
    found: list[WeightedSource] = []
    for each in () if answer.shown is None else answer.shown.estimates:
        sources = each.sources or (EvidenceSource(kind=each.estimator, ref=each.name),)
        shares = [1.0 if source.share is None else source.share for source in sources]
        whole = sum(shares) or 1.0
        for source, share in zip(sources, shares, strict=True):
            where = picked(source, "num_accelerators", "time_s", "source_uri", "source_line")
            weight = each.weight * share / whole
            found.append(
                WeightedSource(kind=source.kind, estimate=each.name, ref=source.ref, weight=weight, **where)
            )
    return tuple(found)


# Digits of a computed number; further digits may differ between machines.
_NUM_DIGITS = 6
_rounded: Final = partial(significant, num_digits=_NUM_DIGITS, keeps_whole=True)
# Units of an allocation's objective, if not seconds.
_UNITS = {"cost": "usd", "energy": "j"}


def fields_of(record: object, **names: str | None) -> dict[str, Any]:
    """A record as JSON: the properties named in its `JSON_PROPERTIES`, then its fields.

    Tuples become lists, paths and strategies text, infinite numbers null. Fields named in its `NOT_IN_JSON`,
    functions and arrays are omitted. names: names in the document for fields; None omits the field.
    """
    assert isinstance(record, Struct)
    found = {name: plain(getattr(record, name)) for name in getattr(record, "JSON_PROPERTIES", ())}
    left_out = getattr(record, "NOT_IN_JSON", ())
    for field in record.__struct_fields__:
        value, name = getattr(record, field), names.get(field, field)
        is_written = field not in left_out and name is not None
        is_function = callable(value) and not isinstance(value, Struct)
        if is_written and not isinstance(value, np.ndarray) and not is_function:
            found[str(name)] = plain(value)
    return found


def picked(record: object, *fields: str, **names: str) -> dict[str, Any]:
    """The named fields or properties of a record, in this order; null if a record lacks them.

    names: names in the document for fields.
    """
    return {names.get(field, field): plain(getattr(record, field, None)) for field in fields}


def candidate_fields(candidate: Candidate) -> dict[str, Any]:
    """A candidate. `accelerator`: the accelerator or system in the question, as in `id`; `chip`: its chip."""
    found = fields_of(candidate)
    return found | {"accelerator": found.pop("system"), "chip": candidate.accelerator}


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A value for JSON: records as objects, tuples as lists, null for infinite numbers and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    form = next((write for kind, write in _FORMS if isinstance(value, kind)), None)
    if form is not None:
        return form(value)
    if isinstance(value, Struct):
        return fields_of(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(each) for each in value]
    return value


def cluster_fields(nodes: Cluster) -> dict[str, Any]:
    """The facts of a system's nodes."""
    return {
        "name": nodes.name,
        "accelerator": nodes.accelerator.slug,
        "memory_bytes": plain(nodes.accelerator.memory_bytes),
        "node_size": nodes.node_size,
        "topology": nodes.topology,
        "intra_byte_per_s": nodes.intra.byte_per_s,
        "inter_byte_per_s": nodes.inter.byte_per_s,
    }


# Types with a special form. An interval that is too wide is null. A sufficient limit is rounded up, so that
# it suffices as written.
_FORMS: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (Strategy, Strategy.text),
    (Cluster, cluster_fields),
    (Workload, lambda about: {"slug": about.slug, "title": about.title}),
    (Candidate, candidate_fields),
    (Relaxation, lambda change: fields_of(change) | {"needed": round_up(change.needed, _NUM_DIGITS)}),
    (Interval, lambda amount: None if usable(amount) is None else fields_of(amount)),
    (Alternative, lambda other: candidate_fields(other.candidate) | {"wins_when": wins_when(other)}),
    (Note, str),
    (Path, str),
    (dt.date, str),
)


def answer_fields(answer: Answer) -> dict[str, Any]:
    """The document of `advise` and `plan`, schema 2: every candidate, the choice, and its evidence.

    All numbers except those of the question are rounded to _NUM_DIGITS digits.
    """
    found = fields_of(answer)
    found["evidence"] = [fields_of(each) for each in evidence_of(answer)]
    found |= _published_near(answer)
    rounded = {name: _rounded(value) for name, value in found.items() if name != "question"}
    return {"question": _question(answer), "currency": _currency(answer.question), **rounded}


def _published_near(answer: Answer | None) -> dict[str, Any]:
    return {
        "published_steps": plain(near_published_steps(answer)),
        "published_pretrainings": plain(near_published_pretrainings(answer)),
    }


def _currency(asked: "TrainingQuery") -> dict[str, Any] | None:
    """The user's currency, its rate per US dollar and the date of the rate; all amounts are in dollars."""
    own = asked.own_currency
    if own is None:
        return None
    return {"name": own[0], "per_usd": own[1], "date": asked.currency_date}


def _question(answer: Answer) -> dict[str, Any]:
    """Every field of the question; its systems as resolved, with one item per system and rental terms."""
    systems = [
        {
            "system": each.name,
            "terms": terms,
            "price_usd_per_accelerator_hour": None
            if rates.price is None or rates.others
            else rates.price.usd_per_accelerator_hour,
            "stock": each.stock,
        }
        for each in answer.systems
        for terms, rates in each.rates.items()
    ]
    return fields_of(answer.question) | {"systems": systems}


def prediction_fields(found: "Prediction") -> dict[str, Any]:
    """The document of `predict`, schema 2, with candidates and equilibria as in the one of `advise`."""
    fields = fields_of(found, question=None, candidates=None, outside=None, answer=None)
    predictions = [
        {
            **candidate_fields(each),
            "in_domain": each.num_accelerators not in found.outside,
            "outside": found.outside.get(each.num_accelerators),
        }
        for each in found.candidates
    ]
    rounded = _rounded({"predictions": predictions, **fields, **_published_near(found.answer)})
    return {"question": fields_of(found.question), "currency": _currency(found.question), **rounded}


def reach_fields(found: "Reaches") -> dict[str, Any]:
    """The document of `advise --ask`: the question, then each system, the largest amount first."""
    fields = fields_of(found)
    del fields["titles"]
    for each in (fields["best"], *fields["others"]):
        del each["question"]
    asked = found.best.question
    head = {"schema": schema_id("advise-ask"), "question": fields_of(asked), "currency": _currency(asked)}
    return {**head, **_rounded(fields)}


def allocation_fields(found: "Allocation") -> dict[str, Any]:
    """The document of `allocate`, schema 2."""
    solved, tariff = found.solved, found.pool.tariff
    whole = {
        "cluster": {
            "accelerator": found.pool.cluster.accelerator.slug,
            **picked(found.pool.cluster, "num_accelerators", "node_size"),
        },
        "currency": _currency(found.pool.question),
        "objective": found.objective,
        "unit": _UNITS.get(found.objective, "s"),
        "value": fields_of(found.value),
        "feasible": found.is_feasible,
        "certain": found.is_certain,
        "jobs": [_share(each) for each in found.shares],
        "late": [
            {**picked(each.job, "name", "deadline_s"), "late_s": each.late_s}
            for each in found.shares
            if each.late_s
        ],
        "side_by_side": found.is_side_by_side,
        "makespan_s": found.makespan_s,
        "total_time_s": found.total_s,
        "proof": {**fields_of(solved, placed=None, value=None, is_proved="proved"), "gap": solved.gap},
        "simpler_schedules": plain(found.simpler_schedules),
        "electricity_usd_per_kwh": tariff and fields_of(tariff, usd_per_kwh="by_hour"),
        "notes": [*map(str, found.notes)],
    }
    return {name: _rounded(value) for name, value in whole.items()}


def _share(each: "JobShare") -> dict[str, Any]:
    return {
        **picked(each.job, "name", "workload"),
        "start_s": each.start_s,
        "end_s": fields_of(each.end_s),
        "deadline_s": plain(each.job.deadline_s),
        "late_s": each.late_s,
        "at_risk": each.is_at_risk,
        "usd": each.usd,
        "hourly_electricity_usd": each.hourly_electricity_usd,
        "candidate": candidate_fields(each.candidate),
        "times_s": [
            {"num_accelerators": size, **fields_of(time)}
            for size, time in zip(each.times.sizes, each.times.time_s, strict=True)
        ],
    }


def ledger_fields(found: "LedgerReport") -> dict[str, Any]:
    """The document of `record`."""
    running = found.running
    whole = {
        "ledger": str(found.ledger.path),
        "predictions": [_ledger_entry(each) for each in found.entries],
        "running": running
        and {
            **picked(running, "num_predictions", "num_measured"),
            **fields_of(running.record),
            **picked(running, "bias", "level"),
        },
        "num_added": found.num_added,
        "num_damaged_lines": found.ledger.num_damaged,
    }
    return {name: significant(value) for name, value in whole.items()}


def _ledger_entry(each: "LedgerEntry") -> dict[str, Any]:
    return {
        **picked(each, "id", "made"),
        **fields_of(each.prediction),
        "measured": each.outcome,
        "num_measured": len(each.measured),
        **picked(each, "error", "is_covered", is_covered="held"),
        "sources": [one.source for one in each.measured],
    }
