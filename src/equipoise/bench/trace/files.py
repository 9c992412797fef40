"""Traces of several ranks: files, folders and archives of them, read one after another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from equipoise.bench.opened import blob_pieces, pieces
from equipoise.bench.trace.rank import RankTrace, rank_traces
from equipoise.errors import DataError
from equipoise.runs.reader import Rejection, Tally
from equipoise.runs.sources.source import open_source
from equipoise.runs.sources.tar import BLOCK_BYTES, has_tar_header

SUFFIXES = (".json", ".json.gz", ".json.zst")
# A folder with more is no folder of traces: the largest systems have some ten thousand ranks.
MAX_FILES = 100_000

Progress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What was read: one record a rank and device, in order of ranks, and what was refused."""

    ranks: tuple[RankTrace, ...]
    rejected: Tally


def read_traces(paths: Sequence[Path], *, progress: Progress | None = None) -> Traces:
    """The traces in files, folders and archives; a file that is named twice counts once.

    Raises DataError where none of them can be read: with the first reason.
    """
    found, rejected, first = list[RankTrace](), Tally(), None
    files = [*{each.resolve(): each for path in paths for each in _files(path)}.values()]
    for number, path in enumerate(files):
        if progress is not None:
            progress(path.name, number, len(files))
        try:
            for where, content in _contents(path, rejected):
                found.extend(rank_traces(content, where))
        except DataError as err:
            first = first or err
            rejected.add(Rejection(kind="unreadable", where=str(path), detail=str(err)))
    if not found:
        named = ", ".join(str(path) for path in paths[:3])
        raise first or DataError(f"{named}: no trace in it; expected files that end in {', '.join(SUFFIXES)}")
    found.sort(key=lambda each: (each.rank is None, each.rank or 0, each.device or 0))
    return Traces(ranks=tuple(found), rejected=rejected)


def _files(path: Path) -> list[Path]:
    """The file, or the traces in a folder."""
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.rglob("*") if _is_trace(each.name) and each.is_file())
    if len(files) > MAX_FILES:
        raise DataError(f"{path}: {len(files)} files; at most {MAX_FILES} traces are read")
    return files


def _contents(path: Path, rejected: Tally) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Name and content of the trace in a file, or of each in an archive."""
    content = pieces(path)
    first = next(content, b"")
    if not has_tar_header(first[:BLOCK_BYTES]):
        yield str(path), chain([first], content)
        return
    source = open_source(path)
    for blob in source.files(lambda name, _: _is_trace(name)):
        where = f"{path}:{blob.path}"
        yield where, blob_pieces(blob.data, where=where)
    rejected.extend(source.rejections)


def _is_trace(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)
