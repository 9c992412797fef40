"""`plan` as its users and scripts meet it: real processes, exit codes, streams, files."""

import json

import pytest
from command_line import equipoise

BERT = ("bert", "--accelerator", "a100-sxm4-80gb")
GPT2 = ("gpt2", "--accelerator", "a100-sxm4-80gb", "--global-batch", "512", "--tokens", "1e9")


def document(ended):
    """The one document on standard output, as a strict parser reads it."""
    assert ended.stderr == ""
    return json.loads(ended.stdout, parse_constant=pytest.fail)


def test_plan_says_what_scripts_rely_on(tmp_path):
    ended = equipoise("plan", *BERT, "--accelerators", "8", "--json", "--json-out", "a.json", cwd=tmp_path)
    assert ended.returncode == 0
    found = document(ended)
    assert list(found)[:3] == ["schema", "equipoise", "dataset"]
    assert found["schema"] == "equipoise.plan/1"
    promised = {
        "workload", "cluster", "objective", "recommended", "alternatives", "pareto", "equilibria", "rejected",
        "evidence", "record", "num_considered", "search_s",
    }  # fmt: skip
    assert promised <= found.keys()
    best = found["recommended"]
    assert {
        "num_accelerators",
        "strategy",
        "time_s",
        "usd",
        "energy_j",
        "carbon_kg",
        "memory_bytes",
    } <= best.keys()
    assert 0 < best["time_s"]["low"] < best["time_s"]["value"] < best["time_s"]["high"]
    assert best["num_accelerators"] == 8
    assert "global_batch=" in best["strategy"]
    assert (found["workload"], found["objective"]) == ("bert", "balance")
    assert [each["kind"] for each in found["equilibria"]] == ["balance", "marginal", "floor", "peak"]
    for each in found["rejected"]:
        assert list(each) == ["reason", "needed", "available", "count"]
    for each in found["evidence"]:
        assert {"kind", "ref", "weight"} <= each.keys()
    assert found["num_considered"] > 1000
    assert (tmp_path / "a.json").read_text() == ended.stdout


def test_plan_is_read_in_eighty_columns():
    ended = equipoise("plan", *BERT, "--accelerators", "1..64", "--top", "3")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for words in (
        "to reach the MLPerf target", "Recommended: ", "strategy  ", "costs     ", "memory    ", "Other layouts",
        "The best at each size:", "Pareto", "Where more accelerators stop paying", "Calibration: ", "Considered ",
        "Samples to the target grow",
    ):  # fmt: skip
        assert words in " ".join(ended.stdout.split()) or words in ended.stdout, words


def test_what_does_not_fit_is_an_answer_with_a_way_out():
    ended = equipoise(
        "plan", "gpt3", "--accelerator", "a100-sxm4-80gb", "--accelerators", "8", "--global-batch", "64"
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    words = " ".join(ended.stdout.split())
    assert "No strategy does." in words
    assert "8 x 80 GB hold 640 GB: try " in words


def test_several_accelerators_stand_side_by_side():
    asked = ("plan", "gpt2", "--tokens", "1e8", "--global-batch", "64", "--objective", "time")
    ended = equipoise(*asked, "--accelerator", "2x rtx 4090", "--accelerator", "1xh100-sxm5-80gb")
    assert ended.stdout.startswith("GPT-2 124M") or "GPT-2" in ended.stdout.splitlines()[0]
    assert ended.stdout.count("take this") == 1
    found = document(
        equipoise(*asked, "--accelerator", "2x rtx 4090", "--accelerator", "1xh100-sxm5-80gb", "--json")
    )
    assert [each["recommended"]["num_accelerators"] for each in found["compared"]] == [2, 1]
    fastest = min(found["compared"], key=lambda each: each["recommended"]["time_s"]["value"])
    assert found["recommended"] == fastest["recommended"]


def test_knobs_sizes_and_terms_are_taken_from_options():
    ended = equipoise(
        "plan", *GPT2, "--accelerators", "2,4", "--fix", "tp=2", "--fix", "shard_state=0..1", "--precision", "fp16,bf16",
        "--price", "3", "--region", "france", "--power-cap", "300", "--objective", "cost", "--json",
    )  # fmt: skip
    found = document(ended)
    best = found["recommended"]
    assert "tp=2" in best["strategy"]
    assert [each["num_accelerators"] for each in found["pareto"]] in ([4, 2], [2], [4])
    assert best["usd"] == pytest.approx(3 * best["accelerator_hours"], rel=1e-4)
    assert best["carbon_kg"] == pytest.approx(best["energy_j"] / 3.6e6 * 0.056, rel=1e-4)
    assert found["rates"]["accelerator_power_w"] == 300


def test_a_length_nobody_knows_is_named():
    found = document(
        equipoise("plan", "gpt2", "--accelerator", "a100-sxm4-80gb", "--accelerators", "1", "--json")
    )
    assert (found["length"]["whole"], found["length"]["missing"][0][:8]) == (False, "the leng")
    refused = equipoise("plan", "resnet152", "--accelerator", "a100-sxm4-80gb", "--json")
    assert refused.returncode == 3
    assert json.loads(refused.stdout)["missing"] == ["the global batch: --global-batch N"]


def test_what_a_function_prints_is_no_part_of_the_answer(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "loud.py").write_text(
        "import os, torch\n"
        "print('imported')\n"
        "def make():\n"
        "    os.write(1, b'raw')\n"
        "    print('made')\n"
        "    return torch.nn.Linear(1000, 1000), torch.zeros(8, 1000)\n"
        "def leaves():\n"
        "    raise SystemExit(7)\n"
    )
    options = ("--accelerator", "a100-sxm4-80gb", "--global-batch", "64", "--samples", "1e6", "--json")
    ended = equipoise("plan", "loud:make", *options, cwd=tmp_path)
    assert json.loads(ended.stdout)["workload"] == "loud:make"
    assert {"raw", "imported", "made"} <= set(ended.stderr.replace("raw", "raw ").split())
    refused = equipoise("plan", "loud:leaves", *options, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "SystemExit: 7" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpt33", "--accelerator", "a100-sxm4-80gb"], "did you mean gpt3"),
        (["bert", "--accelerator", "h100"], "did you mean h100-sxm5-80gb"),
        (["bert"], "--accelerator"),
        ([*BERT, "--accelerators", "many"], "expected a number, a range"),
        ([*BERT, "--accelerators", "8..2"], "the smaller first"),
        ([*BERT, "--accelerators", "0"], "from 1 to"),
        ([*BERT, "--accelerators", "2", "--nodes", "1"], "keep one"),
        ([*BERT, "--fix", "shards=3"], "shard_state"),
        ([*BERT, "--fix", "shard_state=four"], "whole number"),
        ([*BERT, "--fix", "tp=4..2"], "the smaller first"),
        ([*BERT, "--fix", "recompute=none..full"], "two numbers"),
        ([*BERT, "--fix", "tp=2", "--fix", "tp=4"], "given twice"),
        ([*BERT, "--fix", "global_batch=2"], "--global-batch"),
        ([*BERT, "--precision", "fp7"], "precision='fp7'"),
        ([*BERT, "--price", "0"], "--price"),
        ([*BERT, "--power-cap", "0"], "power cap"),
        ([*BERT, "--region", "atlantis"], "atlantis"),
        ([*BERT, "--fix", "tp"], "did you mean 'tp=VALUE'"),
        (["bert", "--accelerator", "2x a100-sxm4-80gb", "--accelerators", "8"], "states the size already"),
        (["nowhere:make", "--accelerator", "a100-sxm4-80gb"], "nowhere"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence_and_exit_code_two(arguments, words):
    ended = equipoise("plan", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("equipoise: ")
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1
