"""Writes the JSON schemas that ship, from the annotations of the records that documents are written from.

`python docs/schemas.py NAME` prints one; `--write` renews src/equipoise/report/schemas/.
"""

import datetime as dt
import inspect
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import orjson
from msgspec import Struct

from equipoise.bench.topology.topology import Topology
from equipoise.decide.allocation import SimplerSchedule
from equipoise.decide.allocation.problem import ObjectiveName
from equipoise.decide.answer import Alternative, Answer, Candidate
from equipoise.decide.explanation.published_nearby import NearPretraining, NearStep
from equipoise.decide.prediction import Prediction
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.solve_for import Reaches
from equipoise.intervals import Bar, Interval
from equipoise.launch import Setting, Snippet
from equipoise.notes import Note
from equipoise.report.json import SCHEMA_VERSIONS, WeightedSource, schema_id
from equipoise.runs.readers.measurements import Measurements
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import Workload

Schema: TypeAlias = dict[str, Any]
FOLDER: Final = Path(__file__).resolve().parents[1] / "src" / "equipoise" / "report" / "schemas"
_REFERENCE: Final = re.compile(r"#/\$defs/(\w+)")
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Final[Schema] = {"type": "string"}
_NUMBER: Final[Schema] = {"type": "number"}
_WHOLE: Final[Schema] = {"type": "integer"}
_PLAIN: Final[Mapping[Any, Schema]] = {
    str: _TEXT,
    bool: {"type": "boolean"},
    int: _WHOLE,
    float: _NUMBER,
    Note: _TEXT,
    Path: _TEXT,
    dt.date: {"type": "string", "format": "date"},
    Strategy: {"type": "string", "description": "the strategy in its text form"},
    types.NoneType: {"type": "null"},
    Any: {},
}
# Records that others import for their types alone.
_FOR_TYPES: Final = {each.__name__: each for each in (Measurements, Setting, Snippet, Topology)}
# Amounts of these may be infinite (buying that never pays), which JSON writes as null.
_MAY_BE_INFINITE: Final = (Interval, Bar)


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


_CLUSTER: Final[Schema] = _object(
    {
        "name": _TEXT,
        "accelerator": _TEXT,
        "memory_bytes": {"type": ["number", "null"]},
        "node_size": _WHOLE,
        "topology": _TEXT,
        "intra_byte_per_s": _NUMBER,
        "inter_byte_per_s": _NUMBER,
    }
)
# What a document says where evidence does not suffice (`report.json.missing_fields`).
_MISSING: Final[Schema] = {
    "status": {"const": "not_enough_evidence"},
    "reason": _TEXT,
    "missing": {"type": "array", "items": _TEXT},
}
_QUESTION_SYSTEM: Final[Schema] = _object(
    {
        "system": _TEXT,
        "terms": _TEXT,
        "price_usd_per_accelerator_hour": {"type": ["number", "null"]},
        "stock": {"type": ["integer", "null"]},
    }
)


class _Definitions:
    """The schemas of the records met so far, by name."""

    def __init__(self) -> None:
        self.found: dict[str, Schema] = {}
        self._kinds: dict[str, type] = {}

    def of(self, annotation: Any) -> Schema:  # noqa: ANN401 - an annotation; a case each
        """The schema of an annotation."""
        if annotation in _PLAIN:
            return _PLAIN[annotation]
        origin, parts = get_origin(annotation), get_args(annotation)
        if origin is Literal:
            return {"enum": list(parts)}
        if origin in {Union, types.UnionType}:
            # An interval too wide to be shown is null anyhow.
            kinds = [part for part in parts if part is not types.NoneType or Interval not in parts]
            found = [self.of(part) for part in kinds]
            return found[0] if len(found) == 1 else {"anyOf": found}
        if origin in {tuple, list, set, frozenset}:
            return self._array(parts)
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(parts[1])}
        return self._reference(annotation)

    def _array(self, parts: tuple[Any, ...]) -> Schema:
        if len(parts) == 1 or parts[1] is Ellipsis:
            return {"type": "array", "items": self.of(parts[0])}
        items = [self.of(part) for part in parts]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _reference(self, kind: type) -> Schema:
        assert issubclass(kind, Struct), kind
        name = kind.__name__
        if self._kinds.setdefault(name, kind) is not kind:
            raise TypeError(f"two records are named {name}: {kind} and {self._kinds[name]}")
        if name not in self.found:
            self.found[name] = {}  # what refers to itself ends here
            self.found[name] = self._record(kind)
        reference = {"$ref": f"#/$defs/{name}"}
        return {"anyOf": [reference, _PLAIN[types.NoneType]]} if kind is Interval else reference

    def _record(self, kind: type) -> Schema:
        if kind is Cluster:
            return _CLUSTER
        if kind is Workload:
            return _object({"slug": _TEXT, "title": _TEXT})
        found = _object(self._properties(kind))
        # What its fields mean stands in its docstring: paragraphs without their line breaks.
        doc = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(kind) or "")
        if kind is Alternative:
            candidate = self.of(get_type_hints(kind)["candidate"])
            found = {"allOf": [candidate, _object({"wins_when": _TEXT})]}
        return {"description": doc, **found}

    def _properties(self, kind: type[Struct]) -> Schema:
        hints = get_type_hints(kind, localns=_FOR_TYPES)
        found: Schema = {}
        for name in getattr(kind, "JSON_PROPERTIES", ()):
            made = getattr(kind, name)
            by = made.func if isinstance(made, cached_property) else made.fget
            found[name] = self.of(get_type_hints(by, localns=_FOR_TYPES)["return"])
        for name in kind.__struct_fields__:
            hint = hints[name]
            if name not in getattr(kind, "NOT_IN_JSON", ()) and not _is_function(hint):
                schema = self.of(hint)
                is_open = kind in _MAY_BE_INFINITE and schema == _NUMBER
                found[name] = {"type": ["number", "null"]} if is_open else schema
        if kind is Candidate:  # the accelerator of the question, which names the system; and its chip
            found["chip"] = found.pop("system")
        return found


def _is_function(hint: Any) -> bool:  # noqa: ANN401 - an annotation
    options = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    return any(get_origin(each) is Callable for each in options)


def _answer(definitions: _Definitions) -> Schema:
    question = _question(definitions)
    systems = {"type": "array", "items": _QUESTION_SYSTEM}
    definitions.found["TrainingQuery"]["properties"]["systems"] = systems
    evidence = {"type": "array", "items": definitions.of(WeightedSource)}
    found = {**_inlined(definitions, Answer), "question": question, "evidence": evidence}
    return {**found, **_shared(definitions)}


_CURRENCY: Final[Schema] = {
    "anyOf": [
        _object({"name": _TEXT, "per_usd": _NUMBER, "date": {"type": ["string", "null"]}}),
        _PLAIN[types.NoneType],
    ]
}


def _shared(definitions: _Definitions) -> Schema:
    """What the documents of an answer and of a prediction have in common."""
    return {
        "currency": _CURRENCY,
        "published_steps": {"type": "array", "items": definitions.of(NearStep)},
        "published_pretrainings": {"type": "array", "items": definitions.of(NearPretraining)},
    }


def _prediction(definitions: _Definitions) -> Schema:
    prediction = _inlined(definitions, Prediction, without=("candidates", "outside", "answer"))
    domain = _object({"in_domain": _PLAIN[bool], "outside": {"type": ["string", "null"]}})
    predictions = {"type": "array", "items": {"allOf": [definitions.of(Candidate), domain]}}
    question = _question(definitions)
    return {**prediction, "predictions": predictions, "question": question, **_shared(definitions)}


def _reach(definitions: _Definitions) -> Schema:
    reaches = _inlined(definitions, Reaches, without=("titles",))
    reach = definitions.found["BudgetReach"]
    del reach["properties"]["question"]
    reach["required"].remove("question")
    return {**reaches, "question": _question(definitions), "currency": _CURRENCY}


def _allocation(definitions: _Definitions) -> Schema:
    amount = definitions.of(Interval)
    late = {"name": _TEXT, "deadline_s": _NUMBER, "late_s": _NUMBER}
    size = {"num_accelerators": _WHOLE, "value": _NUMBER, "low": _NUMBER, "high": _NUMBER, "level": _NUMBER}
    job = {
        "name": _TEXT,
        "workload": {"type": ["string", "null"]},
        "start_s": _NUMBER,
        "end_s": amount,
        "deadline_s": {"type": ["number", "null"]},
        "late_s": _NUMBER,
        "at_risk": _PLAIN[bool],
        "usd": {"type": ["number", "null"]},
        "hourly_electricity_usd": {"type": ["number", "null"]},
        "candidate": definitions.of(Candidate),
        "times_s": {"type": "array", "items": _object(size)},
    }
    proof = {
        "method": _TEXT,
        "proved": _PLAIN[bool],
        "bound": _NUMBER,
        "gap": _NUMBER,
        "num_explored": _WHOLE,
    }
    tariff = _object({"by_hour": {"type": "array", "items": _NUMBER}, "begin_s": _NUMBER})
    pool = {"accelerator": _TEXT, "num_accelerators": _WHOLE, "node_size": _WHOLE}
    return {
        "cluster": _object(pool),
        "currency": _CURRENCY,
        "objective": definitions.of(ObjectiveName),
        "unit": {"enum": ["s", "usd", "j"]},
        "value": amount,
        "feasible": _PLAIN[bool],
        "certain": _PLAIN[bool],
        "jobs": {"type": "array", "items": _object(job)},
        "late": {"type": "array", "items": _object(late)},
        "side_by_side": _PLAIN[bool],
        "makespan_s": _NUMBER,
        "total_time_s": _NUMBER,
        "proof": _object(proof),
        "simpler_schedules": {"type": "array", "items": definitions.of(SimplerSchedule)},
        "electricity_usd_per_kwh": {"anyOf": [tariff, _PLAIN[types.NoneType]]},
        "notes": {"type": "array", "items": _TEXT},
    }


def _question(definitions: _Definitions) -> Schema:
    return definitions.of(TrainingQuery)


def _inlined(definitions: _Definitions, kind: type, *, without: Collection[str] = ()) -> Schema:
    """The properties of the record that is the document itself, which nothing refers to."""
    definitions.of(kind)
    properties: Schema = definitions.found.pop(kind.__name__)["properties"]
    return {name: each for name, each in properties.items() if name not in without}


# The documents that have a schema, by name, and what makes it. That of `advise --ask` has a separate one.
_DOCUMENTS: Final[Mapping[str, Callable[[_Definitions], Schema]]] = {
    "advise": _answer,
    "advise-ask": _reach,
    "plan": _answer,
    "predict": _prediction,
    "allocate": _allocation,
}
VERSIONS: Final[Mapping[str, int]] = {name: SCHEMA_VERSIONS[name] for name in _DOCUMENTS}


def _referred(definitions: _Definitions, properties: Schema) -> set[str]:
    """The records that properties refer to, themselves or through others."""
    found: set[str] = set()
    new = {"": properties}
    while new:
        text = orjson.dumps(list(new.values())).decode()
        found |= new.keys() - {""}
        new = {each: definitions.found[each] for each in set(_REFERENCE.findall(text)) - found}
    return found


def schema(name: str) -> Schema:
    """The JSON schema of a document, by the name of its kind."""
    definitions = _Definitions()
    properties = _DOCUMENTS[name](definitions)
    head = {"schema": {"const": schema_id(name)}, "equipoise": _TEXT, "dataset": _TEXT}
    command = name.replace("-", " --")
    return {
        "$schema": DIALECT,
        "$id": schema_id(name),
        "title": f"What `equipoise {command} --json` writes",
        "type": "object",
        "properties": {**head, **properties, **_MISSING},
        "required": list(head),
        # Exit code 3 has the reason in place of the answer.
        "if": {"required": ["status"]},
        "then": {"required": list(_MISSING)},
        "else": {"required": list(properties)},
        "$defs": {each: definitions.found[each] for each in sorted(_referred(definitions, properties))},
    }


def path_of(name: str) -> Path:
    """Where the schema of a document is in the package."""
    return FOLDER / f"{name}-{VERSIONS[name]}.json"


def _main(arguments: list[str]) -> None:
    """Print the schema of each document named; write those that ship."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    if arguments == ["--write"]:
        for name in VERSIONS:
            path_of(name).write_bytes(orjson.dumps(schema(name), option=option))
        return
    for name in arguments or ["advise"]:
        sys.stdout.write(orjson.dumps(schema(name), option=option).decode())


if __name__ == "__main__":
    _main(sys.argv[1:])
