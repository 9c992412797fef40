"""How wrong predictions of this kind were: the error record of the calibration in use."""

from typing import Final

from equipoise.findings import PlanFindings
from equipoise.report.blocks import Block, Tile, Tiles, code, note, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, count, sentence
from equipoise.units import format_percent


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    basis = findings.plan.basis
    named = prose("Calibration in use: ", strong(sentence(basis.name)), f" ({sentence(basis.words)}).")
    how = note("Hold the model against measurements of your own: ", code("equipoise validate FILE.csv"), ".")
    if basis.median_abs_error is None:
        return (
            named,
            prose(
                "Nothing was held out for it, so no error can be stated: the intervals here are what "
                "the priors of the "
                "parameters leave open, and nobody has counted how often they hold."
            ),
            how,
        )
    return (
        named,
        Tiles(
            items=(
                _tile("Median error", basis.median_abs_error, "half of the predictions were closer"),
                _tile("Nine of ten below", basis.p90_abs_error, "one in ten was further off"),
                _tile("In the 90 % interval", basis.coverage, "of what was held out"),
                Tile(
                    label="Held out",
                    value=count(basis.num_held_out),
                    detail="predictions",
                    words="Whole groups were left out, never single rows.",
                ),
            )
        ),
        how,
    )


def _tile(label: str, value: float | None, detail: str) -> Tile:
    return Tile(
        label=label,
        value=ABSENT if value is None else format_percent(value),
        detail=detail,
        words="Errors are |predicted / measured - 1| of a step's time.",
    )


SECTION: Final[Section[PlanFindings]] = Section(
    name="plan-record", title="How wrong such predictions were", needs=("plan",), blocks=_blocks
)
