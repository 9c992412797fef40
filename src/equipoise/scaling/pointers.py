"""Where to look next: the entry of a workload for absolute speed, for efficiency, and in between."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Purpose: TypeAlias = Literal["speed", "efficiency", "between"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """One configuration worth a look, for what purpose, and why in one sentence."""

    workload: str
    purpose: Purpose
    entry_id: str
    submitter: str
    system: str
    accelerator: str
    num_accelerators: int
    score_s: float
    relative_efficiency: float
    like_for_like_efficiency: float | None
    words: str
