"""How MLPerf scores a workload: how many runs, how many are dropped, and what a table states of it."""

from dataclasses import dataclass, fields

from equipoise.errors import SpecError
from equipoise.spec.facts import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class MlperfRules:
    """How MLPerf scores a workload; `known` is False where nothing says and common values stand in."""

    num_runs_required: int
    num_dropped_each_end: int = 1
    max_failed: int = 1
    num_counted: int | None = None
    known: bool = True


RULES = ("num_runs_required", "num_dropped_each_end", "max_failed", "num_counted")
UNKNOWN_RULES = MlperfRules(num_runs_required=10, known=False)


def read_rules(block: Block, known: MlperfRules | None) -> MlperfRules | None:
    """The scoring rules a block states, over those of an earlier file; None where it states none."""
    stated = {
        "num_runs_required": block.count("num_runs_required"),
        "num_dropped_each_end": block.count("num_dropped_each_end", zero=True),
        "max_failed": block.count("max_failed", zero=True),
        "num_counted": block.count("num_counted"),
    }
    stated = {key: value for key, value in stated.items() if value is not None}
    if not stated:
        return None
    if known is not None and known.known:
        stated = {field.name: getattr(known, field.name) for field in fields(known)} | stated
    if "num_runs_required" not in stated:
        raise block.refuse("num_runs_required", "this field where other scoring rules are given")
    rules = MlperfRules(**(stated | {"known": True}))  # type: ignore[arg-type]  # counts, checked above, by name
    counted = rules.num_counted or rules.num_runs_required
    if counted > rules.num_runs_required or 2 * rules.num_dropped_each_end >= counted:
        raise SpecError(
            f"{block.where}: {rules.num_runs_required} runs, {counted} counted, "
            f"{rules.num_dropped_each_end} dropped at each end; expected at least one run to remain"
        )
    return rules
