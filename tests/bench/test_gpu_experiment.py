"""experiments/gpu: its arithmetic by hand, the whole of it on a processor, and results that are kept."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
from command_line import prepared_python

pytest.importorskip("torch")

from gpu_loops import reached_s

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "gpu" / "run.py"
RESULTS = sorted((ROOT / "docs" / "experiments" / "data").glob("gpu-*.json"))
_spec = importlib.util.spec_from_file_location("gpu_run", SCRIPT)
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)


def _span(name, begun, ended):
    return {"cat": "user_annotation", "name": name, "ts": begun, "dur": ended - begun}


def _kernel(number, launched, begun, ended):
    """A launch by the host and what it launched, in microseconds."""
    named = {"args": {"correlation": number}}
    return (
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launched, "dur": 1, **named},
        {"cat": "kernel", "name": f"k{number}", "ts": begun, "dur": ended - begun, **named},
    )


PARTS = (_span("forward", 0, 10), _span("backward", 10, 20), _span("optimizer", 20, 30))


def test_parts_of_a_device_that_lags_end_with_what_was_launched_in_them():
    # The device ends what was launched before 10 us at 25, before 20 at 60, before 30 at 70.
    kernels = (*_kernel(1, 1, 5, 25), *_kernel(2, 12, 25, 60), *_kernel(3, 22, 60, 70))
    (step,) = reached_s([*kernels, *PARTS])
    assert [step[name] for name in ("forward", "backward", "optimizer")] == pytest.approx(
        [25e-6, 35e-6, 10e-6]
    )
    busy = [step[f"{name}_busy"] for name in ("forward", "backward", "optimizer")]
    assert busy == pytest.approx([20e-6, 35e-6, 10e-6])


def test_parts_of_a_host_that_lags_are_those_of_the_host():
    kernels = (*_kernel(1, 1, 2, 4), *_kernel(2, 12, 13, 15))
    steps = reached_s(
        [*kernels, *PARTS, *(_span(each["name"], each["ts"] + 50, each["ts"] + 60) for each in PARTS)]
    )
    assert len(steps) == 2
    for step in steps:
        assert step["forward"] == step["backward"] == step["optimizer"] == pytest.approx(10e-6)


def test_errors_are_of_the_measured_and_cells_without_one_are_left_out():
    guess = {"step_s": 0.03, "low_s": 0.01, "high_s": 0.05, "tensor_bytes": 8e9}
    near = script.compared(guess, {"step_s": 0.02, "tensor_bytes": 10e9})
    far = script.compared(guess, {"step_s": 0.06, "tensor_bytes": 4e9})
    assert near == {"step": pytest.approx(0.5), "memory": pytest.approx(-0.2), "is_inside": True}
    assert far == {"step": pytest.approx(-0.5), "memory": pytest.approx(1.0), "is_inside": False}
    assert script.compared(guess, {"why_not": "ran out of memory"}) is None
    found = script.summary([{"error": near}, {"error": None}, {"error": far}])
    assert (found["num_compared"], found["num_inside"]) == (2, 1)
    assert found["median_step_error"] == pytest.approx(0.5)
    assert found["median_memory_error"] == pytest.approx(0.6)


def test_on_a_processor_it_predicts_measures_and_goes_on_where_it_was(tmp_path):
    out = tmp_path / "results.json"
    options = ("--device", "cpu", "--models", "tiny_gpt_small,tiny_wide_mlp", "--accelerator", "h100")
    # One core: threads of a step that wait for each other take many times as long on a machine with other work.
    core = min(os.sched_getaffinity(0))
    start = f"import os, runpy, sys; os.sched_setaffinity(0, [{core}]); sys.argv = sys.argv[1:]; "
    command = [
        *(prepared_python(), "-c", start + "runpy.run_path(sys.argv[0], run_name='__main__')", str(SCRIPT)),
        *("--out", str(out), *options, "--steps", "6", "--minutes", "0.3"),
    ]

    def results():
        environment = {**os.environ, "EQUIPOISE_EXECUTABLE": prepared_python()}
        environment |= {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{SCRIPT.parent}"}
        subprocess.run(command, check=True, capture_output=True, env=environment, cwd=tmp_path)
        return json.loads(out.read_bytes())

    first, then = results(), results()
    assert then["schema"] == script.SCHEMA
    assert (then["shrunken"], then["chip"]["is_stand_in"], then["machine"]["host"]) == (True, True, None)
    assert first["predicted_at"] == then["predicted_at"]
    assert len(then["cells"]) == 8
    assert all(each["predicted"]["low_s"] < each["predicted"]["high_s"] for each in then["cells"])
    assert then["summary"] == script.summary(then["cells"])
    assert then["summary"]["num_compared"] > 0
    for before, after in zip(first["cells"], then["cells"], strict=True):
        assert "why_not" in before["measured"] or before == after
        assert "why_not" in after["measured"] or after["measured"]["step_s"] > 0
    made = [*then["phases"], *then["watch"], then["advice"]]
    assert len(made) >= 3
    # Each was made, or says why not; times of a busy machine are not judged here.
    assert all({"why_not", "error", "cost", "exit_code"} & each.keys() for each in made)


@pytest.mark.skipif(not RESULTS, reason="docs/experiments/data has no gpu-*.json: no GPU was measured yet")
def test_results_that_are_kept_are_of_whole_models_and_their_summary_follows():
    assert RESULTS
    for path in RESULTS:
        found = json.loads(path.read_bytes())
        assert (found["schema"], found["device"], found["shrunken"]) == (script.SCHEMA, "cuda", False)
        assert not found["chip"]["is_stand_in"]
        cells = [{"error": script.compared(each["predicted"], each["measured"])} for each in found["cells"]]
        assert script.summary(cells) == found["summary"]
        # Intervals are at 90 %: with half of the steps outside they would say nothing.
        assert found["summary"]["num_inside"] >= 0.5 * found["summary"]["num_compared"] > 0
        assert found["summary"]["median_step_error"] < 1.0
