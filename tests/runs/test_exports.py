"""Exports of trackers and Extra-P: the shipped examples, the columns they name, and what is no export."""

import json
import re
import subprocess
from os import environ
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from equipoise.errors import DataError, UsageError
from equipoise.runs import embedded
from equipoise.runs.ingest import ingest
from equipoise.runs.readers.exports import columns_of, exported
from equipoise.runs.readers.measurements import read_measurements
from equipoise.runs.store import WRITERS

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SIZES = [1, 1, 2, 2, 4, 4, 8, 8]
RATES = [412.0, 418.5, 790.2, 801.1, 1490.7, 1512.3, 2688.4, 2731.9]


def unused(found):
    """The one note of rows that are not used."""
    (words,) = [note.words for note in found.notes if note.kind == "not_used"]
    return words


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("wandb-runs.csv", {}),
        ("mlflow-runs.csv", {"num_accelerators": "gpus"}),
        ("mlflow-runs.csv", {"num_accelerators": "params.gpus", "samples_per_s": "samples_per_second"}),
    ],
)
def test_examples_of_trackers_give_their_runs(name, columns):
    found = read_measurements(EXAMPLES / name, columns=columns)
    assert found.num_accelerators.tolist() == SIZES
    # By hand: a million samples at 412 a second take 2427.18 s.
    assert found.time_s[0] == pytest.approx(2427.18, abs=0.01)
    assert np.allclose(1e6 / found.time_s, RATES)
    assert any(name in note and note.endswith(": 1.") for note in map(str, found.notes))


def test_the_time_a_run_took_is_a_time_to_train_where_the_user_is_reported():
    found = read_measurements(
        EXAMPLES / "mlflow-runs.csv",
        columns={"num_accelerators": "gpus", "time_to_train_s": "duration"},
    )
    assert found.is_time_to_train
    assert found.time_s[0] == pytest.approx(900_000 / 412, abs=1)


def test_weights_and_biases_runtime_is_one_too():
    found = read_measurements(EXAMPLES / "wandb-runs.csv", columns={"time_to_train_s": "Runtime"})
    assert found.time_s[0] == 2225.0


def test_a_rate_of_evaluation_is_none_of_training(tmp_path):
    """transformers' Trainer logs both to Weights & Biases; evaluation, forward alone, is the faster."""
    path, both = tmp_path / "runs.csv", "eval/samples_per_second,train/train_samples_per_second"
    rows = "".join(f"{size},finished,x,9,{400 * size},{100 * size}\n" for size in (1, 2, 4))
    path.write_text(f"world_size,State,Created,Runtime,{both},Name\n" + rows.replace("\n", ",a\n"))
    found = read_measurements(path)
    assert (1e6 / found.time_s).tolist() == pytest.approx([100, 200, 400])
    path.write_text(path.read_text().replace("train/train_", "test/"))
    with pytest.raises(DataError, match=r"eval/samples_per_second.*samples_per_s"):
        read_measurements(path)


def test_the_page_of_mlflow_writes_durations_with_units(mine):
    path = mine(
        "Start Time,Duration,Run ID,Name,Source Type,Source Name,User,Status,num_gpus\n"
        "2026-03-01 08:00:00,1.5h,aa,a,LOCAL,t.py,u,FINISHED,8\n"
        "2026-03-01 10:00:00,45.0min,bb,b,LOCAL,t.py,u,FINISHED,16\n"
        "2026-03-01 10:00:00,3ms,cc,c,LOCAL,t.py,u,FAILED,32\n",
        "runs.csv",
    )
    found = read_measurements(path, columns={"time_to_train_s": "Duration"})
    assert found.time_s.tolist() == [5400.0, 2700.0]


def test_extra_p_lines_give_their_repetitions():
    found = read_measurements(EXAMPLES / "extra-p.jsonl", columns={"time_to_train_s": "time"})
    assert found.num_accelerators.tolist() == SIZES
    assert np.allclose(found.time_s, np.round(900_000 / np.array(RATES), 1))


def test_a_folder_of_tables_stands_for_its_runs(tmp_path, mine):
    path = mine("num_gpus,samples_per_s\n1,100\n2,190\n4,350\n")
    ingest([path], into=tmp_path / "tables")
    found = read_measurements(tmp_path / "tables")
    assert found.num_accelerators.tolist() == [1, 2, 4]
    assert found.time_s == pytest.approx([1e6 / 100, 1e6 / 190, 1e6 / 350])
    with pytest.raises(DataError, match=r"folder.*CSV"):
        read_measurements(tmp_path)


def test_two_columns_that_look_the_same_are_not_chosen_between(mine):
    path = mine(
        "Name,State,Created,Runtime,num_gpus,world_size,samples_per_second\na,finished,x,1,8,8,100\n",
        "runs.csv",
    )
    with pytest.raises(DataError, match=r"num_accelerators;.*--column"):
        exported(path)
    assert exported(path, {"num_accelerators": "world_size"}).rows[0].cells["num_accelerators"] == "8"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"params": {"p": 8}}', "expected"),
        ('{"params": {}, "value": 1}', "params"),
        ('{"params": {"p": "8"}, "value": 1}', "found '8'"),
        ('{"params": {"p": 8}, "value": [1, null]}', "found 'None'"),
        ('{"params": {"p": 8}, "value": 1e999}', "found 'inf'"),
        ('{"params": {"p": 8}, "value": 1, "metric": 3}', "not text"),
        ('{"params": ' + "[" * 5000, "not valid JSON"),
        ("{]", "not valid JSON"),
    ],
)
def test_lines_that_are_no_measurement_are_refused_with_their_place(mine, line, words):
    path = mine(f'{{"params": {{"p": 4}}, "value": 2}}\n{line}\n', "mine.jsonl")
    with pytest.raises(DataError, match=r"mine\.jsonl: line 2") as caught:
        exported(path)
    assert words in str(caught.value)


def test_lines_of_one_object_a_row_are_read(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [
        {"num_gpus": 1, "samples_per_s": 412.5, "precision": None, "tags": ["a"]},
        {"num_gpus": 2, "samples_per_s": 790, "global_batch_size": 64, "is_best": True},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    found = read_measurements(path)
    assert found.num_accelerators.tolist() == [1, 2]
    assert np.allclose(1e6 / found.time_s, [412.5, 790.0])
    path.write_text('{"gpus": 2, "samples_per_s": 790, "global_batch": 64}\n')
    assert "global_batch_samples" in exported(path).header
    path.write_text('{"num_gpus": 1, "samples_per_s": NaN}\n')
    with pytest.raises(DataError, match="line 1"):
        read_measurements(path)
    path.write_text('{"num_gpus": 1, "samples_per_s": 2}\n[1]\n')
    with pytest.raises(DataError, match="line 2"):
        read_measurements(path)


def test_the_accounting_of_slurm_is_read(mine):
    path = mine(
        "JobID|Elapsed|gpus|State\n101|1-02:30:00|8|COMPLETED\n102|13:15:36|16|COMPLETED\n103|00:00:36.5|32|C\n",
        "sacct.csv",
    )
    found = read_measurements(path, columns={"num_accelerators": "gpus", "time_to_train_h": "Elapsed"})
    # 26 h 30 min; 13 h 15 min 36 s; 36.5 s.
    assert found.time_s.tolist() == pytest.approx([95_400.0, 47_736.0, 36.5])
    path.write_text("num_gpus,time_to_train_h\n8,10 h\n16,90:00\n")
    assert "row 2" in unused(read_measurements(path))  # minutes or hours


def test_what_is_exported_as_json_lines_is_read_back(tmp_path):
    into = tmp_path / "tables"
    ingest([EXAMPLES / "wandb-runs.csv"], workload="resnet", into=into)
    runs = pl.read_parquet(into / "runs.parquet")
    written("jsonl", runs, tmp_path / "runs.jsonl")
    found = read_measurements(tmp_path / "runs.jsonl")
    assert found.num_accelerators.tolist() == SIZES
    assert np.allclose(1e6 / found.time_s, RATES)


def test_a_rate_in_tokens_is_one_in_samples_where_their_length_is_stated(mine):
    path = mine("num_gpus,tokens_per_second,seq_len\n8,81920,4096\n", "log.csv")
    (row,) = ingest([path]).runs.rows(named=True)
    assert row["samples_per_s"] == 20.0
    path.write_text("num_gpus,tokens_per_second\n8,81920\n")
    with pytest.raises(DataError, match="tokens_per_s without sequence_tokens"):
        ingest([path])
    path.write_text("num_gpus,step_ms,batch\n8,120,64\n")
    with pytest.raises(DataError, match="step_ms without global_batch_samples"):
        ingest([path])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Results of Hugging Face's Trainer, which have no number of accelerators, cut off, and of no training.
        ('{\n  "epoch": 3.0,\n  "train_samples_per_second": 27.1\n}\n', "no column num_accelerators"),
        ('{\n  "epoch": 3.0,\n  "train_samples_per_sec', "not valid JSON"),
        ('{\n  "log_history": [{"loss": 2.1, "step": 250}, 7, null]\n}', "no train_runtime"),
        ('{\n  "log_history": ' + "[" * 100_000, "not valid JSON"),
        ('{\n  "log_history": [{"train_runtime": {"train_samples_per_second": 1}}]\n}', "no column"),
        # What pandas' to_json(orient="records") writes.
        ('[{"num_gpus": 1, "step_ms": 412.5}, {"num_gpus": 2, "step_ms": 213.1}]', "one object.*jq"),
        # The log of Megatron-LM: no table, whatever its lines hold.
        (
            "using world size: 8, data-parallel size: 8\n iteration 10/ 1000 | lm loss: 9.1 |\n",
            "no column.*time_to_train_s",
        ),
    ],
)
def test_what_is_no_table_is_called_that(mine, text, words):
    path = mine(text, "found")
    with pytest.raises(DataError, match=words):
        read_measurements(path)


# What `trainer.save_metrics("all", ...)` and `trainer.save_state()` of transformers write: 96,000 samples of 1,500
# steps in an hour, rounded to three decimals.
TRAINED = {
    "epoch": 3.0,
    "train_loss": 1.234,
    "train_runtime": 3600.0,
    "train_samples_per_second": 26.667,
    "train_steps_per_second": 0.417,
}
OF_TRAINER = {
    "all_results.json": {"eval_runtime": 12.5, "eval_samples_per_second": 812.1, **TRAINED},
    "trainer_state.json": {
        "log_history": [{"loss": 2.1, "step": 250}, {"eval_runtime": 12.5}, {"step": 1500, **TRAINED}],
        "max_steps": 1500,
        "train_batch_size": 8,
    },
}


@pytest.mark.parametrize("name", OF_TRAINER)
def test_results_of_the_trainer_of_transformers_are_a_run(mine, name):
    path = mine(json.dumps(OF_TRAINER[name], indent=4, sort_keys=True), name)
    columns = columns_of(["num_accelerators=8", "global_batch_samples=64"])
    (row,) = ingest([path], column=columns, accelerator="h100").runs.rows(named=True)
    assert (row["num_accelerators"], row["global_batch_samples"], row["samples_per_s"]) == (8, 64, 26.667)
    # 0.417 steps of 8 samples are 3.3 samples a second.
    with pytest.raises(DataError, match="contradict"):
        ingest([path], column={**columns, "global_batch_samples": "8"})
    with pytest.raises(DataError, match="no column num_accelerators"):
        ingest(path)


def test_a_number_that_no_column_has_may_be_stated(mine):
    path = mine("tokens/s/GPU,8\n11800,4\n")
    columns = columns_of(["num_accelerators=16", "sequence_tokens=4096"])
    rows = ingest([path], column=columns).runs
    # 11,800 x 16 / 4,096 = 46.09 samples a second.
    assert rows["samples_per_s"].to_list() == [46.09375]
    # The name of a column is that of a column.
    of_column = columns_of(["num_accelerators=8", "sequence_tokens=4096"])
    assert ingest([path], column=of_column).runs["num_accelerators"].to_list() == [4]
    with pytest.raises(DataError, match="--column step_ms=120"):
        ingest([path], column={**columns, "step_ms": "120"})
    # A number stands for what it states, not for a time as well.
    with pytest.raises(DataError, match=r"--column step_s=16: it has 'tokens/s/gpu' and '8';"):
        ingest([path], column={**columns, "step_s": "16"})
    for wrong in ("0", "-8", "6.4"):
        with pytest.raises(DataError, match=rf"--column num_accelerators={wrong}: .* 0$"):
            ingest([path], column={**columns, "num_accelerators": wrong})


def test_a_rate_of_one_accelerator_is_times_their_number(mine):
    # torchtitan and Megatron-Bridge state tokens per second of one GPU: 11,800 x 8 / 4,096 = 23.05 samples a second.
    path = mine("num_gpus,tokens/s/GPU,seq_len\n8,11800,4096\n16,11600,4096\n32,11200,4096\n")
    rows = ingest([path]).runs
    assert rows["samples_per_s"].to_list() == [23.046875, 45.3125, 87.5]
    found = read_measurements(path)
    assert found.time_s == pytest.approx([1e6 / 94_400, 1e6 / 185_600, 1e6 / 358_400])
    assert any("tokens/s/gpu" in note and "num_accelerators" in note for note in map(str, found.notes))
    with pytest.raises(DataError, match="--column tokens_per_s_per_accelerator=tokens/s/gpu"):
        read_measurements(path, columns={"tokens_per_s": "tokens/s/GPU"})
    path.write_text("num_gpus,tgs\n8,11800\n16,11600\n32,fast\n")
    named = {"tokens_per_s_per_accelerator": "tgs"}
    assert re.search(r"row 3, .*tgs.*'fast'", unused(read_measurements(path, columns=named)))


def test_nodes_times_accelerators_of_a_node_are_the_number_of_accelerators(mine):
    path = mine("nodes,gpus_per_node,time_h\n1,8,10\n2,8,6\n4,8,4\n")
    assert read_measurements(path).num_accelerators.tolist() == [8, 16, 32]
    assert ingest([path]).runs["num_nodes"].to_list() == [1, 2, 4]
    path.write_text("num_gpus,nodes,gpus_per_node,time_h\n6,1,8,10\n12,2,8,6\n24,4,8,4\n")
    assert read_measurements(path).num_accelerators.tolist() == [6, 12, 24]
    path.write_text("nodes,gpus_per_node,time_h\n1,8,10\n2,8,6\n4,four,4\n")
    assert re.search(r"row 3.*nodes.*gpus_per_node.*4.*four", unused(read_measurements(path)))


def test_columns_of_parameters_of_a_strategy_are_the_strategy(mine):
    path = mine(
        "gpus,samples_per_s,global_batch,dp,tp,zero_stage\n8,11,64,8,1,3\n8,9,64,4,2.0,1\n16,20,64,16,1,3\n"
        "8,10,64,,,\n8,12,64,8,1,0\n8,7,64,2,2,0\n"
    )
    found = ingest([path]).runs["strategy"].to_list()
    # dp is what the other axes leave of the accelerators; where it is not, it stands, and contradicts them
    assert found == ["zero_stage=3", "tp=2 zero_stage=1", "zero_stage=3", None, None, "dp=2 tp=2"]
    path.write_text("gpus,samples_per_s,global_batch,strategy,tp\n8,11,64,fsdp,1\n")
    assert ingest([path]).runs["strategy"].to_list() == ["fsdp"]


def test_rows_that_cannot_be_read_are_counted_and_the_others_kept(tmp_path):
    good, bad, into = tmp_path / "good.csv", tmp_path / "bad.csv", tmp_path / "tables"
    header = "num_gpus,samples_per_s,batch\n"
    good.write_text(f"{header}8,20,64\n")
    bad.write_text(f"{header}8,-1,64\n8,40,64\n8,40\n16,nan,64\n")
    report = ingest([bad, good], into=into)
    assert pl.read_parquet(into / "runs.parquet")["samples_per_s"].to_list() == [40.0, 20.0]
    assert report.num_runs_rejected == 3
    (rows,) = (each for each in report.rejected.rows() if each["where"] == "bad.csv" and each["count"] == 3)
    assert re.search(r"row 1.*samples_per_s.*-1", rows["first"])
    bad.write_text(f"{header}8,-1,64\n")
    with pytest.raises(DataError, match=r"bad\.csv: row 1"):
        ingest([bad])


@pytest.mark.parametrize("text", ["a", "=b", "a=", "a=b,a=c"])
def test_columns_are_stated_as_ours_and_theirs(text):
    with pytest.raises(DataError, match="expected OURS=THEIRS once"):
        columns_of(text.split(","))


@pytest.mark.parametrize(
    ("ours", "expected"), [("colour", "time_to_train_s.*num_accelerators"), ("gpus", "num_accelerators$")]
)
def test_a_stated_column_that_nothing_reads_is_refused(mine, ours, expected):
    path = mine("num_gpus,samples_per_s,kind\n8,20,64\n")
    with pytest.raises(DataError, match=rf"'{ours}'=kind.*{expected}"):
        exported(path, {ours: "kind"})


def test_runs_are_imported_as_rows_of_the_tables(tmp_path):
    report = ingest(
        [EXAMPLES / "wandb-runs.csv"],
        workload="resnet",
        accelerator="NVIDIA A100-SXM4-80GB",
        into=tmp_path,
    )
    runs = pl.read_parquet(tmp_path / "runs.parquet")
    assert runs["num_accelerators"].to_list() == SIZES
    assert runs["samples_per_s"].to_list() == RATES
    assert set(runs["accelerator"]) == {"a100-sxm4-80gb"}
    assert set(runs["origin"]) == {"imported"}
    assert runs["global_batch_samples"].to_list() == [256] * 8
    assert report.scores["score_s"].null_count() == len(report.scores) == 4


def written(name, frame, path):
    with path.open("wb") as file:
        next(each for each in WRITERS if each.name == name).write(frame, file)
    return path


FRAME = pl.DataFrame(
    {
        "run_id": ["a", "b", "c"],
        "campaign": ["v4.1"] * 3,
        "submitter": ['a "quoted"\\ name\nin two lines', "b", None],
        "system": ["s->t", "s", "s"],
        "workload": ["bert"] * 3,
        "accelerator": ["h100-sxm5-80gb"] * 3,
        "num_accelerators": [8, 16, None],
        "time_to_train_s": [300.5, 160.25, 1.0],
        "energy_j": [None, 2e6, float("nan")],
    },
    schema_overrides={"num_accelerators": pl.Int64},
)


def test_what_is_written_for_extra_p_is_read_back(tmp_path):
    path = written("extra-p", FRAME, tmp_path / "runs.jsonl")
    found = read_measurements(path, workload="bert")
    assert found.num_accelerators.tolist() == [8.0, 16.0]
    assert found.time_s.tolist() == [300.5, 160.25]


def test_extra_p_itself_reads_what_is_written(tmp_path):
    """Needs Extra-P 4.2 in an interpreter of its own, for it wants NumPy 1: docs/reference/interop.md."""
    python = environ.get("EQUIPOISE_EXTRAP_PYTHON")
    if not python:
        pytest.skip("Extra-P is not at hand: EQUIPOISE_EXTRAP_PYTHON names an interpreter that has it")
    path = written("extra-p", FRAME, tmp_path / "runs.jsonl")
    probe = (
        "import sys, json\n"
        "from extrap.fileio.file_reader.jsonlines_file_reader import read_jsonlines_file as read\n"
        "found = read(sys.argv[1])\n"
        "medians = {str(metric): [[str(one.coordinate), one.median] for one in each]\n"
        "        for (_, metric), each in found.measurements.items()}\n"
        "print(json.dumps(medians))\n"
    )
    done = subprocess.run([python, "-c", probe, path], capture_output=True, text=True, check=True)
    medians = json.loads(done.stdout.splitlines()[-1])
    assert medians == {"time_to_train_s": [["(8,)", 300.5], ["(16,)", 160.25]]}
    published = embedded.load().runs.filter(
        workload="bert", accelerator="h100-sxm5-80gb", campaign="v4.1", status="success"
    )
    path = written("extra-p", published, tmp_path / "bert.jsonl")
    done = subprocess.run([python, "-c", probe, path], capture_output=True, text=True, check=True)
    medians = json.loads(done.stdout.splitlines()[-1])
    assert len(medians["time_to_train_s"]) == published["num_accelerators"].n_unique()


def test_groups_at_different_sizes_are_not_mixed_for_extra_p(tmp_path):
    other = FRAME.head(1).with_columns(workload=pl.lit("resnet"))
    with pytest.raises(UsageError, match="choose with --workload, --accelerator and --round"):
        written("extra-p", pl.concat([FRAME, other]), tmp_path / "runs.jsonl")


def test_prometheus_reads_what_is_written(tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    text = written("prometheus", FRAME, tmp_path / "runs.prom").read_text()
    families = {each.name: each for each in parser.text_string_to_metric_families(text)}
    assert set(families) == {"equipoise_time_to_train_seconds", "equipoise_energy_joules"}
    times = families["equipoise_time_to_train_seconds"]
    assert times.type == "gauge"
    assert "run_start" in times.documentation
    assert [sample.value for sample in times.samples] == [300.5, 160.25, 1.0]
    assert times.samples[0].labels["submitter"] == 'a "quoted"\\ name\nin two lines'
    assert "num_accelerators" not in times.samples[2].labels


def test_prometheus_text_of_the_embedded_runs_is_read_whole(tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    runs = embedded.load().runs.head(300)
    text = written("prometheus", runs, tmp_path / "runs.prom").read_text()
    samples = {
        (sample.name, sample.labels["run_id"]): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert runs.height == 300
    times_s = [samples.get(("equipoise_time_to_train_seconds", run_id)) for run_id in runs["run_id"]]
    assert times_s == runs["time_to_train_s"].to_list()


@pytest.mark.parametrize(
    ("column", "cells", "seconds"),
    [
        ("step time", ("7300 ms", "3.7s"), (7.3, 3.7)),
        ("Iteration Time", ("950ms", "480ms"), (0.95, 0.48)),
        ("time", ("1.5 h", "50 min"), (5400.0, 3000.0)),
        ("Training Time", ("1d12h", "20 hours"), (129_600.0, 72_000.0)),
    ],
)
def test_a_unit_may_stand_in_every_cell_in_place_of_the_name(column, cells, seconds, mine):
    path = mine(f"num_gpus,{column}\n8,{cells[0]}\n16,{cells[1]}\n")
    assert read_measurements(path).time_s.tolist() == pytest.approx(seconds)


@pytest.mark.parametrize("cells", [("7300", "3700 ms"), ("12:30:05", "13:30:05")])
def test_times_without_a_unit_in_some_cell_are_not_read(cells, mine):
    for column in ("step time", "time"):
        with pytest.raises(DataError, match=column.replace(" ", "_")):
            read_measurements(mine(f"num_gpus,{column}\n8,{cells[0]}\n16,{cells[1]}\n"))


def test_the_time_of_a_step_is_not_taken_for_that_of_the_training_beside_it(mine):
    path = mine("num_gpus,step time,elapsed\n8,7300 ms,2 h\n16,3.7s,1 h\n")
    assert read_measurements(path).time_s.tolist() == [7.3, 3.7]


def test_a_column_that_states_its_unit_is_not_given_another(tmp_path):
    (tmp_path / "mine.csv").write_text("num_gpus,step_ms\n1,100\n2,52\n")
    found = exported(tmp_path / "mine.csv")
    assert [row.cells["num_accelerators"] for row in found.rows] == ["1", "2"]
    with pytest.raises(DataError, match=r"step_s=step_ms: .*unit"):
        exported(tmp_path / "mine.csv", {"step_s": "step_ms"})


def test_imported_rows_have_the_slug_of_a_short_name(mine):
    path = mine("workload,accelerator,num_accelerators,step_s,global_batch_samples\ngpt2,rtx4090,2,0.5,16\n")
    report = ingest([path])
    assert report.runs["accelerator"].to_list() == ["rtx-4090-pcie-24gb"]
    assert not report.unknown_names


def test_a_name_that_is_not_known_is_kept_with_the_ones_that_may_be_meant(mine):
    path = mine("workload,accelerator,num_accelerators,samples_per_s\nbrt,h10,2,50\nqqqqqq,h100,2,50\n")
    report = ingest([path])
    near = {each.raw: each.near for each in report.unknown_names}
    assert near.keys() == {"brt", "h10", "qqqqqq"}
    assert (near["brt"][0], near["h10"][0], near["qqqqqq"]) == ("bert", "h100-sxm5-80gb", ())


def test_runs_of_a_tracker_that_did_not_finish_are_counted_as_rejected(mine):
    path = mine(
        "Name,State,Created,Runtime,world_size,train_samples_per_second\n"
        "a,finished,2026-01-01,100,8,100\nb,finished,2026-01-01,100,16,190\n"
        "c,crashed,2026-01-01,100,32,300\nd,running,2026-01-01,100,32,300\ne,finished,2026-01-01,100,32,\n",
        "wandb.csv",
    )
    found = ingest([path])
    assert (found.num_runs_kept, found.num_runs_rejected) == (2, 3)
    assert found.rejected.kinds["unfinished_run"].count == 3


def test_an_imported_run_states_its_line_in_the_file(mine):
    path = mine(
        "Name,Notes,State,Created,Runtime,world_size,train_samples_per_second\n"
        'a,"two\nlines",finished,2026-01-01,100,8,100\n\nb,,crashed,2026-01-01,100,16,190\n'
        'c,,finished,2026-01-01,100,32,"1,300"\n',
        "wandb.csv",
    )
    found = ingest([path])
    assert found.runs["source_line"].to_list() == [2, 6]
    assert found.runs["samples_per_s"].to_list() == [100, 1300]
    path = mine('\n{"num_accelerators": 8, "samples_per_s": 412.5}\n', "mine.jsonl")
    assert ingest([path]).runs["source_line"].to_list() == [2]


def test_an_import_keeps_what_a_run_of_slurm_ended_as(mine):
    path = mine(
        "JobID,num_gpus,time_h,State\n1,8,10,COMPLETED\n2,16,5,TIMEOUT\n3,16,6,CANCELLED by 0\n", "sacct.csv"
    )
    statuses = ingest([path]).runs["status"].to_list()
    assert statuses == ["success", "timeout", "cancelled by 0"]


def test_rows_of_the_tables_have_the_rates_that_a_prediction_takes(mine):
    """64 samples in half a second are 128 a second; a row whose columns are far apart is refused by its place."""
    path = mine(
        "gpus,step_s,samples_per_s,tokens_per_s,global_batch_size,seq_len\n"
        "1,0.5,,,64,1000\n2,0.4,160,,64,1000\n4,0.3,,200000,64,1000\n8,0.3,900,,64,1000\n"
    )
    found = ingest([path])
    assert found.runs["samples_per_s"].to_list() == pytest.approx([128, 160, 200])
    assert found.runs["run_id"].to_list() == ["mine/1", "mine/2", "mine/3"]
    refused = found.rejected.kinds["unreadable_row"]
    assert refused.count == 1
    assert re.search(r"row 4.*213\.3.*step_s.*900.*samples_per_s|row 4.*900.*213\.3", refused.first.detail)
    with pytest.raises(DataError, match="row 4"):
        read_measurements(path)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    assert read_measurements(path).time_s.tolist() == pytest.approx([1e6 / 128, 1e6 / 160, 1e6 / 200])


def test_steps_per_second_are_of_the_global_batch(mine):
    """5 and 4 steps a second of 64 samples: 320 and 256 samples."""
    path = mine("gpus,it/s,global_batch_size\n8,5,64\n4,4,64\n")
    found = ingest([path])
    assert found.runs["samples_per_s"].to_list() == pytest.approx([320, 256])
    path.write_text("gpus,it/s,global_batch_size\n8,0,64\n4,4,64\n")
    refused = ingest([path]).rejected.kinds["unreadable_row"]
    assert (refused.count, "it/s" in refused.first.detail) == (1, True)


@pytest.mark.parametrize(
    ("name", "ours", "value"),
    [
        ("tokens_per_sec", "tokens_per_s", 10.0),
        ("Throughput [tokens/s]", "tokens_per_s", 10.0),
        ("tok/s", "tokens_per_s", 10.0),
        ("images/sec", "samples_per_s", 10.0),
        ("sequences_per_second", "samples_per_s", 10.0),
        ("tokens/GPU/s", "tokens_per_s", 80.0),  # of one of 8
        ("img/sec/GPU", "samples_per_s", 80.0),
        ("elapsed time per iteration (ms)", "step_ms", 10.0),
        ("s/it", "step_s", 10.0),
        ("it/s", "step_s", 0.1),
        ("iterations per second", "step_s", 0.1),
        ("iter_time_sec", "step_s", 10.0),
        ("wall time (min)", "time_to_train_min", 10.0),
        ("train_runtime", "time_to_train_s", 10.0),
    ],
)
def test_a_time_by_the_words_of_other_programs(mine, name, ours, value):
    path = mine(f"GPU count,{name}\n8,10\n")
    (row,) = exported(path).rows
    assert (row.cells["num_accelerators"], float(row.cells[ours])) == ("8", value)


def test_a_name_that_is_known_best_counts_before_others(mine):
    """Trainer logs a rate of its own beside that of a callback; a name of many is none where two have it."""
    path = mine("gpus,samples/s,images/sec\n8,10,20\n")
    assert exported(path).rows[0].cells["samples_per_s"] == "10"
    path.write_text("gpus,img/s,images/sec\n8,10,20\n")
    assert "samples_per_s" not in exported(path).header


@pytest.mark.parametrize(
    ("header", "cells", "found"),
    [
        ("GPU,dtype,max_seq_length", "H100,bfloat16,4096", ("H100", "bfloat16", "4096")),
        ("gpu_type,mixed_precision,context_length", "A100,bf16,4096", ("A100", "bf16", "4096")),
        ("gpu,mixed_precision,seq", "0,no,4096", (None, None, "4096")),  # an index, and accelerate's word
        (
            "gpu,dtype,seq",
            "4090,bf16,2k",
            ("4090", "bf16", "2048.0"),
        ),  # a card, and as questions write lengths
        ("gpu,dtype,seq", "8,bf16,2048", (None, "bf16", "2048")),
    ],
)
def test_what_a_row_is_of_by_other_names(mine, header, cells, found):
    path = mine(f"gpus,step_s,{header}\n8,1.5,{cells}\n")
    (row,) = exported(path).rows
    assert tuple(row.cells.get(each) for each in ("accelerator", "precision", "sequence_tokens")) == found


def test_a_part_of_an_export_has_its_columns_behind_the_same_prefixes(mine):
    path = mine(
        "run,params.gpus,train/samples_per_second,eval/samples_per_second,usd/gpus,minutes\n"
        "a,1,400,900,2,3\nb,2,780,1800,2,3\n",
        "part.csv",
    )
    found = read_measurements(path)
    assert found.num_accelerators.tolist() == [1, 2]
    assert np.allclose(1e6 / found.time_s, [400, 780])
    path.write_text("gpus,samples_per_s,metrics.samples_per_s\n1,400,7\n2,780,7\n")
    assert np.allclose(1e6 / read_measurements(path).time_s, [400, 780])
    path.write_text("gpus,metrics.samples_per_s,train/samples_per_second\n1,400,7\n2,780,7\n")
    with pytest.raises(DataError, match=r"train/samples_per_second"):
        read_measurements(path)


def test_the_length_that_a_trainer_cuts_samples_to_is_of_the_run(tmp_path):
    """TRL's SFTConfig of 2024, as Weights & Biases and MLflow write it."""
    path = tmp_path / "wandb.csv"
    for length in ("config/max_seq_length", "config.max_seq_length"):
        path.write_text(
            f"Name,State,Created,Runtime,world_size,{length},samples_per_s\na,finished,x,9,8,2048,4\n"
        )
        assert exported(path).rows[0].cells["sequence_tokens"] == "2048"


def test_settings_of_a_model_in_a_tracker_are_not_of_the_run(mine):
    """transformers' configuration has the dtype of the weights and a length of texts that it generates."""
    path = mine(
        "Name,State,Created,Runtime,world_size,config.dtype,config.max_length,train/tokens_per_sec\n"
        "a,finished,x,9,8,float32,20,400\n",
        "wandb.csv",
    )
    found = exported(path)
    assert found.rows[0].cells["tokens_per_s"] == "400"
    assert not {"precision", "sequence_tokens"} & {*found.header}


@pytest.mark.parametrize(
    ("header", "cells", "batch"),
    [
        ("per_device_train_batch_size,gradient_accumulation_steps", "4,2", "64"),  # 4 x 2 x 8
        ("micro batch size,grad_accum,tp,pp", "1,16,2,2", "32"),  # 1 x 16 x 8 / 4
        ("micro batch size,grad_accum,tp", "1,16,3", ""),
        ("micro batch size,grad_accum", "1,", ""),
        ("batch_size_per_gpu,grad_accum,global_batch_size", "1,1,99", "99"),
    ],
)
def test_the_global_batch_by_its_factors(mine, header, cells, batch):
    path = mine(f"gpus,step_s,{header}\n8,1.5,{cells}\n")
    assert exported(path).rows[0].cells["global_batch_samples"] == batch


TIMES = "gpus,time_h\n1,10\n2,5.2\n"


@pytest.fixture
def folders(tmp_path):
    """Two folders, each with a file of the same name."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "runs.csv").write_text(TIMES)
    return tmp_path


def test_files_of_one_name_are_told_apart_by_their_folders(folders):
    found = ingest([folders / "one" / "runs.csv", folders / "two" / "runs.csv"], into=folders / "kept")
    names = [f"{folder}/runs.csv/{number}" for folder in ("one", "two") for number in (1, 2)]
    assert found.runs["run_id"].to_list() == names
    assert read_measurements(folders / "kept").run_ids == tuple(names)
    with pytest.raises(UsageError, match="twice"):
        ingest([folders / "one" / "runs.csv", folders / "two" / ".." / "one" / "runs.csv"])


def test_a_run_that_two_exports_state_is_refused_by_their_names(folders):
    kept = ingest(folders / "one" / "runs.csv").runs
    for name in ("one", "two"):
        kept.write_csv(folders / name / "same.csv")
    with pytest.raises(DataError, match=r"two/same\.csv.*'runs/1'.*one/same\.csv"):
        ingest([folders / "one" / "same.csv", folders / "two" / "same.csv"], into=folders / "kept")
    assert not (folders / "kept").exists()


def test_a_folder_of_exports_is_read_as_its_files_are(folders):
    assert ingest(folders / "one").runs["run_id"].to_list() == ["runs/1", "runs/2"]
    (folders / "one" / "result_0.txt").touch()
    assert not len(ingest(folders / "one").runs)  # a folder of logs, with a table besides


def test_a_list_of_json_is_refused_with_what_makes_lines_of_it(mine):
    path = mine(' [\n {"gpus": 8, "time_h": 1}]', "mine.json")
    with pytest.raises(DataError, match="jq"):
        ingest(path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_runs_that_were_exported_are_read_back_whole(tmp_path, suffix):
    runs = embedded.load().runs.filter(campaign="v2.0", workload="resnet50")
    path = tmp_path / f"runs.{suffix}"
    {"csv": runs.write_csv, "jsonl": runs.write_ndjson, "parquet": runs.write_parquet}[suffix](path)
    read = ingest(path).runs
    assert len(read) == len(runs)
    counted = ["samples_to_target", "eval_s", "eval_outside_s", "train_block_s", "init_s", "time_to_train_s"]
    texts = ["division", "availability", "submitter", "system"]
    key = ["system", "submitter", *counted]
    for name in (*counted, *texts):
        assert runs[name].null_count() < len(runs), name
        assert read.sort(key)[name].to_list() == pytest.approx(runs.sort(key)[name].to_list()), name


def test_times_that_no_training_takes_leave_the_other_rows(mine):
    path = mine("num_accelerators,time_to_train_h\n1,1e308\n2,20\n4,10\n8,1e-320\n", "own.csv")
    read = ingest([path], workload="bert", accelerator="a100")
    assert read.runs["num_accelerators"].to_list() == [2, 4]
    assert read.num_runs_rejected == 2
