"""`plan` as its users and scripts meet it: real processes, exit codes, streams, files."""

import json
import re

import pytest
from command_line import document, equipoise, in_process

BERT = ("bert", "--accelerator", "a100-sxm4-80gb")
GPT2 = ("gpt2", "--accelerator", "a100-sxm4-80gb", "--global-batch", "512", "--tokens", "1e9")


def test_plan_says_what_scripts_rely_on(tmp_path):
    ended = in_process("plan", *BERT, "--accelerators", "8", "--json", "--json-out", "a.json", cwd=tmp_path)
    found = document(ended)
    assert list(found)[:3] == ["schema", "equipoise", "dataset"]
    assert found["schema"] == "equipoise.plan/2"
    promised = {
        "question", "recommended", "candidates", "refusal", "equilibria", "flips", "alternatives", "rejected",
        "evidence", "records", "num_considered", "search_s", "notes",
    }  # fmt: skip
    assert promised <= found.keys()
    best = found["recommended"]
    assert best in found["candidates"]
    assert 0 < best["time_s"]["low"] < best["time_s"]["value"] < best["time_s"]["high"]
    assert best["num_accelerators"] == 8
    assert "global_batch=" in best["strategy"]
    assert (found["question"]["workload"], found["question"]["objective"]) == ("bert", "balance")
    assert found["evidence"]
    for each in found["evidence"]:
        assert {"kind", "ref", "weight"} <= each.keys()
    assert found["num_considered"] > 1000
    assert (tmp_path / "a.json").read_text() == ended.stdout


@pytest.mark.parametrize("options", [[], ["--full"]], ids=["one screen", "full"])
def test_plan_is_read_in_eighty_columns(options):
    ended = in_process("plan", *BERT, "--accelerators", "1..64", "--top", "3", *options)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert max(map(len, ended.stdout.splitlines())) <= 80
    assert re.search(r"^Take \d+ ", ended.stdout, re.MULTILINE)
    for word in ("Time", "Money", "Strategy", "Batch", "Returns", "recommended"):
        assert word in ended.stdout
    assert (" diminish" in ended.stdout) == bool(options)


def test_what_does_not_fit_is_an_answer_with_a_way_out():
    asked = ("plan", "gpt3", "--accelerator", "a100-sxm4-80gb", "--accelerators", "8", "--global-batch", "64")
    rejected = document(in_process(*asked, "--json"))["rejected"]
    assert rejected
    for each in rejected:
        assert list(each) == ["reason", "needed", "available", "count"]
    ended = in_process(*asked)
    assert (ended.returncode, ended.stderr) == (0, "")
    words = " ".join(ended.stdout.split())
    assert max(map(int, re.findall(r"(\d+) accelerators", words))) > 8


def test_what_has_no_room_on_the_cards_taken_by_default_leads_with_a_number_that_has():
    asked = (
        *("advise", "llama31_70b", "--train", "full", "--examples", "10k", "--sequence", "4k"),
        *("--accelerator", "rtx4090"),
    )
    ended = in_process(*asked)
    assert (ended.returncode, ended.stderr) == (0, "")
    headline, first, *_ = ended.stdout.partition("\n\n")[2].splitlines()
    assert "8 \N{MULTIPLICATION SIGN} GeForce RTX 4090" in headline
    assert "limits" not in headline
    # The weights, gradients and states of 70 G parameters are 1.1 TB: 16 bytes of each.
    size = re.findall(r"(\d+) accelerators", first)[0]
    assert int(size) > 8
    taken = in_process(*asked, "--max-accelerators", size).stdout
    assert f"Take {size} " in taken
    assert len(re.findall(r"\d+ GB instead", ended.stdout)) == 0


def test_several_accelerators_are_candidates_of_one_answer():
    asked = ("plan", "gpt2", "--tokens", "1e8", "--global-batch", "64", "--objective", "time")
    found = document(
        in_process(*asked, "--accelerator", "2x rtx 4090", "--accelerator", "1xh100-sxm5-80gb", "--json")
    )
    possible = [each for each in found["candidates"] if each["feasible"]]
    assert {each["accelerator"]: each["num_accelerators"] for each in possible} == {
        "rtx-4090-pcie-24gb": 2,
        "h100-sxm5-80gb": 1,
    }
    fastest = min(possible, key=lambda each: each["time_s"]["value"])
    assert found["recommended"] == fastest


def test_parameters_sizes_and_prices_are_taken_from_options():
    ended = in_process(
        "plan", *GPT2, "--accelerators", "2,4", "--fix", "tp=2", "--fix", "zero_stage=0..1", "--precision", "fp16,bf16",
        "--price", "3", "--region", "france", "--power-cap", "300", "--objective", "cost", "--json",
    )  # fmt: skip
    found = document(ended)
    best = found["recommended"]
    assert "tp=2" in best["strategy"]
    assert best["num_accelerators"] in {2, 4}
    assert best["usd"]["value"] == pytest.approx(3 * best["accelerator_hours"], rel=1e-4)
    assert best["carbon_kg"]["value"] == pytest.approx(best["energy_j"]["value"] / 3.6e6 * 0.056, rel=1e-4)
    assert best["power_w"] < 1.5 * 300


def test_a_batch_that_nobody_states_is_asked_for():
    asked = ("plan", "mobilenet_v2", "--accelerator", "a100-sxm4-80gb", "--samples", "1e6", "--json")
    (missing,) = document(in_process(*asked), 3)["missing"]
    assert missing.endswith(": --global-batch N")


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
    assert json.loads(ended.stdout)["question"]["workload"] == "loud:make"
    assert {"raw", "imported", "made"} <= set(ended.stderr.replace("raw", "raw ").split())
    refused = equipoise("plan", "loud:leaves", *options, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "SystemExit: 7" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_sizes_that_are_asked_about_and_too_small_stand_on_the_first_screen():
    # 70 G parameters of mixed-precision Adam take 16 bytes each: 1.1 TB; 4 x 80 GB hold 0.32, 16 hold 1.28.
    shown = in_process(
        "plan", "llama2_70b", "--accelerator", "h100", "--at", "2,4,16", "--tokens", "1B"
    ).stdout
    (line,) = [each for each in shown.splitlines() if "not fit" in each]
    assert re.findall(r"\d+", line.split("H100")[0]) == ["2", "4"]
