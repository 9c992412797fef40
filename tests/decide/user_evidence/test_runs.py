"""A folder of the user's own runs, by set-up."""

import pytest
from msgspec.structs import replace

from equipoise.bench.tables import run_row, write
from equipoise.decide.evidence import UserRun
from equipoise.decide.user_evidence.runs import refuse_impossible, user_runs
from equipoise.errors import DataError
from equipoise.spec.hardware import accelerator
from equipoise.spec.workload import workload


def _row(run_id, size, rate, workload="mlp", status="success"):
    return run_row(
        {
            "run_id": run_id,
            "campaign": "mine",
            "workload": workload,
            "accelerator": "a100-sxm4-80gb",
            "num_accelerators": size,
            "num_nodes": 1,
            "strategy": None if size == 1 else "ddp",
            "global_batch_samples": 64,
            "status": status,
            "samples_per_s": rate,
        }
    )


def test_runs_of_one_set_up_are_one_record_with_their_median(tmp_path):
    rows = [_row("a", 1, 100.0), _row("b", 1, 110.0), _row("c", 1, 90.0), _row("d", 2, 150.0)]
    write(tmp_path, rows, [])
    found = user_runs(tmp_path, "mlp", ["a100-sxm4-80gb"])
    assert [(each.num_accelerators, each.samples_per_s) for each in found.set_ups] == [(1, 100.0), (2, 150.0)]
    assert len(found.set_ups[0].run_ids) == 3


def test_failed_runs_and_other_workloads_do_not_count(tmp_path):
    rows = [_row("a", 1, 100.0), _row("b", 1, 1.0, status="failed: hung"), _row("c", 1, 5.0, workload="bert")]
    write(tmp_path, rows, [])
    found = user_runs(tmp_path, "mlp", ["a100-sxm4-80gb"])
    assert [each.samples_per_s for each in found.set_ups] == [100.0]
    assert found.num_other == 1


def test_runs_of_one_workload_are_taken_for_the_function_asked(tmp_path):
    write(tmp_path, [_row("a", 1, 100.0, workload="Sequential")], [])
    found = user_runs(tmp_path, "train:model", [])
    assert len(found.set_ups) == 1
    assert "Sequential" in found.notes[0]


def test_steps_in_a_file_of_measurements_count_too(tmp_path):
    content = "num_accelerators,samples_per_s,global_batch_samples\n1,100,32\n2,180,64\n"
    (tmp_path / "mine.csv").write_text(content)
    found = user_runs(tmp_path, "mlp", ["a100-sxm4-80gb"])
    rates = {each.num_accelerators: each.samples_per_s for each in found.set_ups}
    assert rates == pytest.approx({1: 100.0, 2: 180.0})


def test_an_empty_folder_is_refused_with_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"runs\.parquet.*bench --out"):
        user_runs(tmp_path, "mlp", [])


def test_a_run_above_the_peak_of_its_accelerators_is_refused():
    """ResNet-50: 4.1 GFLOP forward at 2 FLOP a multiply-add is 8.2, three times that trained; A100: 312 TFLOP/s."""
    run = UserRun(
        accelerator="a100-sxm4-80gb",
        num_accelerators=8,
        strategy="ddp",
        precision="bf16",
        global_batch_samples=1024,
        samples_per_s=8 * 312e12 * 6.5 / (3 * 8.2e9),
        log_sd=0.02,
        run_ids=("mine/1",),
    )
    chips = {"a100-sxm4-80gb": accelerator("a100-sxm4-80gb")}
    with pytest.raises(DataError, match=r"--runs mine: run mine/1: .* 6[45]\d % MFU.*samples_per_s"):
        refuse_impossible([run], workload("resnet50"), chips, where="mine")
    refuse_impossible(
        [replace(run, samples_per_s=run.samples_per_s / 13)], workload("resnet50"), chips, where="mine"
    )


def test_steps_of_no_known_batch_are_said_to_be_left_out(tmp_path):
    (tmp_path / "mine.csv").write_text("num_accelerators,samples_per_s\n1,100\n2,180\n")
    found = user_runs(tmp_path, "mlp", ["a100-sxm4-80gb"])
    assert found.set_ups == ()
    (words,) = found.notes
    assert "mine.csv" in words
    assert "global_batch_samples" in words
