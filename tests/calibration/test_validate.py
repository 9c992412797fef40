"""Validation: folds that never see what they predict, errors by hand, verdicts in the row's own unit."""

import importlib.util
import json
import math
import re
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.calibration.accuracy import (
    PredictionTask,
    Split,
    cluster_weights,
    fold_names,
    half_width,
    held_out,
    memory_errors,
    regret,
    split_of,
    time_errors,
    unpredicted,
)
from equipoise.calibration.profiles import model_for
from equipoise.calibration.published import read_rows
from equipoise.calibration.published.executions import with_executions
from equipoise.calibration.step_rows import step_rows
from equipoise.calibration.validate import basis_of, validate
from equipoise.errors import DataError, EvidenceError, SpecError, UsageError
from equipoise.intervals import DEVIATE
from equipoise.spec.hardware import accelerator
from equipoise.spec.workload import workload

_spec = importlib.util.spec_from_file_location(
    "accuracy", Path(__file__).parents[2] / "benchmarks" / "accuracy.py"
)
accuracy = importlib.util.module_from_spec(_spec)
sys.modules["accuracy"] = accuracy  # its dataclasses look their module up
_spec.loader.exec_module(accuracy)

HEADER = "workload,layers,hidden,heads,hardware,n_gpus,tp,pp,precision,global_batch,micro_batch,seq,measured,unit\n"
STEP = "GPT,{layers},{hidden},16,DGX A100,{n_gpus},1,1,fp16,{batch},{micro},1024,{measured},{unit}\n"


def _step(**stated):
    usual = {"layers": 24, "hidden": 1024, "n_gpus": 8, "batch": 64, "micro": 4}
    return STEP.format(**(usual | {"measured": 1, "unit": "s/iteration"} | stated))


@pytest.fixture
def write(tmp_path):
    """A function that writes rows as a file and gives its path."""

    def writer(*rows, name="rows.csv"):
        path = tmp_path / name
        path.write_text(HEADER + "".join(rows))
        return path

    return writer


def test_errors_count_every_cluster_once():
    # Cluster 0: errors 10 % and 30 %, so 20 %; cluster 1: 0. Coverage: half of cluster 0, all of cluster 1.
    found = time_errors(
        measured_s=np.array([1.0, 1.0, 2.0]),
        predicted_s=np.array([1.1, 0.7, 2.0]),
        low_s=np.array([0.9, 0.6, 1.9]),
        high_s=np.array([1.2, 0.8, 2.1]),
        clusters=np.array([0, 0, 1]),
    )
    assert (found.num_executions, found.num_clusters) == (3, 2)
    assert found.mape == pytest.approx(0.1)
    assert found.median == pytest.approx(0.1)
    assert found.p90 == pytest.approx(0.18)
    assert found.coverage == pytest.approx(0.75)
    assert found.mape_by_execution == pytest.approx(0.4 / 3)
    assert found.median_by_execution == pytest.approx(0.1)


def test_weights_of_a_cluster_sum_to_one():
    assert cluster_weights(np.array([5, 7, 5, 5])).tolist() == pytest.approx([1 / 3, 1.0, 1 / 3, 1 / 3])


@pytest.mark.law
@pytest.mark.parametrize("num_clusters", [4, 8, 15, 30, 100])
def test_intervals_hold_at_their_level(num_clusters):
    # 4,000 new errors from the distribution of those seen: between 85 and 95 % lie inside 90 % intervals.
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(400):
        half = half_width(rng.normal(0, 0.1, num_clusters), np.arange(num_clusters), level=0.9)
        inside.append(np.abs(rng.normal(0, 0.1, 10)) <= half)
    assert 0.87 <= np.mean(inside) <= 0.95


def test_without_errors_there_is_no_interval():
    assert math.isnan(half_width(np.array([]), np.array([], dtype=int), level=0.9))


def test_rows_of_one_cluster_are_one_observation():
    one = half_width(np.array([0.1, 0.2]), np.array([0, 1]), level=0.9)
    repeated = half_width(np.array([0.1] * 9 + [0.2]), np.array([0] * 9 + [1]), level=0.9)
    assert repeated == pytest.approx(one)


@pytest.mark.law
@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=12))
def test_no_fold_is_predicted_by_models_that_saw_it(folds):
    rows = [_Timed(place) for place in range(len(folds))]
    seen = []

    def predict(fitted):
        seen.append(set(fitted.tolist()))
        found = unpredicted(len(rows))
        found.seconds[:] = 1.0
        return found

    task = PredictionTask(by="ones", rows=rows, reasons=(None,) * len(rows), predict=predict)
    aims = np.arange(len(rows))
    held_out(task, aims=aims, folds=folds, fitted=np.array([], dtype=int), progress=None)
    expected = [{i for i in aims if folds[i] != name} for name in dict.fromkeys(folds)]
    assert seen == expected


class _Timed:
    """What held_out reads of a row."""

    def __init__(self, cluster):
        self.seconds, self.cluster = 1.0, cluster
        self.model, self.hardware, self.num_accelerators, self.workload = None, "", 1, ""


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("none", None),
        ("leave-n_gpus-out", Split(column="n_gpus", is_half=False)),
        ("leave-half-of-bytes-out", Split(column="bytes", is_half=True)),
    ],
)
def test_splits_by_name(text, split):
    assert split_of(text) == split


@pytest.mark.parametrize("text", ["", "leave--out", "leave-n_gpus", "half", "leave-N GPUS-out"])
def test_what_is_no_split_is_refused(text):
    with pytest.raises(UsageError, match="expected none, leave-COLUMN-out"):
        split_of(text)


def test_folds_of_meant_values_and_of_columns_as_written(write):
    rows = with_executions(read_rows([write(_step(), _step(n_gpus=4, hidden=2048), _step(n_gpus=2))]))
    assert fold_names(rows, Split(column="n_gpus", is_half=False)) == ["8", "4", "2"]
    assert fold_names(rows, Split(column="hidden", is_half=False)) == ["1024", "2048", "1024"]
    assert fold_names(rows, Split(column="dp", is_half=False)) == ["8", "4", "2"]
    halves = fold_names(rows, Split(column="n_gpus", is_half=True))
    assert halves[0] == halves[2] != halves[1]
    with pytest.raises(UsageError, match=r"leave-colour-out: .*'n_gpus'"):
        fold_names(rows, Split(column="colour", is_half=False))
    with pytest.raises(EvidenceError, match="heads = 16"):
        fold_names(rows, Split(column="heads", is_half=False))


def test_every_row_has_a_verdict_in_its_own_unit(write):
    path = write(
        _step(measured=400, unit="ms/iteration"),
        _step(measured=20000, unit="tokens/s/GPU"),
        _step(measured="soon"),
        "Nobody's,,,,DGX A100,8,1,1,fp16,64,4,1024,1,s/iteration\n",
        _step(n_gpus=4, measured="0.7").replace("DGX A100", "abacus"),
    )
    found = validate([path])
    assert [each.row.row for each in found.verdicts] == [1, 2, 3, 4, 5]
    first, second, third, fourth, fifth = found.verdicts
    # One execution in two units: the same seconds, 65,536 tokens over 8 accelerators.
    assert second.predicted == pytest.approx(65_536 / 8 / (first.predicted / 1000), rel=1e-9)
    assert first.low < first.predicted < first.high
    assert second.low < second.predicted < second.high
    assert first.error == pytest.approx(abs(first.predicted / 400 - 1))
    assert third.predicted is third.low is third.error is None
    assert "measured: found 'soon'" in third.reason
    assert "catalogue" in fourth.reason
    assert "hardware 'abacus'" in fifth.reason
    assert (found.num_modelled, found.num_executions, found.errors.num_clusters) == (2, 1, 1)
    assert sum(count for _, count in found.reasons) == 3


def test_nothing_expressed_is_not_enough_evidence(write):
    with pytest.raises(EvidenceError, match="none of 1 row") as err:
        validate([write(_step(unit="parsecs"))])
    assert re.search("1 row: unit 'parsecs'", err.value.missing[0])
    with pytest.raises(EvidenceError, match="none of 0 rows"):
        validate([write()])


def test_every_reason_why_nothing_is_predicted_names_its_first_row_and_the_file_s_columns(tmp_path):
    path = tmp_path / "mine.csv"
    rows = (
        "bert,h100,8,",
        "bert,h100,,50",
        "bert,h100,-4,50",
        "bert,h100,8,x",
        "bert,nochip,8,50",
        "bert,h100,16,",
    )
    path.write_text("workload,accelerator,gpus,Step time (ms)\n" + "\n".join(rows) + "\n")
    with pytest.raises(EvidenceError, match="none of 6 rows") as err:
        validate([path])
    found = [
        re.match(r"(\d) rows?: (?:column (\w+): )?.*, row (\d)\)$", each).groups()
        for each in err.value.missing
    ]
    assert found == [
        ("2", "step_time_ms", "1"),
        ("1", "gpus", "2"),
        ("1", "gpus", "3"),
        ("1", "step_time_ms", "4"),
        ("1", None, "5"),
    ]


def test_a_run_whose_columns_contradict_each_other_is_not_predicted(mine):
    # 256 samples in half a second are 512 a second.
    path = mine(
        "workload,accelerator,gpus,step_s,samples_per_s,global_batch_size\n"
        "bert,h100,8,0.5,520,256\nbert,h100,8,0.5,100,256\n"
    )
    agreeing, contradicting = validate([path]).verdicts
    assert agreeing.predicted > 0
    assert re.search(r"512 by step_s.*100 by samples_per_s", contradicting.reason)


def test_json_lines_are_validated_as_the_same_rows_of_csv(write, tmp_path, mine):
    runs = mine(
        '{"workload": "bert", "accelerator": "h100", "gpus": 8, "step_s": 0.5, "global_batch_size": 256}\n',
        "runs.jsonl",
    )
    table = mine("workload,accelerator,gpus,step_s,global_batch_size\nbert,h100,8,0.5,256\n", "runs.csv")
    published = write(_step())
    lines = tmp_path / "rows.jsonl"
    names, cells = (line.split(",") for line in published.read_text().splitlines())
    lines.write_text(json.dumps(dict(zip(names, cells, strict=True))) + "\n")
    for one, other in ((runs, table), (lines, published)):
        assert validate([one]).verdicts[0].predicted == validate([other]).verdicts[0].predicted > 0
    runs.write_text(f"[{runs.read_text()}]")
    with pytest.raises(DataError, match="jq"):
        validate([runs])


def test_calibration_on_the_tested_file_is_called_in_sample(write):
    rows = [_step(n_gpus=n, batch=8 * n, measured=0.2 + 0.01 * n) for n in (1, 2, 4, 8)]
    path = write(*rows)
    other = write(*rows, name="other.csv")
    assert validate([path], calibrate_on=[path]).in_sample
    assert validate([path], calibrate_on=[other]).in_sample  # the same rows under another name
    third = write(*(row.replace("GPT", "GPT again") for row in rows), name="third.csv")
    found = validate([path], calibrate_on=[third])
    assert (found.in_sample, found.calibrated_on) == (False, ("third.csv",))


def test_a_calibration_file_that_tells_nothing_is_not_enough_evidence(write):
    other = write(_step(measured="soon"), name="other.csv")
    with pytest.raises(EvidenceError, match="no row"):
        validate([write(_step())], calibrate_on=[other])


def test_a_calibration_file_without_rows_is_not_enough_evidence(write):
    with pytest.raises(EvidenceError, match="fitted"):
        validate([write(_step())], calibrate_on=[write(name="none.csv")])


def test_calibration_brings_predictions_to_a_machine_that_is_slower(write):
    # Every step takes twice as long as the priors believe: after calibration on half of them the rest are close.
    sizes = [(n, layers) for n in (1, 2, 4, 8) for layers in (12, 24)]
    validated = validate([write(*(_step(n_gpus=n, batch=8 * n, layers=layers) for n, layers in sizes))])
    slow = [2 * each.predicted for each in validated.verdicts]
    rows = [
        _step(n_gpus=n, batch=8 * n, layers=layers, measured=f"{seconds:.6f}")
        for (n, layers), seconds in zip(sizes, slow, strict=True)
    ]
    before = validate([write(*rows)])
    after = validate([write(*rows)], split="leave-n_gpus-out")
    assert before.errors.mape == pytest.approx(0.5, abs=1e-4)
    assert after.errors.mape < 0.1
    assert set(after.by_fold) == {"1", "2", "4", "8"}


def test_collectives_are_predicted_from_their_own_machine(write):
    # A machine that needs 20 us and then moves 100 GB/s: half of the sizes predict the other half.
    sizes = [2**power for power in range(16, 31)]
    rows = []
    for size in sizes:
        seconds = 20e-6 + size * 2 * 7 / 8 / 100e9
        rows.append(f"all_reduce,,,,DGX A100,8,,,,{size},,,{seconds * 1e6:.3f},us\n")
    found = validate([write(*rows)], split="leave-half-of-bytes-out")
    assert found.num_modelled == len(sizes)
    assert found.errors.median < 0.05


def test_a_calibration_file_that_is_no_table_is_refused(write, mine):
    path = mine(bytes(range(256)), "noise.csv")
    with pytest.raises(DataError, match=r"noise\.csv"):
        validate([write(_step())], calibrate_on=[path])


def test_regret_is_what_the_choice_by_prediction_takes_longer(write):
    # Of four micro-batches 1, 2, 4 and 8, measured at 10, 9, 8 and 12 s, the second is predicted fastest: 9 / 8 - 1.
    micros = (1, 2, 4, 8)
    rows = [
        _step(micro=micro, measured=seconds) for micro, seconds in zip(micros, (10, 9, 8, 12), strict=True)
    ]
    rows += [
        _step(micro=micro, n_gpus=4, batch=32, measured=1) for micro in micros[:3]
    ]  # too few to choose from
    read = with_executions(read_rows([write(*rows)]))
    found = regret(read, [10.0, 7.0, 8.0, 9.0, 1.0, 1.0, 1.0])
    assert (found.num_groups, found.mean, found.largest) == (1, 0.125, 0.125)
    assert regret(read[4:], [1.0, 1.0, 1.0]) is None
    # The first two are predicted equal: either may be chosen, and the mean of 10 and 9 s counts: 9.5 / 8 - 1.
    tied = regret(read, [7.0, 7.0, 8.0, 9.0, 1.0, 1.0, 1.0])
    assert (tied.num_groups, tied.mean) == (1, 0.1875)


def test_memory_is_compared_where_it_is_stated_and_predicted():
    found = memory_errors([100.0, None, 50.0, 80.0], [110.0, 5.0, None, 76.0])
    assert (found.num_executions, found.largest) == (2, pytest.approx(0.1))
    assert found.mean == pytest.approx(0.075)
    assert memory_errors([None], [1.0]) is None


def test_folds_of_two_columns_together(write):
    rows = with_executions(read_rows([write(_step(), _step(n_gpus=4), _step(hidden=2048))]))
    assert fold_names(rows, split_of("leave-hidden+n_gpus-out")) == ["1024 8", "1024 4", "2048 8"]


def test_workloads_are_one_whether_or_not_their_step_is_known(write):
    # The catalogue knows both spellings; the second row's batch is unknown, so it is a rate only.
    known = "BERT,,,,DGX A100,8,1,1,fp16,64,8,512,100,samples/s\n"
    rate = "PyTorch/LanguageModeling/BERT,,,,DGX A100,4,1,1,fp16,,,512,50,samples/s\n"
    other = "ResNet-50,,,,DGX A100,4,1,1,fp16,,,,50,samples/s\n"
    rows = with_executions(read_rows([write(known, rate, other)]))
    folds = fold_names(rows, split_of("leave-workload-out"))
    assert folds[0] == folds[1] != folds[2]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "megatron"),  # fp16 on an A100: of the time before fused attention
        ({"fp16": "bf16"}, None),
        ({"fp16": "bf16", "GPT,": "GPT (Megatron-DeepSpeed),"}, "megatron"),
        ({"DGX A100": "DGX-H100"}, None),  # on later chips fused, whatever the precision
        ({"DGX A100": "DGX-H100", "fp16": "bf16", "GPT,": "torchtitan GPT,"}, "fsdp2_eager"),
        ({"DGX A100": "DGX-GB200", "fp16": "bf16", "GPT,": "NeMo GPT,"}, "megatron_core"),
        ({"DGX A100": "DGX-GB200", "fp16": "bf16"}, None),
    ],
)
def test_a_row_is_predicted_as_its_own_software_runs(write, changes, name):
    row = _step()
    for old, new in changes.items():
        row = row.replace(old, new)
    found = basis_of("auto")(read_rows([write(row)])[0])
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"parallel_config": "PyTorch; DDP"}, "hf"),
        ({"parallel_config": "PaddlePaddle; data parallel"}, "hf"),
        ({"parallel_config": "PyTorch; DDP; torch.compile"}, None),
        ({"parallel_config": "OneFlow; data parallel"}, None),
        ({"parallel_config": "PyTorch; GPipe", "pp": "8"}, None),  # the Trainer has no pipeline
        ({"parallel_config": "PyTorch; DDP", "hardware": "MI250X"}, "hf"),
        ({"parallel_config": "HF Trainer; ZeRO-1", "hardware": "MI300X"}, "hf"),
        ({"parallel_config": "Primus; Megatron-LM", "hardware": "MI300X"}, None),
        # Trainers of Hugging Face's or one's own models by PyTorch's operations, one by one.
        ({"parallel_config": "LLaMA-Factory; LoRA rank 8"}, "hf"),
        ({"parallel_config": "LitGPT; Lightning Fabric"}, "hf"),
        ({"parallel_config": "PyTorch/XLA as written", "hardware": "TPU v5p"}, "jax_tpu"),
        # Convolutions of 16 bits with channels first are transposed for tensor cores: NVIDIA's guide to them.
        ({"parallel_config": "PyTorch; DDP", "workload": "ResNet-50", "seq": ""}, "ngc"),
        ({"parallel_config": "PyTorch; channels last", "workload": "ResNet-50", "seq": ""}, None),
        ({"parallel_config": "PyTorch", "workload": "ResNet-50", "seq": "", "precision": "fp32"}, None),
        ({"parallel_config": "TensorFlow", "workload": "ResNet-50", "seq": "", "precision": "fp16"}, None),
        ({"parallel_config": "NGC; tf_cnn_benchmarks", "workload": "ResNet-50", "seq": ""}, None),
        (
            {
                "parallel_config": "MXNet",
                "workload": "ResNet-50",
                "seq": "",
                "hardware": "V100",
                "precision": "fp16",
            },
            None,
        ),
    ],
)
def test_pytorch_as_written_is_predicted_as_other_code_that_is(mine, changes, name):
    cells = {"workload": "Llama 3.1 8B", "hardware": "H100", "n_gpus": "8", "precision": "bf16", "pp": ""}
    cells |= {"global_batch": "64", "micro_batch": "1", "seq": "4096", "measured": "9", "unit": "s/iteration"}
    cells |= changes
    path = mine(",".join(cells) + "\n" + ",".join(cells.values()) + "\n", "rows.csv")
    (row,) = read_rows([path])
    assert row.reason is None
    found = basis_of("auto")(row)
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "megatron_core"),
        ({"strategy": "zero_stage=3"}, "megatron_core"),
        ({"strategy": "trained=lora lora_rank=16"}, "hf"),
        ({"accelerator": "mi300x"}, None),
        ({"accelerator": "tpu-v5p"}, "jax_tpu"),
        ({"workload": "resnet50"}, None),
        ({"framework": "torchtitan"}, "torchtitan"),
        ({"framework": "OneFlow"}, None),  # named, but not known: not what it did not run
    ],
)
def test_a_run_of_no_named_software_is_predicted_as_advise_does(mine, changes, name):
    cells = {"workload": "llama31_8b", "accelerator": "h100", "num_accelerators": "8", "global_batch": "16"}
    cells |= {"precision": "bf16", "framework": "", "strategy": "", "step_s": "2"} | changes
    path = mine(",".join(cells) + "\n" + ",".join(cells.values()) + "\n", "runs.csv")
    (row,) = read_rows([path])
    assert row.reason is None
    found = basis_of("auto")(row)
    assert (found and found.name) == name


def test_software_that_is_named_serves_all_rows(write):
    row = read_rows([write(_step())])[0]
    assert basis_of("torchtitan")(row).name == "torchtitan"
    assert basis_of("priors")(row) is None
    with pytest.raises(SpecError, match=r"software 'mine'.*; .*torchtitan.*\bauto, priors"):
        basis_of("mine")


@pytest.mark.parametrize("name", ["llama31_8b", "qwen3_30b_a3b"])
def test_an_interval_is_as_wide_as_that_of_a_plan(mine, name):
    """What the parameters' draws leave open of this step, and what errors on sources left out add for its kind."""
    path = mine(
        "workload,hardware,n_gpus,parallel_config,precision,global_batch,micro_batch,seq,measured,unit\n"
        f"{name},H100 SXM 80GB,8,NeMo,bf16,8,1,4096,1,s/iteration\n",
        "rows.csv",
    )
    found = validate([path], basis_of=basis_of("megatron_core")).verdicts[0]
    model = model_for(accelerator("h100-sxm5-80gb"), workload(name), software="megatron_core")
    of_draws = np.log(step_rows(read_rows([path])).step_s(model.drawn)).std()
    expected = math.hypot(DEVIATE * of_draws, model.log_half_width)
    # Of 64 draws a standard deviation is known to a tenth.
    assert math.log(found.high / found.low) / 2 == pytest.approx(expected, rel=0.25)


def test_errors_of_some_rows_are_those_of_their_executions(write):
    # The second unit counts FLOP by another convention, so its seconds differ: it is not what is counted.
    path = write(
        _step(measured=20000, unit="tokens/s/GPU"),
        _step(measured=11, unit="model TFLOP/s/GPU"),
        _step(n_gpus=4, measured=1),
    )
    found = validate([path])
    assert [each.is_counted for each in found.verdicts] == [True, False, True]
    every = accuracy.errors_where(found, lambda _: True)
    assert msgspec.structs.asdict(every) == pytest.approx(msgspec.structs.asdict(found.errors))
    some = accuracy.errors_where(found, lambda each: each.row.num_accelerators == 8)
    assert (some.num_executions, some.mape) == (1, pytest.approx(found.verdicts[0].error))
    assert accuracy.errors_where(found, lambda _: False) is None


@pytest.mark.parametrize(("layers", "is_said"), [(24, False), (400, True)])
def test_a_row_whose_states_no_memory_holds_says_so(write, layers, is_said):
    """400 layers of 1,024 are 5 billion weights, 90 GB of states on each of eight cards of 40 GB; 24 are 6 GB."""
    (found,) = validate([write(_step(layers=layers, measured=60))]).verdicts
    assert any("ran otherwise" in note for note in found.row.notes) == is_said
