"""Tar archives as a source, plain or compressed: one streaming pass, nothing unpacked, nothing written."""

from collections.abc import Iterator
from pathlib import Path

from equipoise.runs.reader import Blob
from equipoise.runs.sources.compression import compression, opened_stream
from equipoise.runs.sources.gate import Gate
from equipoise.runs.sources.tar import BLOCK_BYTES, has_tar_header, members

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.zst", ".tzst")


def is_archive(path: Path) -> bool:
    """Whether a file is an archive, by its first block; or is named like one, so that damage is told."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(BLOCK_BYTES)
    return compression(head) is not None or has_tar_header(head) or path.name.lower().endswith(_SUFFIXES)


def archive_files(path: Path, gate: Gate) -> Iterator[Blob]:
    """The wanted files of an archive, in the order in which it holds them."""
    with path.open("rb") as file:
        kind = compression(file.read(BLOCK_BYTES))
        file.seek(0)
        yield from members(opened_stream(file, path.stat().st_size, kind), gate)
