"""The page My runs: the sweeps below the folders that the dashboard was given, live while one runs."""

from pathlib import Path
from typing import Final

from equipoise.advice.measured.sweep_now import sweep_now
from equipoise.bench.under_way import sweeps_below, under_way
from equipoise.errors import DataError, EvidenceError, SpecError
from equipoise.report.markup import Html, element
from equipoise.report.pages import SWEEP
from equipoise.report.words import plural, printable
from equipoise.units import format_duration
from equipoise.web.answer import Answer, shown
from equipoise.web.asked import AskedRuns
from equipoise.web.fields import Choice, Field, Given, Select, first
from equipoise.web.screen import Screen
from equipoise.web.sources import Sources


def sweeps(sources: Sources) -> dict[str, Path]:
    """The sweeps there are now, by the name that the address uses: below which folder, and where in it."""
    found: dict[str, Path] = {}
    for place, folder in enumerate(sources.runs):
        top = folder.resolve()
        for each in sweeps_below(top):
            inside = each.relative_to(top)
            name = f"{top.name}/{inside}" if inside.parts else top.name
            found[name if name not in found else f"{name} ({place + 1})"] = each
    return found


def chosen(asked: AskedRuns, sources: Sources) -> Path:
    """The folder of the sweep asked for; of the latest unless one is named.

    Names are looked up among those found: no path comes from a browser.
    Raises EvidenceError where there are no sweeps, SpecError where none has the name.
    """
    found = sweeps(sources)
    if not found:
        raise EvidenceError(
            "the dashboard knows no runs of yours",
            missing=(
                "a sweep: `equipoise bench --workload small_mlp --out DIR`",
                "its folder, named when the dashboard begins: `equipoise serve --runs DIR`",
            ),
        )
    if asked.sweep is None:
        return max(found.values(), key=_changed_s)
    if asked.sweep not in found:
        raise SpecError(f"sweep {asked.sweep!r} is not known; there are {', '.join(found)}")
    return found[asked.sweep]


def _changed_s(folder: Path) -> float:
    """When the last cell of a sweep ended, or it began."""
    try:
        return max((folder / name).stat().st_mtime for name in ("sweep.json", "cells"))
    except OSError:
        return 0.0


def _fields(given: Given, sources: Sources) -> tuple[Field, ...]:
    found = sweeps(sources)
    if not found:
        return ()
    named = first(given, "sweep")
    if named not in found:
        latest = max(found.values(), key=_changed_s)
        named = next(name for name, folder in found.items() if folder == latest)
    return (
        Select(
            name="sweep",
            label="Sweep",
            choices=tuple(Choice(value=name, label=_label(name, folder)) for name, folder in found.items()),
            value=named,
        ),
    )


def _label(name: str, folder: Path) -> str:
    try:
        now = under_way(folder)
    except DataError:
        return f"{printable(name)} (damaged)"
    state = ", running" if now.is_running else ""
    return f"{printable(name)} ({now.num_finished} of {now.num_planned}{state})"


def _stamp(asked: AskedRuns, sources: Sources) -> str:
    """The state of the sweep that is shown: finished cells, and whether it runs."""
    try:
        folder = chosen(asked, sources)
        now = under_way(folder)
        return f"{folder}:{_changed_s(folder)}:{now.num_finished}:{now.is_running}"
    except (DataError, EvidenceError, SpecError) as err:
        return str(err)


def _answer(asked: AskedRuns, sources: Sources) -> Answer:
    return shown(SWEEP, sweep_now(chosen(asked, sources)))


def _live(asked: AskedRuns, sources: Sources) -> Html | None:
    """The bar of a sweep that runs: how far it is, and what is left."""
    try:
        now = under_way(chosen(asked, sources))
    except (DataError, EvidenceError, SpecError):
        return None
    if not now.is_running:
        return None
    done = f"{now.num_finished} of {plural(now.num_planned, 'run')}"
    left = "" if now.left_s is None else f", about {format_duration(now.left_s)} left"
    label = "Runs that have ended"
    bar = element("progress", done, value=now.num_finished, max=now.num_planned, aria_label=label)
    return element("p", bar, element("span", f"{done}{left}"), class_="progress")


SCREEN: Final = Screen(
    path="/runs",
    title="My runs",
    about="sweeps of your own, as far as they are",
    verb="Show",
    fields=_fields,
    answer=_answer,
    stamp=_stamp,
    live=_live,
    is_transient=True,
)
