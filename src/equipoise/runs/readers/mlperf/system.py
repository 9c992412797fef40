"""Descriptions of systems (`systems/*.json`, `entry.json`), and raw names as slugs of the catalogue."""

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

# A key one letter off (`divison`, `sumitter`) reaches 0.93; two different keys stay below 0.8.
_SAME_KEY = 0.9
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
# The largest system so far has 11,616 accelerators; more than this is a slip or an attack.
_MAX_COUNT = 100_000_000
# Factors of the rounds v2.0 to v5.0 lie between 1 and 1.2; one far outside is a slip or an attack.
_MAX_SCALING = 100.0
_SOCKETS = re.compile(r"\b(\d{1,2}) ?x (?=\D)")
_LEADING_COUNT = re.compile(r"\s*(\d{1,9})\b")
# `'num_nodes': '24'`, with any escaping: Python's text of a dict inside the text of a dict.
_QUOTED_PAIR = re.compile(r"""['"](\w+)\\*['"]\s*:\s*\\*['"]([^'"\\]*)""")
_LOGGED_PAIR = re.compile(r"""^(?:submission_)?(\w+):\s*\{\s*"value"\s*:\s*"([^"]*)\"""", re.MULTILINE)


class SystemFacts(Struct, frozen=True, kw_only=True):
    """What a description states of a system, names as they stand; None where it does not."""

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
    """What a JSON file holds, trailing commas, byte order marks, tabs forgiven; None when it is no JSON."""
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
    """A text that is not empty."""
    return value.strip() or None if isinstance(value, str) else None


def _count(value: object) -> int | None:
    """A count from a number, its text, or a text that begins with it: `8`, `"8"`, `1.0`, `"16 (2 x 8)"`."""
    number = finite(value)
    if number is None and isinstance(value, str):
        match = _LEADING_COUNT.match(value)
        number = float(match[1]) if match else None
    return int(number) if number is not None and 0 <= number <= _MAX_COUNT else None


def _product(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


class _SystemFields(Struct, frozen=True):
    """The fields of a description by any spelling of their keys."""

    by_name: Mapping[str, object]

    @classmethod
    def of(cls, document: Mapping[object, object]) -> "_SystemFields":
        return cls(
            {re.sub(r"[\s-]+", "_", str(key).strip().lower()): value for key, value in document.items()}
        )

    def first(self, *keys: str) -> object | None:
        """The value under the first key that is there; a key one letter off is that key."""
        for key in keys:
            if key in self.by_name:
                return self.by_name[key]
        for key in keys:
            near = get_close_matches(key, self.by_name, n=1, cutoff=_SAME_KEY)
            if near:
                return self.by_name[near[0]]
        return None


def _of_nodes(fields: _SystemFields, nodes: object) -> dict[str, Any]:
    """Counts of `entry.json`, where each kind of node has its own record."""
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
            # A name that states its own count, as `tpuv3-32`, states that of all nodes together.
            is_whole = accelerator is not None and accelerator.endswith(f"-{per_node}")
            total = per_node if is_whole else per_node * num_nodes
            found["num_accelerators"] = (found["num_accelerators"] or 0) + total
    found["system_name"] = _text(fields.first("hardware"))
    # Early descriptions state sockets in words: "2x Intel(R) Xeon(R) ...", "4-nodes 4x Intel(R) ...".
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
    """The facts of a system's description; None when nothing in it can be read as one.

    Also reads the text of v0.6 that is log lines rather than JSON.
    """
    document = tolerant_document(data)
    if isinstance(document, dict):
        return _of_document(document)
    text = data.decode("latin-1")
    pairs: dict[object, object] = dict(_QUOTED_PAIR.findall(text)) | dict(_LOGGED_PAIR.findall(text))
    facts = _of_document(pairs)
    return facts if facts.accelerator is not None or facts.num_nodes is not None else None


def read_summary(data: bytes) -> dict[str, SystemFacts] | None:
    """The systems in an organisation's own list of results, by the name of their description.

    It is a JSON list of records whose `details_url` ends with that name; None for anything else.
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
    """The convergence scaling factor of a `scaling.json`; None when it states no plausible number.

    It lengthens times of submissions that converged faster than the reference, so it is never below 1.
    """
    document = tolerant_document(data)
    factor = finite(document.get("scaling_factor")) if isinstance(document, dict) else None
    return factor if factor is not None and 1.0 <= factor <= _MAX_SCALING else None


# Real names stay below 200 characters; longer ones are cut, since they are shown and stored.
MAX_NAME_CHARACTERS = 200

_EDITS = {
    "accelerator": hardware.EDIT,
    "availability": mlperf.EDIT,
    "division": mlperf.EDIT,
    "framework": mlperf.EDIT,
    "workload": workload.EDIT,
}


class Names(Struct):
    """Looks names up and counts those that no table has, once an entry."""

    catalogue: Catalogue = field(default_factory=shipped)
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)

    def slug(self, kind: str, raw: str | None, lookup: Callable[[str], str | None]) -> str | None:
        """The slug of a raw name; the raw name itself, counted, when the table does not have it."""
        if raw is None:
            return None
        found = lookup(raw)
        if found is None:
            raw = raw if len(raw) <= MAX_NAME_CHARACTERS else raw[:MAX_NAME_CHARACTERS] + "..."
            self.unknown[kind, raw] += 1
        return found or raw

    def accelerators(self, system: SystemFacts, folder: str | None) -> tuple[str | None, int | None]:
        """The accelerator as slug or raw name, and how many; None where not stated.

        Without accelerators, the processors of all nodes are these.
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
        """The unknown names, sorted, each with the file to edit."""
        return tuple(
            UnknownName(kind=kind, raw=raw, count=count, edit=_EDITS[kind])
            for (kind, raw), count in sorted(self.unknown.items())
        )
