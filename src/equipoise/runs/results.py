"""Published results as rows, which every estimate reads: tables are frames where they are shown or written.

Which rows count is said once, in `runs.store`.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from equipoise.spec.mlperf import Entries, ScoredEntry, is_round, round_key


class Scores(Struct, frozen=True, eq=False):
    """The comparable entries of one set of evidence, in the order of entry_id.

    Equal to itself alone, as the key of a cache: comparing rows takes longer than most questions.
    """

    entries: tuple[ScoredEntry, ...]

    def of(self, workload: str) -> tuple[ScoredEntry, ...]:
        """The entries of a workload."""
        return tuple(each for each in self.entries if each.workload == workload)


def read_scores(content: bytes) -> Scores:
    """The entries that `written_scores` wrote. Raises ValueError for anything else."""
    return Scores(msgspec.json.decode(content, type=tuple[ScoredEntry, ...]))


def written_scores(scores: Scores) -> bytes:
    """The entries as JSON, an array a line: 2,000 are read in the time of one filter of a frame."""
    return b"[" + b",\n".join(map(msgspec.json.encode, scores.entries)) + b"]\n"


def accelerators_of(entries: Iterable[ScoredEntry]) -> list[str]:
    """The accelerators that entries name, in order."""
    return sorted({each.accelerator for each in entries} - {""})


def newest_first(entries: Iterable[ScoredEntry]) -> list[ScoredEntry]:
    """The entries of MLPerf rounds: newest round first, in it the fastest first.

    Those of other campaigns are left out: their place in time is not known.
    """
    fastest = sorted(
        (each for each in entries if is_round(each.campaign)), key=lambda each: (each.score_s, each.entry_id)
    )
    return sorted(fastest, key=lambda each: round_key(each.campaign), reverse=True)


def best_per_size(entries: Iterable[ScoredEntry]) -> tuple[ScoredEntry, ...]:
    """The best entry of every round, workload and accelerator at every size, in that order.

    Those without a known accelerator are left out. Applied to what it returned, it returns the same.
    """
    best: dict[tuple[object, ...], ScoredEntry] = {}
    for each in sorted(entries, key=lambda each: (each.score_s, each.entry_id)):
        if each.accelerator:
            best.setdefault((*each.group, each.num_accelerators), each)
    return tuple(best[key] for key in sorted(best))


def before(entries: Entries, round_: str) -> tuple[ScoredEntry, ...]:
    """The entries of strictly earlier rounds."""
    return tuple(each for each in entries if round_key(each.campaign) < round_key(round_))
