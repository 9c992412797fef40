"""From paths to tables: small rounds on disk in every shape a user may have them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace
from polars.testing import assert_frame_equal

from equipoise.cli.output import page_text
from equipoise.errors import DataError
from equipoise.report.pages.orientation import ingest_fields, ingest_page
from equipoise.runs.ingest import IngestReport, ingest
from equipoise.runs.store import read_tables

SYSTEM = {
    "submitter": "Org",
    "division": "closed",
    "status": "Available on-premise",
    "system_name": "sys",
    "number_of_nodes": "1",
    "accelerators_per_node": "8",
    "accelerator_model_name": "NVIDIA H100-SXM5-80GB",
    "framework": "PyTorch",
}


def log(
    seconds: float, *, status: str = "success", benchmark: str = "bert", begin_s: float = 1_700_000_000
) -> str:
    """A complete log of a run that took so many seconds."""
    begin_ms = round(begin_s * 1000)
    lines = [
        ("submission_benchmark", 0, benchmark, {}),
        ("submission_org", 0, "Logged Org", {}),
        ("submission_platform", 0, "logged platform", {}),
        ("global_batch_size", 0, 448, {}),
        ("init_start", 0, None, {}),
        ("init_stop", 1000, None, {}),
        ("run_start", 2000, None, {}),
        ("eval_accuracy", 2500, 0.72, {"epoch_num": 2_500_000, "samples_count": 2_500_000}),
        ("run_stop", 2000 + seconds * 1000, None, {"status": status}),
    ]
    return "".join(
        ":::MLLOG "
        + json.dumps({"time_ms": round(begin_ms + at), "key": key, "value": value, "metadata": metadata})
        + "\n"
        for key, at, value, metadata in lines
    )


def entry(
    folder: Path, *, benchmark: str = "bert", num_logs: int = 10, begin_s: float = 1_700_000_000
) -> Path:
    """The folder of an entry with logs of 101, 102, ... seconds."""
    folder.mkdir(parents=True)
    for index in range(num_logs):
        text = log(101 + index, benchmark=benchmark, begin_s=begin_s + 1000 * index)
        (folder / f"result_{index}.txt").write_text(text)
    return folder


def small_round(root: Path, *, org: str = "Org") -> Path:
    """A round with one organisation, one system and two entries."""
    entry(root / org / "results" / "sys" / "bert")
    entry(root / org / "results" / "sys" / "ssd", benchmark="ssd", num_logs=5, begin_s=1_600_000_000)
    systems = root / org / "systems"
    systems.mkdir()
    (systems / "sys.json").write_text(json.dumps(SYSTEM))
    return root


def kinds(report: IngestReport) -> dict[str, int]:
    return {row["kind"]: row["count"] for row in report.rejected.rows()}


@pytest.fixture
def v60(tmp_path: Path) -> Path:
    """A round that does not exist yet."""
    return small_round(tmp_path / "training_results_v6.0")


def test_a_round_never_seen_becomes_two_tables(v60):
    report = ingest(v60)
    assert (report.rounds, report.num_entries_kept, report.num_runs_kept) == (("v6.0",), 2, 15)
    assert kinds(report) == {}
    bert, retinanet = report.scores.sort("workload").to_dicts()
    assert bert["entry_id"] == "v6.0/Org/sys/bert"
    assert bert["score_s"] == pytest.approx(105.5)  # mean of 102..109
    assert bert["samples_per_s"] == pytest.approx(2_500_000 / 105.5)
    assert (bert["accelerator"], bert["num_accelerators"]) == ("h100-sxm5-80gb", 8)
    assert (bert["availability"], bert["framework"], bert["init_s"]) == ("available_onprem", "pytorch", 2)
    assert (bert["source_uri"], bert["source_line"]) == ("Org/results/sys/bert", 9)
    assert retinanet["workload"] == "retinanet"  # `ssd` since v2.0


def test_a_subfolder_or_one_log_knows_its_round_and_system(v60):
    whole = ingest(v60).runs
    for below, count in (
        ("Org", 15),
        ("Org/results", 15),
        ("Org/results/sys/bert", 10),
        ("Org/results/sys/bert/result_3.txt", 1),
    ):
        report = ingest(v60 / below)
        assert report.num_runs_kept == count
        assert_frame_equal(report.runs, whole.filter(whole["run_id"].is_in(report.runs["run_id"].to_list())))
        assert kinds(report) == {}


def test_one_log_of_ten_is_an_entry_with_nine_missing(v60):
    (row,) = ingest(v60 / "Org/results/sys/bert/result_3.txt").scores.to_dicts()
    assert (row["num_runs"], row["num_missing"], row["reason"]) == (1, 9, "9 of 10 logs missing")


def test_a_folder_of_several_rounds_holds_them_all(tmp_path):
    small_round(tmp_path / "training_results_v5.1")
    small_round(tmp_path / "checkout" / "v6.0")
    assert ingest(tmp_path).rounds == ("v5.1", "v6.0")


def test_rows_that_name_no_round_are_counted_apart_from_rounds(v60):
    report = ingest(v60)
    bert, retinanet = report.scores.to_dicts()
    rows = [bert | {"campaign": name} for name in ("v10.0", None, "v9.0", "mine")]
    found = replace(report, scores=pl.DataFrame([*rows, retinanet], schema=report.scores.schema))
    assert found.rounds == ("v6.0", "v9.0", "v10.0", "mine")
    page = ingest_page(None)
    assert ingest_fields(found)["rounds"] == ["v6.0", "v9.0", "v10.0", "mine"]
    assert "v6.0, v9.0, v10.0, mine" in page_text(page, found, full=False)
    nameless = replace(report, scores=pl.DataFrame([bert | {"campaign": None}], schema=report.scores.schema))
    assert (nameless.rounds, ingest_fields(nameless)["entries"]["kept"]) == ((), 1)
    assert "no round" in page_text(page, nameless, full=False)


def test_a_round_without_a_number_is_named_by_its_folder(tmp_path):
    root = small_round(tmp_path / "whatever")
    assert ingest(root).rounds == ("whatever",)
    assert ingest(root / "Org").rounds == ("whatever",)


def test_old_dialects_tell_their_round_themselves(tmp_path):
    folder = tmp_path / "copy" / "org" / "results" / "dgx" / "ssd"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(":::MLPv0.5.0 ssd 15.5 (a.py:1) run_start\n")
    (row,) = ingest(tmp_path / "copy").scores.to_dicts()
    assert (row["campaign"], row["workload"]) == ("v0.5", "ssd_r34")


def test_a_log_on_its_own_is_read_under_any_name(mine):
    path = mine(log(77), "train.log")
    report = ingest(path)
    (row,) = report.runs.to_dicts()
    assert (row["status"], row["time_to_train_s"], row["workload"]) == ("success", 77, "bert")
    assert (row["submitter"], row["system"]) == ("Logged Org", "logged platform")
    assert kinds(report) == {"no_system_description": 1}


@pytest.mark.parametrize("nodes", ["many", 10**400])
def test_a_count_that_cannot_be_read_is_reported(v60, nodes):
    system = v60 / "Org" / "systems" / "sys.json"
    system.write_text(json.dumps(SYSTEM | {"number_of_nodes": nodes}))
    report = ingest(v60)
    assert report.scores["num_accelerators"].to_list() == [None, None]
    assert kinds(report) == {"no_accelerator_count": 2}


def test_a_log_too_deep_is_named_inside_its_round(v60):
    deep = v60 / "Org" / "results" / "sys" / "bert" / "again"
    deep.mkdir()
    (deep / "result_0.txt").write_text(log(60))
    (row,) = ingest(v60).rejected.rows()
    assert (row["kind"], row["count"]) == ("nested_log", 1)
    assert row["where"] == "Org/results/sys/bert/again/result_0.txt"


def test_an_archive_equals_its_folder(v60, tmp_path):
    archive = tmp_path / "training_results_v6.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(v60, v60.name)
    assert_frame_equal(ingest(archive).runs, ingest(v60).runs)
    assert_frame_equal(ingest(archive).scores, ingest(v60).scores)


def test_a_folder_of_archives_is_read_through(v60, tmp_path):
    folder = tmp_path / "archives"
    folder.mkdir()
    with tarfile.open(folder / "training_results_v6.0.tar", "w") as tar:
        tar.add(v60, v60.name)
    report = ingest(folder)
    assert report.rounds == ("v6.0",)


def test_the_same_entry_twice_is_kept_once(v60, tmp_path):
    copy = shutil.copytree(v60, tmp_path / "copy" / "training_results_v6.0")
    report = ingest([v60, copy])
    assert (report.num_entries_kept, report.num_runs_kept) == (2, 15)
    assert (kinds(report)["duplicate_entry"], report.num_runs_rejected) == (15, 15)
    assert_frame_equal(ingest([v60, v60 / "Org"]).runs, ingest(v60).runs)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_the_number_of_workers_changes_nothing(v60, tmp_path, num_workers):
    archives = []
    for number in ("5.1", "6.1"):
        root = small_round(tmp_path / f"training_results_v{number}", org=f"Org{number}")
        archives.append(tmp_path / f"training_results_v{number}.tar")
        with tarfile.open(archives[-1], "w") as tar:
            tar.add(root, root.name)
    report, alone = ingest([*archives, v60], num_workers=num_workers), ingest([*archives, v60], num_workers=1)
    assert_frame_equal(report.runs, alone.runs)
    assert_frame_equal(report.scores, alone.scores)
    assert report.rejected.rows() == alone.rejected.rows()
    divided = ingest(archives[0], num_workers=num_workers)
    assert_frame_equal(divided.runs, ingest(archives[0], num_workers=1).runs)


def test_workers_that_end_as_they_start_leave_their_shares_to_the_caller(v60, tmp_path, monkeypatch):
    archives = [tmp_path / f"training_results_v6.{number}.tar" for number in range(3)]
    for archive in archives:
        with tarfile.open(archive, "w") as tar:
            tar.add(v60, archive.stem)
    alone = ingest(archives, num_workers=1)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert_frame_equal(ingest(archives, num_workers=2).runs, alone.runs)


def test_an_empty_log_is_a_failed_run(v60):
    (v60 / "Org/results/sys/bert/result_3.txt").write_bytes(b"")
    report = ingest(v60)
    (row,) = report.scores.filter(workload="bert").to_dicts()
    assert (row["num_failed"], row["score_s"]) == (1, pytest.approx((102 + 103 + sum(range(105, 111))) / 8))
    assert report.runs.filter(source_uri="Org/results/sys/bert/result_3.txt")["status"].to_list() == [
        "no_run_start"
    ]


def test_a_corrupt_line_voids_its_run_and_is_located(v60):
    with (v60 / "Org/results/sys/bert/result_3.txt").open("a") as file:
        file.write(":::MLLOG {torn\n")
    report = ingest(v60)
    (row,) = report.scores.filter(workload="bert").to_dicts()
    assert (row["num_failed"], row["lenient_s"]) == (1, pytest.approx(105.5))
    (rejected,) = report.rejected.rows()
    assert (rejected["kind"], rejected["where"]) == ("corrupt_line", "Org/results/sys/bert/result_3.txt:10")
    assert re.match(r"1 [a-z]+ line\b", rejected["first"])


def test_a_lost_log_leaves_the_entry_unscored(v60):
    (v60 / "Org/results/sys/bert/result_3.txt").unlink()
    (row,) = ingest(v60).scores.filter(workload="bert").to_dicts()
    assert (row["score_s"], row["num_missing"], row["reason"]) == (None, 1, "1 of 10 logs missing")


def test_a_factor_without_logs_is_an_entry_with_all_missing(v60):
    folder = v60 / "Org/results/sys/llama2_70b_lora"
    folder.mkdir()
    (folder / "scaling.json").write_text('{"scaling_factor": 1.1}')
    (row,) = ingest(v60).scores.filter(workload="llama2_70b_lora").to_dicts()
    assert (row["num_runs"], row["reason"], row["convergence_scaling"]) == (0, "10 of 10 logs missing", 1.1)


def test_scaling_multiplies_the_score_and_a_broken_file_voids_it(v60):
    scaling = v60 / "Org/results/sys/bert/scaling.json"
    scaling.write_text('{"scaling_factor": 1.1}')
    (row,) = ingest(v60).scores.filter(workload="bert").to_dicts()
    assert (row["score_s"], row["unscaled_s"]) == (pytest.approx(116.05), pytest.approx(105.5))
    # The rules lengthen times of those who converge faster than the reference: no factor is below 1.
    for broken in ("oops", '{"scaling_factor": 0.5}'):
        scaling.write_text(broken)
        (row,) = ingest(v60).scores.filter(workload="bert").to_dicts()
        assert row["score_s"] is None
        assert "scaling.json" in row["reason"]


def test_identical_logs_are_kept_and_named(v60):
    bert = v60 / "Org/results/sys/bert"
    shutil.copy(bert / "result_1.txt", bert / "result_2.txt")
    report = ingest(v60)
    assert report.num_runs_kept == 15
    (row,) = report.rejected.rows()
    assert (row["kind"], row["count"]) == ("identical_log", 1)
    assert (row["where"], "result_1.txt" in row["first"]) == ("Org/results/sys/bert/result_2.txt", True)


def test_logs_of_another_benchmark_or_division_than_their_folder_are_named(v60):
    bert = v60 / "Org/results/sys/bert"
    for path in bert.iterdir():
        division = log(0).splitlines()[1].replace("submission_org", "submission_division")
        path.write_text(
            division.replace("Logged Org", "open") + "\n" + path.read_text().replace("bert", "ssd")
        )
    report = ingest(v60)
    assert kinds(report) == {"conflicting_benchmark": 1, "conflicting_division": 1}
    assert {row["where"] for row in report.rejected.rows()} == {"Org/results/sys/bert"}
    assert report.scores.sort("workload")["division"].to_list() == ["closed", "closed"]
    assert report.scores.sort("workload")["workload"].to_list() == ["bert", "retinanet"]


def test_a_folder_of_no_known_benchmark_is_named_where_its_logs_state_one(v60):
    shutil.move(v60 / "Org/results/sys/bert", v60 / "Org/results/sys/bert_new")
    report = ingest(v60)
    assert kinds(report) == {"unknown_benchmark_folder": 1}
    assert "bert" in report.scores["workload"].to_list()


@pytest.mark.parametrize(
    ("num_nodes", "watts", "kind", "has_energy"),
    [("1", 5600, None, True), ("4", 5600, "power_of_some_nodes", False), ("1", 5.6, "little_power", True)],
)
def test_power_of_a_part_of_a_machine_is_no_energy_of_it(v60, num_nodes, watts, kind, has_energy):
    (v60 / "Org/systems/sys.json").write_text(json.dumps(SYSTEM | {"number_of_nodes": num_nodes}))
    for index in range(10):
        meter = v60 / f"Org/results/sys/bert/power/result_{index}/node_0.txt"
        meter.parent.mkdir(parents=True)
        events = (("power_measurement_start", 0, None), ("power_reading", 1000, watts))
        meter.write_text(
            "".join(
                ":::MLLOG " + json.dumps({"time_ms": at, "key": key, "value": value}) + "\n"
                for key, at, value in events
            )
        )
    report = ingest(v60)
    assert kinds(report) == ({} if kind is None else {kind: 10})
    (row,) = report.scores.filter(workload="bert").to_dicts()
    # The mean of 102 to 109 s: of ten runs the fastest and the slowest are dropped.
    assert row["energy_j"] == (pytest.approx(watts * 105.5) if has_energy else None)


def test_what_is_left_out_is_reported(v60):
    bert = v60 / "Org/results/sys/bert"
    shutil.copytree(bert, bert / "bert")
    (bert / "intel_caffe_result_0.txt").write_text(log(1))
    (v60 / "Org/systems/other.json").write_text(json.dumps(SYSTEM))
    (v60 / "Org/systems/broken.json").write_text("not json")
    report = ingest(v60)
    assert kinds(report) == {
        "nested_log": 10,
        "not_a_result": 1,
        "system_without_results": 1,
        "unreadable_system": 1,
    }
    assert (report.num_runs_kept, report.num_runs_rejected) == (15, 10)
    rejected = report.rejected.rows()
    assert len(rejected) == 4
    assert all(row["first"] and row["where"] for row in rejected)


def test_unknown_names_are_kept_raw_and_reported_with_the_file_to_edit(v60):
    system = SYSTEM | {
        "accelerator_model_name": "Frobnicator 9",
        "framework": "Frobtorch",
        "status": "Someday",
    }
    (v60 / "Org/systems/sys.json").write_text(json.dumps(system))
    entry(v60 / "Org/results/sys/frobench", benchmark="frobench")
    report = ingest(v60)
    assert set(report.scores["accelerator"]) == {"Frobnicator 9"}
    assert {(name.kind, name.raw, name.count) for name in report.unknown_names} == {
        ("accelerator", "Frobnicator 9", 3),
        ("availability", "Someday", 3),
        ("framework", "Frobtorch", 3),
        ("workload", "frobench", 1),
    }
    assert all(
        name.edit.endswith(".toml") or "--workloads" in name.edit or "--hardware" in name.edit
        for name in report.unknown_names
    )
    (row,) = report.scores.filter(workload="frobench").to_dicts()
    assert row["samples_to_target"] == 2_500_000  # `samples_count`, as every new benchmark logs it


def test_nothing_found_is_reported_and_nothing_is_written(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    report = ingest(tmp_path, into=tmp_path / "tables")
    assert (report.num_entries_kept, kinds(report)) == (0, {"no_results": 1})
    assert not (tmp_path / "tables").exists()


def test_a_path_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        ingest(tmp_path / "nowhere")


def test_tables_are_written_whole(v60, tmp_path):
    report = ingest(str(v60), into=str(tmp_path / "tables"))
    tables = read_tables(tmp_path / "tables")
    assert_frame_equal(tables.runs, report.runs)
    assert_frame_equal(tables.scores, report.scores)
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["runs.parquet", "scores.parquet"]


def test_progress_ends_at_its_total(v60):
    seen = []
    ingest(v60, progress=lambda what, done, total: seen.append((what, done, total)))
    totals = {total for _, _, total in seen}
    assert len(totals) == 1
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1] == seen[-1][2] > 0


def test_a_plain_script_may_ingest_with_workers(tmp_path, mine):
    """No main guard, Polars threads already running, started elsewhere: nothing hangs and nothing runs twice."""
    archives = []
    for number in ("5.1", "6.1"):
        root = small_round(tmp_path / f"training_results_v{number}")
        archives.append(tmp_path / f"training_results_v{number}.tar")
        with tarfile.open(archives[-1], "w") as tar:
            tar.add(root, root.name)
    script = mine(
        textwrap.dedent(f"""
        import polars as pl
        print("started", pl.DataFrame({{"a": range(100_000)}}).select(pl.col("a").sum()).item())
        from equipoise.runs.ingest import ingest
        print(ingest({[str(path) for path in archives]!r}, num_workers=2).rounds)
        """),
        "script.py",
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.splitlines() == ["started 4999950000", "('v5.1', 'v6.1')"]


def test_interruption_leaves_no_table_and_no_worker(tmp_path):
    """SIGINT to a process that ingests with workers ends it, its workers and its tables."""
    archives = []
    for number in ("5.1", "6.1"):
        root = small_round(tmp_path / f"training_results_v{number}")
        archives.append(tmp_path / f"training_results_v{number}.tar")
        with tarfile.open(archives[-1], "w") as tar:
            tar.add(root, root.name)
    script = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from equipoise.runs import workers\n"
        "from equipoise.runs.ingest import ingest\n"
        "def interrupt(what, done, total):\n"
        "    children = Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()\n"
        "    if children:\n"
        "        print(*children, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        f"ingest({[str(path) for path in archives]!r}, into=Path({str(tmp_path / 'tables')!r}), "
        "num_workers=2, progress=interrupt)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode in {-signal.SIGINT, 130}
    children = [int(pid) for pid in done.stdout.split()]
    assert children
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not (tmp_path / "tables").exists()
