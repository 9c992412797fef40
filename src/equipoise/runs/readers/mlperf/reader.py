"""The reader of MLPerf Training rounds: which files it wants, what it makes of each, and of all together."""

from collections.abc import Sequence
from typing import TypeAlias

from equipoise.runs.reader import Blob, Reader, Reading, Rejection, Row, SourceFacts, Tally
from equipoise.runs.readers.mlperf.entries import Entry, ScalingFacts, collect
from equipoise.runs.readers.mlperf.layout import MAX_JSON_BYTES, file_kind, looks_like_log
from equipoise.runs.readers.mlperf.log import LogFacts, read_log
from equipoise.runs.readers.mlperf.names import Names
from equipoise.runs.readers.mlperf.power import Meter, node_meter, switch_meter
from equipoise.runs.readers.mlperf.rows import JudgedEntry, judged, run_rows, score_row
from equipoise.runs.readers.mlperf.system import (
    SummaryFacts,
    SystemFacts,
    read_scaling,
    read_summary,
    read_system,
)
from equipoise.spec.catalogue import Catalogue

Fact: TypeAlias = LogFacts | SystemFacts | SummaryFacts | ScalingFacts | Meter | Rejection


def wanted(path: str, size: int) -> bool:
    """Whether a file may hold results, a description of a system, a scaling factor or power readings."""
    return file_kind(path) is not None and (size <= MAX_JSON_BYTES or not path.lower().endswith(".json"))


def passed_over(path: str) -> Rejection | None:
    """Why a text file among the results is not read as a log."""
    if file_kind(path) is not None or not looks_like_log(path):
        return None
    return Rejection(kind="not_a_result", where=path, detail="not named result_*.txt: no log of a scored run")


def parse(blob: Blob) -> Fact:
    """The facts of one file; a file that the user named himself is read as a log whatever its name."""
    match file_kind(blob.path):
        case "system" | "entry":
            return read_system(blob.data) or Rejection(
                kind="unreadable_system",
                where=blob.path,
                detail="neither JSON nor a text of key: value lines",
            )
        case "summary":
            return read_summary(blob.data) or Rejection(
                kind="unreadable_summary", where=blob.path, detail="not a JSON list of results"
            )
        case "scaling":
            return ScalingFacts(factor=read_scaling(blob.data))
        case "node_power":
            return node_meter(blob.data)
        case "switch_power":
            return switch_meter(blob.data)
        case _:
            return read_log(blob.data)


def _entry_ids(entries: Sequence[JudgedEntry]) -> list[str]:
    """A unique name each: round, organisation, system, workload; the folder where that is not enough."""
    names: list[str] = []
    seen: set[str] = set()
    for each in entries:
        columns = each.columns
        parts = [columns["campaign"], columns["submitter"], columns["system"], columns["workload"]]
        name = "/".join(str(part) for part in parts if part is not None)
        if name in seen:
            name = f"{name}@{each.entry.uri}"
        while name in seen:
            name += "+"
        seen.add(name)
        names.append(name)
    return names


def _note_identical_logs(entries: Sequence[Entry], rejected: Tally) -> None:
    """Warn of logs that are the same run twice; both are kept, as the official scoring keeps them."""
    first: dict[tuple[str, bytes], str] = {}
    for entry in entries:
        for log in entry.logs:
            if log.facts.num_events == 0:
                continue
            uri = f"{entry.uri}/{log.name}"
            other = first.setdefault((entry.round.label, log.facts.fingerprint), uri)
            if other != uri:
                rejected.add(
                    Rejection(kind="identical_log", where=uri, detail=f"kept; the same log as {other}")
                )


def assemble(sources: Sequence[SourceFacts], catalogue: Catalogue) -> Reading:
    """The rows of both tables from the facts of all sources, sorted by entry."""
    rejected = Tally()
    names = Names(catalogue=catalogue)
    entries, num_runs_rejected = collect(sources, rejected)
    _note_identical_logs(entries, rejected)
    found = [judged(entry, names, rejected) for entry in entries]
    runs: list[Row] = []
    scores: list[Row] = []
    for each, entry_id in zip(found, _entry_ids(found), strict=True):
        runs += run_rows(each, names)
        scores.append(score_row(each, entry_id))
    return Reading(
        runs=runs,
        scores=scores,
        num_runs_rejected=num_runs_rejected,
        rejected=rejected,
        unknown_names=names.rows(),
    )


MLPERF = Reader(name="mlperf", wanted=wanted, passed_over=passed_over, parse=parse, assemble=assemble)
