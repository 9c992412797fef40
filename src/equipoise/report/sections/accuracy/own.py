"""How wrong one's own predictions were, by the ledger."""

from typing import Final

from equipoise.report.blocks import Block, Tile, Tiles, code, note
from equipoise.report.section import Section
from equipoise.report.words import plural, ratio, sentence
from equipoise.study.findings import AccuracyFindings
from equipoise.units import format_percent


def _blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    own = findings.own
    assert own is not None
    record = own.record
    worst = (
        "" if record.p90_abs_error is None else f"nine of ten below {format_percent(record.p90_abs_error)}"
    )
    held = "" if record.coverage is None else f"{format_percent(record.coverage)} within their interval"
    tile = Tile(
        label="Your own predictions",
        value=f"{format_percent(record.median_abs_error)} median error",
        detail=" · ".join(part for part in (worst, held) if part),
        words=sentence(
            f"{plural(own.num_measured, 'prediction')} of {own.num_predictions} measured since; "
            f"predicted times were {ratio(own.bias)} of the measured ones (median)."
        ),
    )
    told = note("Each of them: ", code("equipoise record"), ".")
    return (Tiles(items=(tile,)), told)


SECTION: Final[Section[AccuracyFindings]] = Section(
    name="own", title="Your own ledger", needs=("own",), blocks=_blocks
)
