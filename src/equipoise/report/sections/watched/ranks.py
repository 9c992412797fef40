"""The ranks of the newest run that has several: who is slow, and where."""

from typing import Final

from equipoise.advice.measured.watched_now import RankSeen, WatchedNow, WatchedRun
from equipoise.report.blocks import Badge, Block, Cell, Column, Table, note
from equipoise.report.section import Section
from equipoise.report.sweep_text import PHASES
from equipoise.report.watched_text import begun
from equipoise.report.words import ABSENT, count, printable, sentence
from equipoise.units import MIB, MILLISECOND_S

SHOWN: Final = {name: words for name, words in PHASES.items() if name != "rest"}


def _blocks(findings: WatchedNow) -> tuple[Block, ...]:
    run = findings.several[0]
    columns = (
        Column(title="Rank", is_number=True),
        Column(title="Host", is_header=True),
        Column(title="Last step", is_number=True, meaning="the latest that it has written"),
        Column(title="Step, ms", is_number=True, meaning="median over the steps that count"),
        *(
            Column(title=f"{words[:1].upper()}{words[1:]}, ms", is_number=True, is_wide=True, meaning="mean")
            for words in SHOWN.values()
        ),
        Column(
            title="Memory, MiB", is_number=True, is_wide=True, meaning="most that it held; told at its end"
        ),
    )
    table = Table(
        name="ranks",
        caption=sentence(f"Ranks of the run begun at {begun(run)} UTC"),
        columns=columns,
        rows=tuple(_row(each, run) for each in run.ranks),
    )
    absent = len(run.missing_ranks)
    told = f"{count(absent)} of {count(run.num_ranks)} ranks are not in this folder, or not read."
    return (table, *((note(told),) if absent else ()))


def _row(each: RankSeen, run: WatchedRun) -> tuple[Cell, ...]:
    memory = each.memory_bytes
    return (
        Cell(text=count(each.rank), key=each.rank),
        Cell(text=printable(each.host), key=each.host, badge=_badge(each, run)),
        Cell(text=count(each.num_steps), key=each.num_steps),
        _milliseconds(each.step_s),
        *(_milliseconds(each.phases.get(name)) for name in SHOWN),
        Cell(text=ABSENT) if memory is None else Cell(text=count(round(memory / MIB)), key=memory),
    )


def _milliseconds(seconds: float | None) -> Cell:
    if seconds is None:
        return Cell(text=ABSENT)
    return Cell(text=f"{seconds / MILLISECOND_S:.3g}", key=seconds)


def _badge(each: RankSeen, run: WatchedRun) -> Badge | None:
    if each.end is None:
        return None if run.is_running else Badge(text="no end", tone="bad")
    return None if each.end == "ended" else Badge(text="failed", tone="bad")


SECTION: Final[Section[WatchedNow]] = Section(name="ranks", title="Ranks", needs=("several",), blocks=_blocks)
