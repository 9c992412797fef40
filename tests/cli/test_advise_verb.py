"""The verb `advise` as scripts and people meet it."""

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from command_line import in_process

from equipoise.bench.training import known_name
from equipoise.report.format import duration, money
from equipoise.units import format_si_down

COMMON = ["llama2_70b_lora", "--accelerator", "h200-sxm5-141gb", "--max-accelerators", "32"]


def _run(*arguments, **kwargs):
    return in_process("advise", *arguments, **kwargs)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("advice")
    options = [
        "--buy",
        "--deadline",
        "2",
        "--queue",
        "1",
        "--json-out",
        str(folder / "a.json"),
        "--html",
        str(folder / "a.html"),
    ]
    done = _run(*COMMON, *options, cwd=folder)
    return done, json.loads((folder / "a.json").read_text()), (folder / "a.html").read_text()


def test_text_fits_eighty_columns_and_begins_with_the_answer(answered):
    done, _, _ = answered
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith("  http")) <= 80
    assert any(line.startswith("Take ") for line in lines[:5])


def test_the_document_keeps_its_contract(answered):
    _, found, _ = answered
    assert found["schema"] == "equipoise.advise/2"
    best = found["recommended"]
    assert best["num_accelerators"] in {8, 16, 32}
    assert best["time_s"]["low"] < best["time_s"]["value"] < best["time_s"]["high"]
    for name in ("usd", "energy_j", "carbon_kg", "memory", "strategy"):
        assert best[name] is not None
    weights = [each["weight"] for each in found["evidence"]]
    assert sum(weights) == pytest.approx(1.0, abs=1e-4)
    for name in (
        "alternatives",
        "frontier",
        "equilibria",
        "rejected",
        "records",
        "num_considered",
        "search_s",
    ):
        assert name in found


def test_the_page_puts_the_answer_first(answered):
    _, found, page = answered
    size = found["recommended"]["num_accelerators"]
    head = page[: page.index("<h2")]
    assert re.search(rf"Take {size} \S+ H200", head)


def test_text_and_page_have_the_same_money_and_time(answered):
    done, found, page = answered
    text, page = " ".join(done.stdout.split()), unescape(page).replace("\xa0", " ")
    best = found["recommended"]
    for shown in (text, page):
        assert money(best["usd"]["value"]) in shown
        assert duration(best["time_s"]["value"]) in shown
    assert [each["candidate"]["terms"] for each in found["renting"]] == ["on_demand", "reserved", "spot"]
    for each in found["renting"]:
        assert money(each["candidate"]["usd"]["value"]).removesuffix(" USD") in page
    owned = found["ownership"]
    assert owned["return_usd"]["low"] < owned["return_usd"]["value"] < owned["return_usd"]["high"]
    assert 'id="buying"' in page


def test_what_money_is_enough_for_has_its_page_too(tmp_path):
    options = ["--budget", "20", "--ask", "tokens", "--json-out", "a.json", "--html", "a.html"]
    done = _run(
        "llama2_7b", "--accelerator", "h100-sxm5-80gb", "--max-accelerators", "8", *options, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["schema"] == "equipoise.advise-ask/1"
    page = unescape((tmp_path / "a.html").read_text()).replace("\xa0", " ")
    best = found["best"]
    for shown in (done.stdout, page):
        assert format_si_down(best["training_budget"]["value"]) in shown
        assert "20 USD" in shown
    assert best["by_size"]
    assert all(format_si_down(each["amount"]["value"]) in page for each in best["by_size"])


def test_nothing_to_go_on_is_exit_3_with_what_is_missing():
    done = _run("bert", "--here", "--json")
    if done.returncode == 0:
        pytest.skip("this machine has an accelerator that is known")
    assert done.returncode == 3
    assert json.loads(done.stdout)["missing"]


@pytest.mark.parametrize("workload", ["bert", "llama31_8b"])
def test_a_command_that_a_refusal_names_trains_a_model_there_is(workload):
    done = _run(workload, "--tokens", "1G", "--here", "--json")
    if done.returncode == 0:
        pytest.skip("this machine has an accelerator that is known")
    (missing,) = json.loads(done.stdout)["missing"]
    named = re.search(r"equipoise bench (\S+)", missing)
    assert ("equipoise.watch(" in missing) is (named is None)
    assert named is None or known_name(named[1])


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_own_nccl_tests_and_traces_come_from_a_file_of_options(tmp_path):
    for name in ("nccl-a100.txt", "dlrm-traces.tar.gz"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "job.toml").write_text(
        'workload = "bert"\naccelerator = "a100-sxm4-80gb"\nmax_accelerators = 16\n'
        'collectives = "nccl-a100.txt"\ntrace = ["dlrm-traces.tar.gz"]\ntraced_as = "precision=fp16"\n'
    )
    done = _run("job.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    said = [each["words"] for each in found["reasons"]]
    assert any("rank0.pt.trace.json" in each and "8 ranks" in each for each in said)
    assert any("all_reduce of 8" in each for each in said)


def test_launch_writes_what_runs_it_and_keeps_its_prediction(tmp_path):
    asked = ["llama31_8b", "--tokens", "1T", "--accelerator", "h100", "--launch", "run"]
    environment = {"EQUIPOISE_LEDGER": str(tmp_path / "ledger.jsonl")}
    done = _run(*asked, "--json-out", "a.json", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "a.json").read_text())
    written = {each.name: each.read_text() for each in (tmp_path / "run").iterdir()}
    expected = {each["file"]: each for each in document["snippets"] if each["file"]}
    assert written.keys() == expected.keys()
    assert {"job.sbatch", "trainjob.yaml", "sky.yaml", "deepspeed.json", "train.py"} <= written.keys()
    lacking = [(name, each["unsupported"]) for name, each in expected.items() if each["unsupported"]]
    assert lacking
    for name, unsupported in lacking:
        text = " ".join(written[name].replace("\n# ", " ").split())
        assert [each for each in unsupported if each not in text] == []
    (first, *_) = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert json.loads(first)["strategy"] == document["recommended"]["strategy"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--tokens", "1T", "--accelerator", "tpu-v5p"), "TPU v5p"),
        (("--tokens", "1T", "--accelerator", "h100", "--deadline", "1s"), "recommended"),
        (("--ask", "tokens", "--budget", "1k", "--accelerator", "h100"), "--ask"),
        (
            ("--train", "full,grpo", "--examples", "1k", "--completion", "100", "--accelerator", "h100"),
            "GRPO",
        ),
    ],
)
def test_launch_says_why_nothing_is_written_and_keeps_no_prediction(tmp_path, asked, words):
    environment = {"EQUIPOISE_LEDGER": str(tmp_path / "ledger.jsonl")}
    done = _run(
        "llama31_8b", *asked, "--max-accelerators", "32", "--launch", "run", cwd=tmp_path, env=environment
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_has_something_is_left_as_it_is(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.py").write_text("mine")
    done = _run(*COMMON, "--launch", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "run" in done.stderr
    assert done.stdout == ""
    assert [each.read_text() for each in (tmp_path / "run").iterdir()] == ["mine"]


def test_what_to_do_with_the_cards_at_hand_stands_before_more_memory():
    # 405.9e9 parameters with 16 bytes each are 6.5 TB: no two cards hold half of that.
    ended = in_process("advise", "llama31_405b", "--tokens", "1T", "--accelerator", "2x rtx4090")
    assert ended.returncode == 0, ended.stderr
    text = " ".join(ended.stdout.split())
    # With what the allocator reserves 7.27 TB on two, half of it on each. Sixteen hosts of eight do: weights and
    # whole gradients, 6 of the 16 bytes, are 2.4 TB of their 3.1; of fourteen hosts they are nine tenths.
    assert 0 < text.index("128 accelerators") < text.index("3.64 TB")


def test_what_looks_wrong_stands_on_the_first_page(tmp_path):
    asked = ("mixtral_8x7b", "--train", "qlora", "--examples", "1000", "--accelerator", "2x rtx-a6000")
    ended = in_process("advise", *asked, "--html", "answer.html", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "answer.html").read_text()
    assert 0 < page.index("bitsandbytes") < page.rindex("The recommendation in detail")


def test_an_accelerator_that_no_file_is_read_for_is_refused_where_none_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = in_process("topology", "--accelerator", "h100")
    assert ended.returncode == 2
    assert "H100" in ended.stderr
    assert "nvidia-smi topo -m" in ended.stderr
