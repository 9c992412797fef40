"""Reads descriptions of systems (`systems/*.json`, `entry.json`), and maps raw names to catalogue slugs."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import Struct, field

from equipoise.files import parsed_json
from equipoise.runs import UnknownName
from equipoise.runs.readers.mlperf.dialects import finite
from equipoise.spec import hardware, mlperf, workload
from equipoise.spec.catalogue import Catalogue, shipped

# Similarity threshold: a misspelt key (`divison`, `sumitter`) reaches 0.93; different keys are below 0.8.
_SAME_KEY = 0.9
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
# The largest system so far has 11,616 accelerators; a larger count is an error or an attack.
_MAX_COUNT = 100_000_000
# Factors of the rounds v2.0 to v5.0 are between 1 and 1.2; one far outside is an error or an attack.
_MAX_SCALING = 100.0
_SOCKETS = re.compile(r"\b(\d{1,2}) ?x (?=\D)")
_LEADING_COUNT = re.compile(r"\s*(\d{1,9})\b")
# `'num_nodes': '24'` with any escaping, from the repr of a Python dict inside another.
_QUOTED_PAIR = re.compile(r"""['"](\w+)\\*['"]\s*:\s*\\*['"]([^'"\\]*)""")
_LOGGED_PAIR = re.compile(r"""^(?:submission_)?(\w+):\s*\{\s*"value"\s*:\s*"([^"]*)\"""", re.MULTILINE)


class SystemFacts(Struct, frozen=True, kw_only=True):
    """The facts in a description of a system, with raw names; None if not stated."""

    division: str | None = None
    availability: str | None = None
    submitter: str | None = None
    system_name: str | None = None
    accelerator: str | None = None
    num_accelerators: int | None = None
    num_nodes: int | None = None
    host_processor: str | None = None
    num_host_processors: int | None = None
    framework: str | None = None


def tolerant_document(data: bytes) -> Any | None:  # noqa: ANN401 - whatever the file holds
    """Return the value of a JSON file, tolerating trailing commas, byte order marks and tabs; else None."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    for attempt in (text, _TRAILING_COMMA.sub("", text)):
        try:
            return parsed_json(attempt, strict=False)
        except (ValueError, RecursionError):
            continue
    return None


def _text(value: object) -> str | None:
    """Return a stripped text, or None if it is empty or not a text."""
    return value.strip() or None if isinstance(value, str) else None


def _count(value: object) -> int | None:
    """Return a count from a number, or from a text that begins with it: `8`, `"8"`, `1.0`, `"16 (2 x 8)"`."""
    number = finite(value)
    if number is None and isinstance(value, str):
        match = _LEADING_COUNT.match(value)
        number = float(match[1]) if match else None
    return int(number) if number is not None and 0 <= number <= _MAX_COUNT else None


def _product(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


class _SystemFields(Struct, frozen=True):
    """The fields of a description, looked up by similar spellings of their keys."""

    by_name: Mapping[str, object]

    @classmethod
    def of(cls, document: Mapping[object, object]) -> "_SystemFields":
        return cls(
            {re.sub(r"[\s-]+", "_", str(key).strip().lower()): value for key, value in document.items()}
        )

    def first(self, *keys: str) -> object | None:
        """Return the value of the first key that exists, or else of a misspelt key."""
        for key in keys:
            if key in self.by_name:
                return self.by_name[key]
        for key in keys:
            near = get_close_matches(key, self.by_name, n=1, cutoff=_SAME_KEY)
            if near:
                return self.by_name[near[0]]
        return None


def _of_nodes(fields: _SystemFields, nodes: object) -> dict[str, Any]:
    """Return the counts of an `entry.json`, in which each kind of node has its own record."""
    records = [
        _SystemFields.of(node)
        for node in (nodes if isinstance(nodes, list) else [nodes])
        if isinstance(node, dict)
    ]
    found: dict[str, Any] = {
        "accelerator": None,
        "num_accelerators": None,
        "num_nodes": None,
        "host_processor": None,
    }
    for record in records:
        num_nodes = _count(record.first("num_nodes"))
        accelerator = _text(record.first("accelerator"))
        per_node = _count(record.first("num_accelerators"))
        found["accelerator"] = found["accelerator"] or accelerator
        found["host_processor"] = found["host_processor"] or _text(record.first("cpu"))
        if num_nodes is not None:
            found["num_nodes"] = (found["num_nodes"] or 0) + num_nodes
        if per_node is not None and num_nodes is not None:
            # A count in the accelerator's name, such as `tpuv3-32`, is the total over all nodes.
            is_whole = accelerator is not None and accelerator.endswith(f"-{per_node}")
            total = per_node if is_whole else per_node * num_nodes
            found["num_accelerators"] = (found["num_accelerators"] or 0) + total
    found["system_name"] = _text(fields.first("hardware"))
    # Early descriptions state sockets in text: "2x Intel(R) Xeon(R) ...", "4-nodes 4x Intel(R) ...".
    match = _SOCKETS.search(f"{found['host_processor'] or ''} {found['system_name'] or ''}")
    if match and found["num_nodes"] is not None:
        found["num_host_processors"] = int(match[1]) * found["num_nodes"]
    return found


def _of_document(document: Mapping[object, object]) -> SystemFacts:
    fields = _SystemFields.of(document)
    nodes = fields.by_name.get("nodes")
    counts: dict[str, Any]
    if isinstance(nodes, dict | list):
        counts = _of_nodes(fields, nodes)
    else:
        stated_nodes = fields.first("number_of_nodes", "num_nodes")
        num_nodes = _count(stated_nodes)
        accelerator = _text(fields.first("accelerator_model_name", "accelerator"))
        per_node = _count(fields.first("accelerators_per_node", "num_accelerators"))
        whole = per_node if stated_nodes is None else _product(per_node, num_nodes)
        counts = {
            "accelerator": accelerator,
            "num_accelerators": _count(fields.first("accelerators_count")) if per_node is None else whole,
            "num_nodes": num_nodes,
            "host_processor": _text(fields.first("host_processor_model_name", "cpu")),
            "num_host_processors": _product(_count(fields.first("host_processors_per_node")), num_nodes),
            "system_name": _text(fields.first("system_name", "system", "hardware", "platform")),
        }
    return SystemFacts(
        division=_text(fields.first("division")),
        availability=_text(fields.first("status", "availability")),
        submitter=_text(fields.first("submitter", "org")),
        framework=_text(fields.first("framework")) or _text(fields.first("framework_name")),
        **counts,
    )


def read_system(data: bytes) -> SystemFacts | None:
    """Return the facts in a description of a system; None if it is not readable.

    Descriptions of v0.6 that consist of log lines instead of JSON are read too.
    """
    document = tolerant_document(data)
    if isinstance(document, dict):
        return _of_document(document)
    text = data.decode("latin-1")
    pairs: dict[object, object] = dict(_QUOTED_PAIR.findall(text)) | dict(_LOGGED_PAIR.findall(text))
    facts = _of_document(pairs)
    return facts if facts.accelerator is not None or facts.num_nodes is not None else None


def read_summary(data: bytes) -> dict[str, SystemFacts] | None:
    """Return the systems in an organisation's list of results, by the name of their description.

    The list is JSON, with records whose `details_url` ends with that name; None for anything else.
    """
    document = tolerant_document(data)
    if not isinstance(document, list):
        return None
    systems: dict[str, SystemFacts] = {}
    for record in document:
        if isinstance(record, dict) and isinstance(record.get("details_url"), str):
            name = record["details_url"].rpartition("/")[2].removesuffix(".json")
            systems.setdefault(name, _of_document(record))
    return systems


def read_scaling(data: bytes) -> float | None:
    """Return the convergence scaling factor of a `scaling.json`; None if it has no plausible number.

    It lengthens the times of submissions that converged faster than the reference, so it is at least 1.
    """
    document = tolerant_document(data)
    factor = finite(document.get("scaling_factor")) if isinstance(document, dict) else None
    return factor if factor is not None and 1.0 <= factor <= _MAX_SCALING else None


# Real names are below 200 characters; longer ones are truncated, because they are displayed and stored.
MAX_NAME_CHARACTERS = 200

_EDITS = {
    "accelerator": hardware.EDIT,
    "availability": mlperf.EDIT,
    "division": mlperf.EDIT,
    "framework": mlperf.EDIT,
    "workload": workload.EDIT,
}


class Names(Struct):
    """Looks up names and counts unknown ones once per entry."""

    catalogue: Catalogue = field(default_factory=shipped)
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)

    def slug(self, kind: str, raw: str | None, lookup: Callable[[str], str | None]) -> str | None:
        """Return the slug of a raw name; if it is unknown, count it and return the raw name."""
        if raw is None:
            return None
        found = lookup(raw)
        if found is None:
            raw = raw if len(raw) <= MAX_NAME_CHARACTERS else raw[:MAX_NAME_CHARACTERS] + "..."
            self.unknown[kind, raw] += 1
        return found or raw

    def accelerators(self, system: SystemFacts, folder: str | None) -> tuple[str | None, int | None]:
        """Return the accelerator as slug or raw name, and their number; None if not stated.

        If there are no accelerators, the processors of all nodes count as accelerators.
        """
        count = system.num_accelerators
        if count == 0:
            slug = self.slug("accelerator", system.host_processor, self.catalogue.accelerator_slug)
            return slug, system.num_host_processors
        raw, alias = system.accelerator, None
        if raw is not None:
            by_name = self.catalogue.accelerator_alias(raw, system.system_name)
            alias = by_name or self.catalogue.accelerator_alias(raw, folder)
        if alias is None:
            return self.slug("accelerator", raw, lambda _: None), count
        if count is None:
            return alias.slug, None
        count = round(count * alias.accelerators_per_count)
        per_node = count // system.num_nodes if system.num_nodes else 0
        return self.catalogue.form_in_nodes_of(alias.slug, per_node), count

    def rows(self) -> tuple[UnknownName, ...]:
        """Return the unknown names, sorted, each with the file to edit."""
        return tuple(
            UnknownName(kind=kind, raw=raw, count=count, edit=_EDITS[kind])
            for (kind, raw), count in sorted(self.unknown.items())
        )
