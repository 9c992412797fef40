"""`predict` and `backtest` as their users and scripts meet them: real processes, exit codes, streams, files."""

import re

import polars as pl
import pytest
from command_line import document, in_process

from equipoise.cli.evidence import _rounds

H200 = ("--workload", "llama2_70b_lora", "--accelerator", "h200-sxm5-141gb")
# T = 10 s + 1000 s / N, in minutes.
AMDAHL = "num_accelerators,time_to_train_min\n" + "".join(
    f"{size},{(10 + 1000 / size) / 60!r}\n" for size in (1, 2, 4, 8, 16, 32)
)


def test_predict_says_what_scripts_rely_on(tmp_path):
    ended = in_process("predict", *H200, "--at", "16,64", "--json", "--json-out", "a.json", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = document(ended)
    assert list(found)[:4] == ["schema", "equipoise", "dataset", "question"]
    assert found["schema"] == "equipoise.predict/2"
    assert [each["num_accelerators"] for each in found["predictions"]] == [16, 64]
    for each in found["predictions"]:
        assert {
            "id",
            "accelerator",
            "terms",
            "time_s",
            "usd",
            "in_domain",
            "outside",
            "estimates",
        } <= each.keys()
        assert 0 < each["time_s"]["low"] < each["time_s"]["value"] < each["time_s"]["high"]
        assert each["time_s"]["level"] == 0.9
    for each in found["equilibria"]:
        assert {
            "kind",
            "num_accelerators",
            "low",
            "high",
            "limited_by",
            "efficiency",
            "time_s",
        } <= each.keys()
        if each["next_step"] is not None:
            assert {"gain_s", "gain_fraction", "accelerator_hours_factor"} <= each["next_step"].keys()
    assert {each["kind"] for each in found["equilibria"]} == {"balance", "marginal", "floor", "peak"}
    assert found["law"]["name"] == "pooled"
    published = [each for each in found["evidence"] if each["kind"] == "published"]
    assert published
    for each in published:
        assert each["source_uri"]
    assert (tmp_path / "a.json").read_text() == ended.stdout


def test_predict_recovers_a_known_law_from_a_file(mine):
    found = document(
        in_process("predict", "--from", mine(AMDAHL), "--law", "amdahl", "--at", "8,64", "--json")
    )
    inside, beyond = found["predictions"]
    assert inside["time_s"]["value"] == pytest.approx(135.0, rel=0.01)
    assert beyond["time_s"]["value"] == pytest.approx(25.625, rel=0.02)
    assert beyond["time_s"]["low"] < 25.625 < beyond["time_s"]["high"]
    assert (inside["in_domain"], beyond["in_domain"]) == (True, False)
    assert found["law"]["values"] == pytest.approx({"serial_s": 10.0, "parallel_s": 1000.0}, rel=1e-3)
    # Nothing is known of a file's accelerator: no price, no power, no invented bill.
    assert (beyond["usd"], beyond["energy_j"], beyond["carbon_kg"]) == (None, None, None)
    assert {each["ref"] for each in found["evidence"]} == {"mine.csv"}


def test_rows_that_are_not_used_are_on_the_first_screen(mine):
    ended = in_process("predict", "--from", mine(AMDAHL + "64,failed\n"))
    assert ended.returncode == 0
    (line,) = [each for each in ended.stdout.splitlines() if each.startswith("Not used")]
    assert ": 1, " in " ".join(ended.stdout[ended.stdout.index(line) :].split())


def test_predict_combines_a_file_with_published_results(mine):
    path = mine("num_accelerators,time_to_train_min\n8,25\n16,14\n")
    found = document(in_process("predict", *H200, "--from", path, "--at", "32", "--json"))
    assert {each["kind"] for each in found["evidence"]} >= {"measured", "published"}
    assert found["round"] is None
    assert any(re.search(r"\d times .*published", note) for note in found["notes"])


def test_batch_deadline_and_price_change_the_answer():
    options = ("--global-batch", 64, "--price", 2.5, "--region", "france", "--deadline", "6min")
    found = document(in_process("predict", *H200, "--at", "64", *options, "--json"))
    (each,) = found["predictions"]
    assert each["usd"]["value"] == pytest.approx(2.5 * each["accelerator_hours"], rel=1e-4)
    assert each["carbon_kg"]["value"] == pytest.approx(each["energy_j"]["value"] / 3.6e6 * 0.056, rel=1e-4)
    (deadline,) = [one for one in each["constraints"] if one["name"] == "deadline_s"]
    assert deadline["limit"] == 360.0


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        ("8,10\n", "16 accelerators"),
        ("8,10\n16,6\n", "32 accelerators"),
        ("8,10\n16,4\n32,6\n", "repetitions"),
    ],
    ids=["one size", "two sizes", "no order"],
)
def test_too_little_evidence_is_exit_code_3_with_what_to_measure(rows, missing, mine):
    ended = in_process("predict", "--from", mine(f"num_accelerators,time_to_train_s\n{rows}"), "--json")
    found = document(ended, 3)
    assert found["schema"] == "equipoise.predict/2"
    assert found["status"] == "not_enough_evidence"
    assert "predictions" not in found
    assert missing in " ".join(found["missing"])


def test_an_accelerator_without_results_is_too_little_evidence_for_a_law():
    about = ("--workload", "gpt3", "--accelerator", "v100-sxm2-16gb", "--law", "usl")
    ended = in_process("predict", *about, "--json")
    assert document(ended, 3)["missing"]


def test_the_first_reason_to_stop_comes_first(mine):
    # Of 10 s + 1000 s / N the doubling from 50 still gains half of ideal: 100; balance lies at 100, floor at 101.
    text = AMDAHL + "".join(f"{size},{(10 + 1000 / size) / 60!r}\n" for size in (64, 128, 256, 512))
    printed = in_process("predict", "--from", mine(text), "--law", "amdahl", "--full").stdout
    first, *_ = re.findall(r"^- (Balance|Marginal|Floor|Peak)\b\D*(\d+)", printed, re.MULTILINE)
    assert first[0] in {"Balance", "Marginal"}
    assert 98 <= int(first[1]) <= 100


def test_backtest_says_what_scripts_rely_on():
    ended = in_process("backtest", "--rounds", "v0.6", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = document(ended)
    assert found["schema"] == "equipoise.backtest/1"
    assert found["protocol"] == "largest"
    promised = {"num_groups", "median_abs_error", "mean_abs_error", "p90_abs_error"}
    assert promised | {"coverage", "by_workload", "by_jump"} <= found["pooled_law"].keys()
    assert set(found["baselines"]) >= {"perfect", "power_law"}
    for each in found["baselines"].values():
        assert promised <= each.keys()
    assert len(found["groups"]) == found["pooled_law"]["num_groups"] > 0
    for each in found["groups"]:
        assert each["round"] == "v0.6"
        assert {"workload", "accelerator", "num_accelerators", "actual_s"} <= each.keys()
        assert each["low_s"] < each["predicted_s"] < each["high_s"]


def test_backtest_errors_are_those_of_its_groups():
    found = document(in_process("backtest", "--rounds", "v0.5,v0.6", "--json"))
    errors = sorted(abs(each["predicted_s"] / each["actual_s"] - 1) for each in found["groups"])
    middle = len(errors) // 2
    median = errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2
    assert found["pooled_law"]["median_abs_error"] == pytest.approx(median, rel=1e-3)
    held = [each["low_s"] <= each["actual_s"] <= each["high_s"] for each in found["groups"]]
    assert found["pooled_law"]["coverage"] == pytest.approx(sum(held) / len(held), rel=1e-5)


def test_backtest_of_advice_holds_numbers_against_those_found():
    found = document(in_process("backtest", "--rounds", "v0.5", "--advice", "--json"))
    assert (found["schema"], found["protocol"]) == ("equipoise.backtest/1", "advice")
    objectives = {"answer", "balance", "marginal", "floor", "cost"}
    assert {each["objective"] for each in found["errors"]} == objectives
    assert set(found["errors"][0]["methods"]) == {"equipoise", "largest_known", "perfect", "power_law"}
    # v0.5 has one group of three sizes: 4, 16 and 256 accelerators.
    assert {(each["largest_known"], each["largest"]) for each in found["groups"]} == {(16, 256)}


def test_rounds_are_named_as_the_data_have_them():
    assert _rounds("Internal, 4.1,V3.0", ["Internal", "v3.0", "v4.1"]) == ["Internal", "v4.1", "v3.0"]


def test_backtest_without_a_group_to_hold_out_is_too_little_evidence(tmp_path):
    ingested = in_process("export", "scores", "--out", tmp_path / "scores.parquet")
    assert ingested.returncode == 0
    assert in_process("export", "runs", "--out", tmp_path / "runs.parquet").returncode == 0
    for table in ("scores", "runs"):
        path = tmp_path / f"{table}.parquet"
        pl.read_parquet(path).filter(pl.col("workload") == "ncf").write_parquet(path)
    ended = in_process("backtest", "--data", tmp_path, "--json")
    assert document(ended, 3)["missing"]


def test_measured_times_that_no_law_follows_are_on_the_first_screen(mine):
    # 40 / n within a node of eight, across nodes twice as long: at 16 two laws meet.
    times = {1: 40.0, 2: 20.0, 4: 10.0, 8: 5.0, 16: 5.0, 32: 2.5}
    rows = "".join(f"{size},{hours * off}\n" for size, hours in times.items() for off in (0.99, 1.01))
    ended = in_process("predict", "--from", mine(f"gpus,time_to_train_h\n{rows}"))
    assert ended.returncode == 0
    (check,) = re.findall(r"^Check +(.*?\.)$", ended.stdout, re.MULTILINE | re.DOTALL)
    assert re.search(r"\b5 h on 16 ", " ".join(check.split()))
    assert "Check" not in in_process("predict", "--from", mine(AMDAHL)).stdout
