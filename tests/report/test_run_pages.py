"""The pages of entries side by side, of accuracy, of a sweep and of watched loops, in HTML and in a terminal."""

import os
import re
from typing import get_args

import polars as pl
import pytest
import typer
from msgspec.structs import replace
from parsed_page import printed

from equipoise.bench.phases import EXPOSED, PARTS
from equipoise.bench.summary import Spread
from equipoise.bench.sweep import planned
from equipoise.bench.trial import FinishedTrial, Store, folders_below, is_watched, sweep_progress
from equipoise.bench.watching import RankFile, RecordedStep, run_folder
from equipoise.cli.app import app
from equipoise.decide.combine import PlanKind
from equipoise.diagnose.sweeps import sweep_now
from equipoise.diagnose.watched_runs import watched_now
from equipoise.errors import DataError, EvidenceError, SpecError
from equipoise.report import html
from equipoise.report.format import TIMES
from equipoise.report.pages.accuracy import ACCURACY, KINDS
from equipoise.report.pages.comparison import COMPARED
from equipoise.report.pages.sweep import SWEEP
from equipoise.report.pages.watch import WATCH
from equipoise.runs.embedded import tables
from equipoise.study import rounds

HOSTILE = "</script><img src=x onerror=alert(1)>"


# --- side by side


def entry_id(round_, workload, system):
    rows = tables().scores.filter(
        (pl.col("campaign") == round_) & (pl.col("workload") == workload) & (pl.col("system") == system)
    )
    return rows["entry_id"].item()


def test_two_entries_differ_by_their_published_minutes():
    """MLPerf v4.1 BERT: 4 x H100 in 10.19 minutes, 3,472 in 0.12 (7.158 s): 85.4 times as fast."""
    ids = [entry_id("v4.1", "bert", name) for name in ("XE8640x4H100-SXM-80GB", "eos_n434_ngc23.09_pytorch")]
    found = rounds.compared("4.1", "bert", ids)
    assert found.chosen["num_accelerators"].to_list() == [4, 3472]
    shown = printed(COMPARED, found)
    words = " ".join(shown.split())
    assert f"85.4{TIMES} as fast" in words
    assert f"868{TIMES} the accelerators" in words
    assert "9.8 %" in words
    assert max(map(len, shown.splitlines())) <= 80


def test_without_a_choice_it_takes_those_worth_a_look():
    found = rounds.compared(workload="bert")
    assert (found.round, found.are_given) == ("v4.1", False)
    assert found.chosen["num_accelerators"].to_list() == sorted(found.chosen["num_accelerators"].to_list())
    assert len(found.bills) == len(found.chosen) == len(set(found.chosen["entry_id"]))
    assert found.chosen["score_s"].min() == found.entries["score_s"].min()


def test_an_entry_that_is_not_there_is_named():
    with pytest.raises(SpecError, match=r"'nothing' .*bert"):
        rounds.compared("v4.1", "bert", ["nothing"])


def test_names_of_entries_are_text():
    found = rounds.compared("v4.1", "bert")
    named = {"submitter": pl.lit(HOSTILE), "system": pl.lit(HOSTILE), "source_uri": pl.lit(HOSTILE)}
    page = html.render(COMPARED, replace(found, chosen=found.chosen.with_columns(**named)))
    assert "&lt;img" in page
    assert "<img" not in page.replace("'<img'", "")


# --- records


def test_the_page_of_records_shows_every_kind():
    found = rounds.accuracy()
    shown = printed(ACCURACY, found, width=200)
    assert found.profiles
    for profile in found.profiles:
        assert profile.name in shown
    assert {each.kind for each in found.plans} == set(get_args(PlanKind)) == set(KINDS)
    assert [title for title, *_ in KINDS.values() if title not in shown] == []
    named = {section.name for section, blocks in ACCURACY.content(found) if blocks}
    assert named >= {"forecasts", "steps", "plans", "advised"}
    assert max(map(len, printed(ACCURACY, found).splitlines())) <= 80


def test_without_any_record_every_section_is_left_out():
    found = replace(rounds.accuracy(), forecasts=None, profiles=(), plans=(), advised=(), own=None)
    assert not ACCURACY.content(found)
    assert len(ACCURACY.left_out(found)) == len(ACCURACY.sections)


# --- a sweep


def finished(trial, step_s, reason=None):
    split = {"input": 0.0, "forward": 0.25, "backward": 0.5, "optimizer": 0.25, "rest": 0.0, "step": 1.0}
    steps = [{name: share * step_s for name, share in split.items()}] * 10
    return FinishedTrial(
        trial=trial,
        status="failed" if reason else "success",
        reason=reason,
        conditions={},
        result={} if reason else {"steps": steps, "steady": True},
    )


@pytest.fixture
def sweep(tmp_path):
    """One rank takes 4 ms a step, two take 2.5 ms, four 2 ms; one run of four failed."""
    trials = planned(workloads=["mlp"], methods=["ddp"], sizes=[1, 2, 4], batches=[64], num_repetitions=2)
    store = Store(tmp_path / "mine")
    with store.opened(trials, resume=False):
        for trial in trials:
            failed = HOSTILE if (trial.num_ranks, trial.repetition) == (4, 2) else None
            store.add(finished(trial, {1: 0.004, 2: 0.0025, 4: 0.002}[trial.num_ranks], failed))
    return tmp_path / "mine"


def test_of_several_batches_the_speedup_has_room(tmp_path):
    trials = planned(
        workloads=["mlp"], methods=["localsgd_fp16:32"], sizes=[1, 2], batches=[64, 128], num_repetitions=2
    )
    store = Store(tmp_path / "mine")
    with store.opened(trials, resume=False):
        for trial in trials:  # 1.6 times as fast; a second repetition takes four times as long
            store.add(finished(trial, {1: 0.4, 2: 0.25}[trial.num_ranks] * 4.0**trial.repetition))
    brief = printed(SWEEP, sweep_now(tmp_path / "mine"), full=False).splitlines()
    rows = [line.split() for line in brief if line.startswith("localsgd_fp16:32")]
    assert [(row[1], "1.60" in row) for row in rows] == [("2", True)] * 2
    assert max(map(len, brief)) <= 80


def test_a_sweep_shows_speedups_phases_and_failures(sweep):
    found = sweep_now(sweep)
    shown = printed(SWEEP, found, width=160)
    assert "mine: 6 of 6 runs, 1 failed; complete" in shown
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith("ddp")]
    assert rows[0][:4] == ["ddp", "2", "64", "2.5"]
    assert rows[1][:6] == ["ddp", "1", "failed", "4", "64", "2"]
    assert "1.60" in rows[0]  # 4 ms over 2.5 ms
    assert "80" in rows[0]  # per cent: 1.6 over 2 ranks
    assert HOSTILE in shown
    page = html.render(SWEEP, found)
    assert "<img src=x" not in page
    brief = printed(SWEEP, found, full=False).splitlines()
    assert len(brief) <= 30
    assert max(map(len, brief)) <= 80
    assert [line.split()[-2] for line in brief if line.startswith("ddp")] == ["1.60", "2.00"]
    assert {"forward pass 25 %", "optimizer 25 %"} <= set(
        re.findall(r"(?:forward pass|optimizer) 25 %", page)
    )


def test_how_far_a_sweep_is_comes_from_its_folder(tmp_path):
    trials = planned(workloads=["mlp"], methods=["ddp"], sizes=[1], batches=[1, 2, 3, 4], num_repetitions=1)
    store = Store(tmp_path / "deep" / "mine")
    with store.opened(trials, resume=False):
        (store.folder / "running-1").mkdir()
        for number, trial in enumerate(trials[:3]):
            store.add(finished(trial, 0.004))
            path = store.path(trial)
            os.utime(path, (1e9 + 10 * number, 1e9 + 10 * number))
        now = sweep_progress(store.folder)
    assert (now.num_planned, now.num_finished, now.is_running, now.is_whole) == (4, 3, True, False)
    assert now.left_s == 10.0  # one run left, ten seconds from one to the next
    assert not sweep_progress(store.folder).is_running
    (tmp_path / "loop" / "watched").mkdir(parents=True)
    assert folders_below(tmp_path) == (store.folder, tmp_path / "loop")
    assert [is_watched(each) for each in folders_below(tmp_path)] == [False, True]
    assert folders_below(tmp_path / "none") == ()


# --- watched loops


def loop(out, run, step_s, *, rank=0, num_ranks=1, workload="net", num=60, ended=True, waits="input"):
    """What a rank leaves whose steps took so long: half of it forward, a quarter waits; with 8 samples."""
    about = {"rank": rank, "num_ranks": num_ranks, "workload": workload, "conditions": {"host": HOSTILE}}
    file = RankFile(run_folder(out, run), about)
    split = dict.fromkeys(PARTS, 0.0) | {"forward": 0.5, "backward": 0.25, waits: 0.25, "step": 1.0}
    seconds = {name: share * step_s for name, share in split.items()}
    file.add(
        [
            RecordedStep(step=number, batches=1, samples=8, profiled=False, seconds=seconds)
            for number in range(1, num + 1)
        ]
    )
    if ended:
        file.add([{"end": {"memory_bytes": 2**20}}])
    file.close()


def test_the_command_that_measures_exchanges_is_of_the_model_ranks_and_batch_watched(tmp_path):
    for rank in (0, 1):
        name = "20250102T000000-abcdef"
        loop(tmp_path, name, 0.04, rank=rank, num_ranks=2, workload="mine:net", waits=EXPOSED)
    (gain,) = watched_now(tmp_path).runs[0].gains
    words = re.search(r"equipoise (bench .*) measures", gain)[1].split()
    assert words[1] == "mine:net"
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert (given["--sizes"], given["--batch"]) == ("1,2", "16")
    command = typer.main.get_command(app(("bench",))).commands["bench"]
    assert set(given) <= {name for each in command.params for name in each.opts}


def test_watched_loops_show_rates_phases_and_ranks(tmp_path):
    """Two ranks, 40 ms a step of the slower: 2 x 8 samples in 0.04 s are 400 a second."""
    loop(tmp_path, "20250101T000000-abcdef", 0.010)
    loop(tmp_path, "20250102T000000-abcdef", 0.030, num_ranks=2)
    loop(tmp_path, "20250102T000000-abcdef", 0.040, rank=1, num_ranks=2)
    (run_folder(tmp_path, "20250103T000000-abcdef")).mkdir()
    found = watched_now(tmp_path)
    newest, first = found.runs
    assert newest.step_s == Spread(value=0.04, low=0.04, high=0.04)
    assert (newest.samples_per_s.value, first.samples_per_s.value) == (pytest.approx(400), pytest.approx(800))
    assert newest.phases["forward"] == pytest.approx(0.02)
    assert [each.step_s for each in newest.ranks] == [0.03, 0.04]
    assert [each.name for each in found.unread] == ["20250103T000000-abcdef"]
    assert re.match(r"without input .* 1\.33 times", newest.gains[0])
    shown = printed(WATCH, found)
    assert re.search(rf"{tmp_path.name}: net .*\b2 ranks, 40 ms .*; ended", " ".join(shown.split()))
    assert re.search("50 % .*forward pass", shown)
    assert max(map(len, shown.splitlines())) <= 80
    brief = printed(WATCH, found, full=False).splitlines()
    assert len(brief) <= 30
    rows = [line.split() for line in brief if line.startswith("2025")]
    assert [row[-3:-1] for row in rows] == [["40", "400"], ["10", "800"]]
    page = html.render(WATCH, found)
    assert "<img src=x" not in page
    assert "2025-01-02 00:00:00" in page


def test_steps_without_phases_have_no_section_of_phases(tmp_path):
    file = RankFile(run_folder(tmp_path, "one"), {"rank": 0, "num_ranks": 1})
    only = {"step": 0.5}
    file.add(
        [
            RecordedStep(step=number, batches=1, samples=0, profiled=False, seconds=only)
            for number in range(1, 41)
        ]
    )
    file.close()
    found = watched_now(tmp_path)
    assert "1 rank, 500 ms" in WATCH.headline(found)
    assert "phases" not in [section.name for section, _ in WATCH.content(found)]


def test_a_run_that_ended_before_a_step_was_measured_was_not_cut_short(tmp_path):
    loop(tmp_path, "20250101T000000-abcdef", 0.010, num=0)
    ended = watched_now(tmp_path)
    loop(tmp_path, "20250102T000000-abcdef", 0.010, num=0, ended=False)
    assert "cut short" not in printed(WATCH, ended)
    os.utime(run_folder(tmp_path, "20250102T000000-abcdef") / "rank-0.jsonl", (1e9, 1e9))
    cut = watched_now(tmp_path)
    assert [run.is_running for run in cut.runs] == [False, False]
    assert printed(WATCH, cut).count("cut short") >= 2  # the headline and the row


def test_long_loops_are_drawn_by_medians_of_neighbours(tmp_path):
    loop(tmp_path, "20250101T000000-abcdef", 0.010, num=1000, ended=False)
    (run,) = watched_now(tmp_path).runs
    assert len(run.course.steps) == 100
    assert run.course.steps[:2] == (5.5, 15.5)  # the middles of ten each
    assert set(run.course.step_s) == {0.010}


def test_a_folder_that_is_no_sweep_is_refused(tmp_path):
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "sweep.json"))):
        sweep_progress(tmp_path)


def test_a_round_without_scores_cannot_be_compared():
    with pytest.raises((EvidenceError, SpecError)):
        rounds.compared("v4.1", "minigo")
