"""Submitted entries that can be compared: the rows that laws are fitted to and answers cite."""

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct


class ScoredEntry(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One row of the table `scores`, closed, with an official score: what of it an estimate reads.

    Names are "" where the table states none. campaign: the round, or the name of the user's own. The rest as
    in docs/reference/tables.md.
    """

    entry_id: str
    campaign: str
    workload: str
    accelerator: str
    num_accelerators: int
    score_s: float
    submitter: str = ""
    system: str = ""
    global_batch_samples: int | None = None
    samples_to_target: float | None = None
    energy_j: float | None = None
    source_uri: str | None = None
    source_line: int | None = None

    @property
    def group(self) -> tuple[str, str, str]:
        """What makes a curve: one accelerator, form factor and memory on one workload in one round."""
        return self.campaign, self.workload, self.accelerator


Entries: TypeAlias = Sequence[ScoredEntry]
