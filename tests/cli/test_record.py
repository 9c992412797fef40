"""`record` as its users meet it: from a prediction to its error."""

import json
import re

import polars as pl
import pytest
from command_line import in_process


@pytest.fixture
def equipoise(tmp_path):
    """A function that runs a verb with a ledger of its own."""

    def run(*arguments):
        return in_process(*arguments, cwd=tmp_path, env={"EQUIPOISE_LEDGER": "ledger.jsonl"})

    return run


TIMES = "num_accelerators,time_to_train_s\n1,1010\n2,510\n4,260\n8,135\n"


def test_a_prediction_is_kept_and_compared_with_what_is_measured(equipoise, tmp_path):
    (tmp_path / "mine.csv").write_text(TIMES)
    assert equipoise("predict", "--from", "mine.csv", "--at", "16", "--json").returncode == 0
    assert not (tmp_path / "ledger.jsonl").exists()  # nobody asked
    shown = json.loads(equipoise("predict", "--from", "mine.csv", "--at", "16", "--record", "--json").stdout)
    predicted_s = shown["predictions"][0]["time_s"]["value"]
    (kept,) = json.loads(equipoise("record", "--json").stdout)["predictions"]
    assert kept["value"] == pytest.approx(predicted_s, rel=1e-5)
    assert kept["measured"] is None

    added = equipoise("record", "add", "100 s", "--for", kept["id"][:5], "--json")
    assert (added.returncode, added.stderr) == (0, "")
    found = json.loads(added.stdout)
    assert found["num_added"] == 1
    assert found["predictions"][0]["error"] == pytest.approx(predicted_s / 100 - 1, rel=1e-3)
    assert found["running"]["num_measured"] == 1
    text = equipoise("record").stdout
    assert "Measured 1 of 1" in text
    assert max(map(len, text.splitlines())) <= 80


def test_scripts_that_cannot_be_written_leave_nothing_in_the_ledger(equipoise, tmp_path):
    """In /proc nobody makes a folder, not even the superuser."""
    asked = ("gpt2", "--tokens", "10G", "--accelerator", "h100")
    ended = equipoise("advise", *asked, "--launch", "/proc/equipoise", "--record")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "/proc/equipoise" in ended.stderr
    assert not (tmp_path / "ledger.jsonl").exists()
    assert equipoise("advise", *asked, "--launch", "new/scripts").returncode == 0
    assert (tmp_path / "new" / "scripts").is_dir()
    assert (tmp_path / "ledger.jsonl").exists()


def test_predictions_of_which_nothing_was_measured_say_what_they_are_of(equipoise):
    asked = (
        "nemotron_35_lightning",
        "--tokens",
        "10T",
        "--accelerator",
        "h100",
        "--at",
        "1024",
        "--record",
        "--json",
    )
    assert equipoise("plan", *asked).returncode == 0
    assert "nemotron_35_lightning" in equipoise("record").stdout


def test_a_file_of_measured_times_is_no_folder_of_runs(equipoise, tmp_path):
    (tmp_path / "mine.csv").write_text(TIMES)
    refused = equipoise("record", "--runs", "mine.csv")
    assert refused.returncode == 2
    assert re.search(r"--runs mine\.csv: .*folder.*record add", refused.stderr)


def test_runs_of_a_folder_count_once(equipoise, tmp_path):
    (tmp_path / "ledger.jsonl").write_text(
        json.dumps(
            {
                "schema": "equipoise.ledger/1",
                "line": "prediction",
                "made": "2026-03-02T09:14:05+00:00",
                "id": "5b1f0c2e",
                "verb": "plan",
                "workload": "resnet50",
                "accelerator": "a100-sxm4-80gb",
                "num_accelerators": 8,
                "quantity": "samples_per_s",
                "value": 2500.0,
                "low": 2000.0,
                "high": 3000.0,
                "kind": "modelled",
                "strategy": None,
                "global_batch_samples": 256,
                "level": 0.9,
                "ref": "",
            }
        )
        + "\n"
    )
    pl.DataFrame(
        {
            "workload": ["resnet50"] * 3,
            "num_accelerators": [8, 8, 4],
            "samples_per_s": [2400.0, 2600.0, 1300.0],
            "global_batch_samples": [256] * 3,
        }
    ).write_csv(tmp_path / "runs.csv")
    assert (
        equipoise("ingest", "runs.csv", "--into", "kept/one", "--accelerator", "a100-sxm4-80gb").returncode
        == 0
    )
    # A folder of such folders, as `advise --runs` takes it, or one itself.
    assert json.loads(equipoise("record", "--runs", "kept", "--json").stdout)["num_added"] == 2
    again = json.loads(equipoise("record", "--runs", "kept/one", "--json").stdout)
    assert again["num_added"] == 0
    assert again["predictions"][0]["measured"] == 2500.0


def test_filters_that_leave_no_prediction_are_refused_with_what_there_is(equipoise):
    about = ("--workload", "bert", "--accelerator", "h100-sxm5-80gb")
    assert equipoise("predict", *about, "--at", "64", "--record", "--json").returncode == 0
    assert json.loads(equipoise("record", *about, "--json").stdout)["predictions"]
    refused = equipoise("record", "--workload", "resnet", "--accelerator", "tpu-v5p")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.search(r"'resnet'.*'tpu-v5p'.* bert; .* h100-sxm5-80gb$", refused.stderr.strip())


TRAININGS = "workload,accelerator,gpus,Time (h){extra}\n" + "".join(
    f"bert,h100,{size},{hours}{{value}}\n" for size, hours in ((1, 10), (2, 5.2), (4, 2.8), (8, 1.6))
)
BERT = ("--accelerator", "h100", "--record")


def trainings(extra="", value=""):
    return TRAININGS.format(extra=extra, value=value)


@pytest.mark.parametrize(
    "asked",
    [
        ("predict", "--workload", "bert", *BERT, "--at", "8", "--from", "kept"),
        ("predict", "--workload", "bert", *BERT, "--at", "8", "--from", "kept/runs.parquet"),
        ("predict", "--workload", "bert", *BERT, "--at", "8", "--from", "kept.csv"),
        ("predict", "--workload", "bert", *BERT, "--at", "8", "--law", "amdahl", "--from", "mine.csv"),
        ("advise", "bert", *BERT, "--at", "8", "--runs", "kept"),
    ],
)
def test_trainings_do_not_test_what_was_predicted_from_them(equipoise, tmp_path, asked):
    (tmp_path / "mine.csv").write_text(trainings())
    assert equipoise("ingest", "mine.csv", "--into", "kept").returncode == 0
    assert equipoise("export", "runs", "--data", "kept", "--out", "kept.csv").returncode == 0
    assert equipoise(*asked).returncode == 0
    (kept,) = json.loads(equipoise("record", "--runs", "kept", "--json").stdout)["predictions"]
    assert (kept["num_accelerators"], kept["measured"]) == (8, None)
    (line,) = map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())
    assert line["from_runs"] == ["mine/4", "mine/3", "mine/2", "mine/1"]


def test_a_later_training_with_the_user_s_batch_tests_the_prediction(equipoise, tmp_path):
    (tmp_path / "mine.csv").write_text(trainings(",global_batch_size", ",256"))
    (tmp_path / "later.csv").write_text(
        "workload,accelerator,gpus,Time (h),global_batch_size\nbert,h100,16,0.95,256\nbert,h100,16,0.5,512\n"
    )
    asked = ("--from", "mine.csv", "--at", "16")
    assert equipoise("predict", "--workload", "bert", *BERT, *asked).returncode == 0
    assert equipoise("ingest", "later.csv", "--into", "kept").returncode == 0
    (kept,) = json.loads(equipoise("record", "--runs", "kept", "--json").stdout)["predictions"]
    assert (kept["strategy"], kept["global_batch_samples"]) == (None, 256)
    assert kept["measured"] == pytest.approx(0.95 * 3600)
