"""Answers about a machine that only the user's own runs are of: what no model converts is not mixed."""

import pytest
from asking import ask

from equipoise.bench.summary import run_row, write
from equipoise.decide.prediction import answer_predictions
from equipoise.decide.question.query import query
from equipoise.decide.question.systems import requested_systems
from equipoise.errors import DataError, EvidenceError
from equipoise.spec.catalogue import shipped

# samples/s of one rank by precision and batch: each differs, so that a time shows which run it is of.
RATES = {("fp32", 32): 100.0, ("fp32", 128): 160.0, ("bf16", 32): 400.0, ("bf16", 128): 320.0}
SAMPLES = 3.6e6


@pytest.fixture(scope="module")
def question(tmp_path_factory):
    here = requested_systems(query({"workload": "small_cnn", "here": True}), shipped())[0]
    if not here.is_cpu:
        pytest.skip("this machine has an accelerator that is known")
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        run_row(
            {
                "run_id": f"{workload} {precision} {batch}",
                "campaign": "mine",
                "workload": workload,
                "accelerator": here.name,
                "num_accelerators": 1,
                "num_nodes": 1,
                "precision": precision,
                "global_batch_samples": batch,
                "status": "success",
                "samples_per_s": rate,
            }
        )
        for workload in ("small_cnn", "another")
        for (precision, batch), rate in RATES.items()
    ]
    write(folder, rows, [])
    return {"workload": "small_cnn", "here": True, "runs": folder, "samples": SAMPLES}


@pytest.mark.parametrize(
    ("stated", "run"),
    [
        ({}, ("bf16", 32)),
        ({"precision": "fp32"}, ("fp32", 128)),
        ({"global_batch": 128}, ("bf16", 128)),
        ({"precision": "fp32", "global_batch": 32}, ("fp32", 32)),
        ({"precision": "fp32,bf16"}, ("bf16", 32)),
    ],
)
def test_only_runs_with_the_precision_and_batch_of_the_question_count(question, stated, run):
    best = ask(question, **stated, scores=False).recommended
    assert best.work_s.value == pytest.approx(SAMPLES / RATES[run])
    assert best.global_batch_samples == run[1]


def test_a_prediction_names_the_runs_that_it_was_made_from(question):
    kept = answer_predictions(ask(question, precision="fp32", scores=False), verb="advise")
    assert {each.quantity for each in kept} == {"time_to_train_s", "samples_per_s"}
    assert all("small_cnn fp32 128" in each.from_runs for each in kept)


@pytest.mark.parametrize("stated_per_s", [1000.0, 500.0])
def test_a_training_takes_the_mean_of_uneven_steps_not_their_median(question, tmp_path, stated_per_s):
    """Of nine steps of 50 ms and one of 550 ms the median is 50 ms, the mean 100 ms: 500 samples/s of 50 each.

    Tables of earlier versions have the rate of the median.
    """
    steady, uneven = ([0.05] * 10, [0.05] * 9 + [0.55])
    found = []
    for name, steps, rate in (("steady", steady, 1000.0), ("uneven", uneven, stated_per_s)):
        row = {"run_id": name, "campaign": "mine", "workload": "small_cnn", "num_accelerators": 1}
        row |= {"global_batch_samples": 50, "status": "success", "samples_per_s": rate}
        rows = [
            {"run_id": name, "repetition": at, "phase": "step", "seconds": each}
            for at, each in enumerate(steps)
        ]
        write(tmp_path / name, [run_row(row)], rows)
        answer = ask(question, runs=tmp_path / name, scores=False)
        found.append(answer.recommended.work_s)
        assert any("2.0 times" in str(each) for each in answer.notes) is (name == "uneven")
    first, second = found
    assert first.value == pytest.approx(SAMPLES / 1000)
    assert first.high < 1.1 * first.value
    assert second.value == pytest.approx(SAMPLES / 500)
    assert second.low < SAMPLES / 1000


@pytest.fixture(scope="module")
def sizes_that_ran(question, tmp_path_factory):
    """The question with runs on 1, 2 and 4 ranks, at 100 samples/s, 190 and 240."""
    folder = tmp_path_factory.mktemp("sizes")
    of_all = {"campaign": "mine", "workload": "small_cnn", "num_nodes": 1, "precision": "fp32"}
    of_all |= {"global_batch_samples": 32, "status": "success"}
    rows = [
        run_row({**of_all, "run_id": f"on {size}", "num_accelerators": size, "samples_per_s": rate})
        for size, rate in ((1, 100.0), (2, 190.0), (4, 240.0))
    ]
    write(folder, rows, [])
    return {**question, "runs": folder}


@pytest.mark.parametrize(
    ("asked", "best", "shown"),
    [
        ({}, 2, {1, 2, 4}),
        ({"accelerators": "4"}, 4, {4}),
        ({"accelerators": "1"}, 1, {1}),
        ({"accelerators": "1,4"}, 1, {1, 4}),
        ({"accelerators": "2..8"}, 2, {2, 4}),
        ({"accelerators": "2..8", "objective": "time"}, 4, {2, 4}),
        ({"max_accelerators": 1}, 1, {1}),
    ],
)
def test_only_the_numbers_asked_about_are_recommended(sizes_that_ran, asked, best, shown):
    found = ask(sizes_that_ran, **asked, scores=False)
    assert found.recommended.num_accelerators == best
    assert {each.num_accelerators for each in found.candidates if each.feasible} == shown


def test_numbers_that_did_not_run_are_refused_with_those_that_did(sizes_that_ran):
    with pytest.raises(EvidenceError, match=r"\b1, 2 and 4\b"):
        ask(sizes_that_ran, accelerators="3", scores=False)


def test_a_batch_that_no_run_had_is_refused_with_those_there_are(question):
    with pytest.raises(EvidenceError) as caught:
        ask(question, global_batch=64, precision="fp32", scores=False)
    assert all(word in str(caught.value) for word in ("32 and 128", "bf16 and fp32"))


def test_other_workloads_of_a_folder_are_named(question):
    with pytest.raises(DataError, match=r"8 of 8 .*gpt2_medium.*another and small_cnn"):
        ask(question, workload="gpt2_medium", scores=False)


def test_the_batch_of_a_model_of_ones_own_is_not_stated_of_runs_with_another(question, tmp_path, monkeypatch):
    (tmp_path / "of_one_s_own.py").write_text(
        "import torch\ndef net():\n    return torch.nn.Linear(4, 4), torch.zeros(8, 4)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "runs"
    row = {"run_id": "1", "campaign": "mine", "workload": "of_one_s_own:net", "num_accelerators": 1}
    write(
        folder, [run_row(row | {"global_batch_samples": 16, "status": "success", "samples_per_s": 10.0})], []
    )
    found = ask(question, workload="of_one_s_own:net", runs=folder, scores=False)
    assert found.recommended.global_batch_samples == 16
    (batch,) = [each for each in found.chosen_for_you if "global batch" in each]
    assert batch.startswith("global batch 16")
