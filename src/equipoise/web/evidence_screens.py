"""The pages Study, Compare, Accuracy and My runs: published results, errors on held-out data, user's runs."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import polars as pl
from msgspec.structs import replace

from equipoise.bench.summary import sweep_rows
from equipoise.bench.trial import (
    Store,
    SweepProgress,
    folders_below,
    is_watched,
    sweep_progress,
    trials_folder,
)
from equipoise.bench.watching.rows import RunFiles, latest_step, row_now, run_now, runs_files
from equipoise.decide.ledger import beside_predictions, ledger_path, read_ledger
from equipoise.diagnose.sweeps import sweep_now
from equipoise.diagnose.watched_runs import watched_now
from equipoise.errors import DataError, EvidenceError, InputError, SpecError
from equipoise.report.blocks import Page, Section, Shown
from equipoise.report.format import count, entry_name, printable, workload_name
from equipoise.report.html import Html, element
from equipoise.report.pages.accuracy import ACCURACY
from equipoise.report.pages.comparison import COMPARED
from equipoise.report.pages.ledger import beside_blocks
from equipoise.report.pages.study import STUDY
from equipoise.report.pages.study.entries import hardware
from equipoise.report.pages.sweep import SWEEP
from equipoise.report.pages.watch import WATCH
from equipoise.runs import SWEEP_FILE
from equipoise.spec.mlperf import round_name
from equipoise.study.rounds import accuracy, compared
from equipoise.study.rounds import study as studied
from equipoise.units import format_duration, plural
from equipoise.web import (
    MOST_SYSTEMS,
    Checks,
    Choice,
    CompareFields,
    Control,
    DataSources,
    Given,
    Live,
    PageQuery,
    RunsFields,
    Screen,
    Select,
    StudyFields,
    first,
    reader_of,
)
from equipoise.web.answers import PageAnswer, shown

# Polling intervals while something runs, and while nothing does.
_RUNNING_S, _IDLE_S = 2, 10
_RUNS_LABEL: Final = "Sweep or training loop"
# Shortest interval between two renderings of the page of a running training loop.
_DRAWN_S = 5


def run_folders(sources: DataSources) -> dict[str, Path]:
    """The current sweeps and watched loops, by the name used in addresses.

    The name consists of the name of the given folder and the path inside it.
    """
    found: dict[str, Path] = {}
    for place, folder in enumerate(sources.runs):
        top = folder.resolve()
        for each in folders_below(top):
            inside = each.relative_to(top)
            name = f"{top.name}/{inside}" if inside.parts else top.name
            found[name if name not in found else f"{name} ({place + 1})"] = each
    return found


def chosen(fields: RunsFields, sources: DataSources) -> Path:
    """The folder of the named runs; by default of the latest.

    The name is looked up among the folders found, so no path comes from a browser.
    Raises EvidenceError if there are none, SpecError for an unknown name.
    """
    found = run_folders(sources)
    if not found:
        raise EvidenceError(
            "no runs are known to the dashboard",
            missing=(
                "a sweep: `equipoise bench small_cnn --out DIR`",
                "or your training loop: `with equipoise.watch(model, out=DIR)`",
                "its folder, named when the dashboard begins: `equipoise serve --runs DIR`",
            ),
        )
    if fields.sweep is None:
        return _latest(found.values())
    if fields.sweep not in found:
        raise SpecError(f"--runs {fields.sweep!r} is not known; expected one of {', '.join(found)}")
    return found[fields.sweep]


@contextmanager
def called(folder: Path | None, name: str | None) -> Iterator[None]:
    """Context in which errors show the name of a folder of runs instead of its path on the server."""
    try:
        yield
    except (InputError, EvidenceError) as err:
        if folder is None or name is None:
            raise
        raise err.reworded(lambda text: text.replace(str(folder), name)) from err


def _name_of(folder: Path, sources: DataSources) -> str:
    return next(name for name, each in run_folders(sources).items() if each == folder)


def _latest(folders: Iterable[Path]) -> Path:
    """The most recently changed readable folder; if none is readable, the most recently changed."""
    newest_first = sorted(folders, key=_changed_s, reverse=True)
    return next(filter(_is_readable, newest_first), newest_first[0])


def _is_readable(folder: Path) -> bool:
    """Whether a folder is a watched loop, or a sweep without damaged files."""
    return is_watched(folder) or _is_whole(folder, _changed_s(folder))


@lru_cache(maxsize=64)
def _is_whole(folder: Path, _written_s: float) -> bool:
    """Whether all stored trials of a sweep can be read. Cached, because a page polls every few seconds."""
    try:
        Store(folder).finished()
    except DataError:
        return False
    return True


def _changed_s(folder: Path) -> float:
    """When the last trial of a sweep ended (or the sweep began), or when a loop last wrote."""
    if is_watched(folder):
        return max((files.changed_s for files in runs_files(folder)[0]), default=0.0)
    try:
        return max((folder / name).stat().st_mtime for name in (SWEEP_FILE, trials_folder(folder).name))
    except OSError:
        return 0.0


def _runs_fields(given: Given, sources: DataSources) -> tuple[Control, ...]:
    found = run_folders(sources)
    if not found:
        return ()
    named = first(given, "sweep")
    if named not in found:
        latest = _latest(found.values())
        named = next(name for name, folder in found.items() if folder == latest)
    return (
        Select(
            name="sweep",
            label=_RUNS_LABEL,
            choices=tuple(Choice(value=name, label=_label(name, folder)) for name, folder in found.items()),
            value=named,
        ),
    )


def _label(name: str, folder: Path) -> str:
    if is_watched(folder):
        files, num_older = runs_files(folder)
        state = ", training" if any(each.is_alive for each in files) else ""
        return f"{printable(name)} ({plural(len(files) + num_older, 'watched run')}{state})"
    try:
        now = sweep_progress(folder)
    except DataError:
        return f"{printable(name)} (damaged)"
    state = ", running" if now.is_running else ""
    return f"{printable(name)} ({now.num_finished} of {now.num_planned}{state})"


def state(fields: RunsFields, sources: DataSources) -> str:
    """The state of the displayed runs: finished trials and whether it runs, or what loops have written."""
    try:
        folder = chosen(fields, sources)
        if is_watched(folder):
            files, num_older = runs_files(folder)
            return f"{folder}:{num_older}:{';'.join(map(_written, files))}:{ledger_stamp()}"
        now = sweep_progress(folder)
        return f"{folder}:{_changed_s(folder)}:{now.num_finished}:{now.is_running}:{ledger_stamp()}"
    except (DataError, EvidenceError, SpecError) as err:
        return str(err)


def _written(files: RunFiles) -> str:
    """A stamp of a run that changes at most every _DRAWN_S while it trains, however many ranks write."""
    if files.is_alive:
        return f"{files.folder.name}:{files.num_files}:{files.changed_s // _DRAWN_S}"
    return files.stamp


def _runs_answer(fields: RunsFields, sources: DataSources) -> PageAnswer:
    folder = chosen(fields, sources)
    name = _name_of(folder, sources)
    with called(folder, name):
        if is_watched(folder):
            return shown(_with_predictions(WATCH, _watched_rows(folder)), watched_now(folder))
        now = sweep_now(folder)
        rows = sweep_rows(folder, now.finished, sources.catalogue)
        now = replace(now, progress=replace(now.progress, folder=Path(name)))
        return shown(_with_predictions(SWEEP, rows), now)


def _watched_rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The readable runs of loops; the page itself reports unreadable ones."""
    for files in runs_files(folder)[0]:
        if files.ranks:
            with suppress(DataError, EvidenceError, SpecError):
                yield row_now(run_now(files))


def _with_predictions(page: Page[Shown], rows: Iterable[Mapping[str, Any]]) -> Page[Shown]:
    """The page with its runs next to their predictions, or with a section on how to record predictions."""
    ledger = read_ledger(ledger_path())
    entries = beside_predictions(ledger, rows) if ledger.entries else ()
    blocks = beside_blocks(entries)
    section: Section[Shown] = Section("beside", "Predicted and measured", lambda _: blocks, is_extra=True)
    return replace(page, sections=(section, *page.sections) if entries else (*page.sections, section))


def ledger_stamp() -> str:
    """A stamp that changes with the ledger."""
    with suppress(OSError):
        found = ledger_path().stat()
        return f"{found.st_mtime_ns}:{found.st_size}"
    return ""


def _live(fields: RunsFields, sources: DataSources) -> Live | None:
    """The progress of a running sweep or loop; empty if nothing runs, and polled less often."""
    if not sources.runs:
        return None
    html = Html("")
    try:
        folder = chosen(fields, sources)
        html = _running_loop(runs_files(folder)[0]) if is_watched(folder) else _bar(sweep_progress(folder))
    except (DataError, EvidenceError, SpecError):
        pass
    return Live(html=html, every_s=_RUNNING_S if html else _IDLE_S)


def _bar(now: SweepProgress) -> Html:
    """The progress bar of a running sweep, with the remaining work."""
    if not now.is_running:
        return Html("")
    done = f"{now.num_finished} of {plural(now.num_planned, 'run')}"
    left = "" if now.left_s is None else f", about {format_duration(now.left_s)} left"
    label = "Runs that have ended"
    bar = element("progress", done, value=now.num_finished, max=now.num_planned, aria_label=label)
    return element("p", bar, element("span", f"{done}{left}"), class_="progress")


def _running_loop(found: tuple[RunFiles, ...]) -> Html:
    """The latest update of the newest running loop, and when it was written."""
    files = next((each for each in found if each.is_alive), None)
    if files is None:
        return Html("")
    step, is_last = latest_step(files) or (0, False)
    ranks = plural(files.num_files, "rank")
    if is_last:
        words = f"Training: {ranks}; the first {count(step)} updates, which are measured, are over"
    else:
        progress = f"update {count(step)}" if step else "no update written yet"
        ago = format_duration(max(1.0, time.time() - files.changed_s))
        words = f"Training: {progress}, {ranks}, written {ago} ago"
    return element("p", element("span", "", class_="pulse", aria_hidden="true"), words, class_="progress")


RUNS_SCREEN: Final = Screen(
    path="/runs",
    title="My runs",
    about="your sweeps and training loops, live",
    verb="Show",
    read=reader_of(RunsFields),
    fields=_runs_fields,
    answer=_runs_answer,
    stamp=state,
    depends=("sweep",),
    live=_live,
    is_transient=True,
    reads_disk=True,
    labels={"runs": _RUNS_LABEL},
)


def _chosen_round(given: Given, sources: DataSources) -> str:
    """The round in an address if it can be studied, else the default round."""
    named = round_name(first(given, "round"))
    return named if named in sources.studied else sources.default_round


def _round_select(chosen: str, sources: DataSources, *clears: str) -> Select:
    """A selection of the rounds that can be studied, each with its workloads."""
    choices = tuple(
        Choice(value=name, label=printable(name), holds=tuple(workloads))
        for name, workloads in sources.studied.items()
    )
    return Select(
        name="round", label="Round of MLPerf Training", choices=choices, value=chosen, clears=clears
    )


def _study_fields(given: Given, sources: DataSources) -> tuple[Control, ...]:
    chosen = _chosen_round(given, sources)
    return (
        _round_select(chosen, sources, "workload"),
        Checks(
            name="workload",
            label="Workloads",
            choices=tuple(
                Choice(value=slug, label=f"{workload_name(slug)}, {plural(number, 'entry', 'entries')}")
                for slug, number in sources.studied.get(chosen, {}).items()
            ),
            values=frozenset(given.get("workload", ())),
            hint="None chosen: those of the published study in its round, else all.",
        ),
    )


def _study_answer(fields: StudyFields, sources: DataSources) -> PageAnswer:
    found = studied(
        fields.round,
        fields.workload,
        data=sources.data,
        also=sources.also,
        catalogue=sources.catalogue,
    )
    return shown(STUDY, found)


STUDY_SCREEN: Final = Screen(
    path="/study",
    title="Study",
    about="how training scales in a round",
    verb="Study",
    read=reader_of(StudyFields),
    fields=_study_fields,
    answer=_study_answer,
    depends=("workload",),
)


def _compare_fields(given: Given, sources: DataSources) -> tuple[Control, ...]:
    chosen = _chosen_round(given, sources)
    workloads = sources.studied.get(chosen, {})
    named = first(given, "workload")
    workload = named if named in workloads else next(iter(workloads), "")
    return (
        _round_select(chosen, sources, "workload", "entry"),
        Select(
            name="workload",
            label="Workload",
            choices=tuple(Choice(value=slug, label=workload_name(slug)) for slug in workloads),
            value=workload,
            clears=("entry",),
        ),
        Checks(
            name="entry",
            label="Systems",
            choices=_entries(sources, chosen, workload),
            values=frozenset(given.get("entry", ())),
            most=MOST_SYSTEMS,
            hint=f"At most {MOST_SYSTEMS}. None chosen: those for speed, for efficiency, and in between.",
        ),
    )


def _entries(sources: DataSources, round_: str, workload: str) -> tuple[Choice, ...]:
    rows = sources.scored.filter((pl.col("campaign") == round_) & (pl.col("workload") == workload))
    return tuple(
        Choice(
            value=row["entry_id"],
            label=f"{hardware(row)}, {entry_name(row['submitter'], row['system'])}, "
            f"{format_duration(row['score_s'])}",
        )
        for row in rows.sort("num_accelerators", "score_s", "entry_id").iter_rows(named=True)
    )


def _compare_answer(fields: CompareFields, sources: DataSources) -> PageAnswer:
    usual = sources.studied.get(round_name(fields.round) if fields.round else sources.default_round, {})
    found = compared(
        fields.round,
        fields.workload or next(iter(usual), None),
        fields.entry,
        data=sources.data,
        also=sources.also,
        catalogue=sources.catalogue,
    )
    return shown(COMPARED, found)


COMPARE_SCREEN: Final = Screen(
    path="/compare",
    title="Compare",
    about="systems of a round side by side",
    verb="Compare",
    read=reader_of(CompareFields, most=MOST_SYSTEMS),
    fields=_compare_fields,
    answer=_compare_answer,
    depends=("workload", "entry"),
)


ACCURACY_SCREEN: Final = Screen(
    path="/accuracy",
    title="Accuracy",
    about="errors of every kind of prediction on held-out data",
    verb="Show",
    read=reader_of(PageQuery),
    fields=lambda _, __: (),
    answer=lambda _, __: shown(ACCURACY, accuracy()),
    stamp=lambda _, __: ledger_stamp(),
)
