"""`collectives` and `trace` as their users and scripts meet them: real processes, exit codes, streams."""

import json
from pathlib import Path

import pytest
from command_line import document, equipoise

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
LOG, TRACES = EXAMPLES / "nccl-a100.txt", EXAMPLES / "dlrm-traces.tar.gz"
ROW = "     1048576        262144     float     sum      -1    47.38   22.13   22.13      0    46.84   22.39   22.39      0\n"


def test_the_document_of_collectives_holds_what_scripts_rely_on(tmp_path):
    found = document(equipoise("collectives", LOG, "--json", "--json-out", "a.json", cwd=tmp_path))
    assert json.loads((tmp_path / "a.json").read_bytes()) == found
    assert found["schema"] == "equipoise.collectives/1"
    (fit,) = found["fits"]
    promised = {"operation", "num_ranks", "latency_s", "byte_per_s", "low", "high", "num_points"}
    assert promised <= fit.keys()
    assert fit["low"] < fit["byte_per_s"] < fit["high"]
    assert [each["verdict"] for each in found["verdicts"]] == ["normal", "normal"]


def test_the_document_of_trace_holds_what_scripts_rely_on(tmp_path):
    found = document(equipoise("trace", TRACES, "--json", cwd=tmp_path))
    assert found["schema"] == "equipoise.trace/1"
    promised = {"rank", "steps", "compute_s", "communication_s", "exposed_s", "idle_s"}
    assert found["ranks"]
    for rank in found["ranks"]:
        assert promised <= rank.keys()
        for whole, parts in ((rank["total_s"], rank), *((step["step_s"], step) for step in rank["steps"])):
            together = parts["compute_s"] + parts["exposed_s"] + parts["idle_s"]
            assert together == pytest.approx(whole, abs=1e-12)
    assert [each["rank"] for each in found["stragglers"]] == [7]


@pytest.mark.parametrize("arguments", [("collectives", LOG), ("trace", TRACES)])
def test_text_fits_the_terminal(arguments):
    ended = equipoise(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 30
    assert not any("…" in line for line in lines)


def test_many_ranks_and_steps_fit_the_terminal(tmp_path):
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{at}", "ts": at * 1e7, "dur": 9e6}
        for at in range(100, 150)
    ] + [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": at * 1e7, "dur": 8e6} for at in range(100, 150)]
    for rank in range(40):
        told = {"distributedInfo": {"rank": 1000 + rank}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(told))
    for files in (tmp_path, tmp_path / "rank0.json"):
        lines = equipoise("trace", files).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert any("not shown; --json has all" in line for line in lines)
        assert len(lines) <= 30


def test_rows_of_which_none_can_be_used_are_too_little_evidence(tmp_path):
    (tmp_path / "wrong.txt").write_text(ROW.replace("22.13      0", "22.13      7"))
    ended = equipoise("collectives", "wrong.txt", "--json", cwd=tmp_path)
    assert ended.returncode == 3
    found = json.loads(ended.stdout)
    assert found["status"] == "not_enough_evidence"
    assert "#wrong" in found["reason"]


def test_a_device_that_is_not_here_is_refused_before_anything_is_written(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("needs a machine without accelerators")
    ended = equipoise("bench", "mlp", "--device", "cuda", "--out", "sweep", cwd=tmp_path)
    assert ended.returncode == 2
    assert "--device cuda" in ended.stderr
    assert not (tmp_path / "sweep").exists()
