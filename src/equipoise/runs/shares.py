"""One worker's share of a source: which files are its own, and what they are parsed to. Needs no Polars."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from equipoise.runs.reader import Blob, Reader, Rejection, Tally
from equipoise.runs.readers import READERS
from equipoise.runs.sources import Source, open_source

Done: TypeAlias = Callable[[int], None]  # told the bytes of each file that is parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The work of one worker on one source: part `index` of `count`. Picklable.

    context: folders above the source's paths, as in SourceFacts.
    """

    path: Path
    context: tuple[str, ...]
    index: int
    count: int


@dataclass(slots=True, kw_only=True)
class ShareResult:
    """Facts by reader and path, what the source refused, and what was passed over."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    rejections: list[Rejection] = field(default_factory=list)
    passed_over: Tally = field(default_factory=Tally)


def context_of(source: Source) -> tuple[str, ...]:
    """The folders above a source's paths; of an archive its own name, for it may tell the round."""
    path = source.path.resolve()
    if source.kind.name == "archive":
        name = path.name
        for suffix in (".tar.zst", ".tar.xz", ".tar.gz", ".tar.bz2", ".tzst", ".txz", ".tgz", ".tar", ".zip"):
            name = name.removesuffix(suffix)
        return (name,)
    if source.kind.name == "git":
        return (source.name.removesuffix(".git"),)
    return (path.parent if source.kind.name == "file" else path).parts[1:]


@dataclass(slots=True)
class Division:
    """Decides file by file whose it is: the share with the fewest bytes so far.

    Every worker sees the same files in the same order, so all decide alike without a word.
    """

    source: Source
    share: Share
    passed_over: Tally
    _bytes: list[int] = field(default_factory=list)

    def reader(self, path: str, size: int) -> Reader | None:
        """The reader that wants a file; a single file, which the user named himself, goes to the first."""
        full = "/".join((*self.share.context, path))
        for reader in READERS:
            if reader.wanted(full, size):
                return reader
        return READERS[0] if self.source.kind.name == "file" else None

    def is_mine(self, path: str, size: int) -> bool:
        """Whether a file is wanted and in this share."""
        if not self._bytes:
            self._bytes = [0] * self.share.count
        if self.reader(path, size) is None:
            self.pass_over(path)
            return False
        least = self._bytes.index(min(self._bytes))
        self._bytes[least] += size
        return least == self.share.index

    def pass_over(self, path: str) -> None:
        """Count an unwanted file that looks like evidence; one share does it for all."""
        if self.share.index == 0:
            full = "/".join((*self.share.context, path))
            self.passed_over.extend(
                Rejection(kind=found.kind, where=f"{self.source.name}:{path}", detail=found.detail)
                for reader in READERS
                if (found := reader.passed_over(full)) is not None
            )


def parse_share(share: Share, done: Done) -> ShareResult:
    """Everything in one share of a source, parsed. Raises DataError when the source cannot be opened."""
    source = open_source(share.path)
    result = ShareResult()
    division = Division(source, share, result.passed_over)
    for blob in source.files(division.is_mine):
        reader = division.reader(blob.path, len(blob.data))
        if reader is not None:
            full = Blob(path="/".join((*share.context, blob.path)), data=blob.data)
            result.facts.setdefault(reader.name, {})[blob.path] = reader.parse(full)
        done(len(blob.data))
    result.rejections = list(source.rejections)
    return result
