"""Paths to places, on every layout the rounds have used and some they have not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.runs.readers.mlperf.entries import file_kind, log_number, looks_like_log, place, round_of


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("training_results_v4.1", "v4.1"),
        ("training_results_v0.5", "v0.5"),
        ("training_results_v10.2-main", "v10.2"),
        ("mlcommons-training_results_v5.1-0a1b2c3", "v5.1"),
        ("mlperf-training-6.0", "v6.0"),
        ("MLPerf_v5.0", "v5.0"),
        ("v6.1", "v6.1"),
        ("v0.5.0", "v0.5"),
        ("4.1", "v4.1"),
        ("training_5.1", "v5.1"),
    ],
)
def test_a_folder_states_its_round(name, label):
    assert round_of(name).label == label


@pytest.mark.parametrize(
    "name", ["cloud_v3.8", "research_v3.32", "ngc24.09", "24.09", "Dell", "results", "v5", "tpu-v4-16"]
)
def test_versions_of_other_things_are_no_rounds(name):
    assert round_of(name) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "training_results_v4.1/Dell/results/XE8640x4H100-SXM-80GB/ssd",
            ("v4.1", "Dell", "XE8640x4H100-SXM-80GB", "ssd", "Dell/results/XE8640x4H100-SXM-80GB/ssd"),
        ),
        (
            "training_results_v0.5/v0.5.0/google/cloud_v3.8/gnmt-tpuv3-8/results/tpu/gnmt",
            (
                "v0.5",
                "google",
                "cloud_v3.8/gnmt-tpuv3-8/tpu",
                "gnmt",
                "v0.5.0/google/cloud_v3.8/gnmt-tpuv3-8/results/tpu/gnmt",
            ),
        ),
        (
            "training_results_v0.5/v0.5.0/nvidia/submission/results/dgx1_ngc18.11_mxnet/resnet",
            (
                "v0.5",
                "nvidia",
                "submission/dgx1_ngc18.11_mxnet",
                "resnet",
                "v0.5.0/nvidia/submission/results/dgx1_ngc18.11_mxnet/resnet",
            ),
        ),
        (
            "training_results_v0.7/Alibaba/results/v100-256",
            ("v0.7", "Alibaba", "v100-256", None, "Alibaba/results/v100-256"),
        ),
        ("home/results/v6.0/Org/results/sys/flux1", ("v6.0", "Org", "sys", "flux1", "Org/results/sys/flux1")),
        ("repository/Org/results/sys/bert", (None, "Org", "sys", "bert", "Org/results/sys/bert")),
        (
            "training_results_v4.1/training_results_v4.1/Dell/results/XE/bert",
            ("v4.1", "Dell", "XE", "bert", "Dell/results/XE/bert"),
        ),
    ],
)
def test_a_path_states_its_place(path, expected):
    found = place(tuple(path.split("/")))
    label = None if found.round is None else found.round.label
    assert (label, found.organisation, found.system, found.benchmark, "/".join(found.folder)) == expected
    assert not found.nested


def test_a_benchmark_inside_a_benchmark_is_nested():
    assert place(("v1.0", "Habana", "results", "SYS-420GH-TNGR", "resnet", "bert")).nested


def test_without_results_nothing_is_claimed_of_the_path():
    found = place(("home", "me", "logs"), num_above=3)
    assert (found.round, found.organisation, found.system, found.folder) == (None, None, None, ("logs",))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("Dell/results/XE/bert/result_0.txt", "log"),
        ("Lambda/results/l/bert/result_240930043022868987627_01.txt", "log"),
        ("Intel/results/s/minigo/result_run1.txt", "log"),
        ("smc/results/s/bert/result_5119-240509201759124491233_06.txt", "log"),
        ("Dell/results/XE/bert/scaling.json", "scaling"),
        ("Dell/systems/XE.json", "system"),
        ("google/results/tpu/entry.json", "entry"),
        ("Nebius/summary.json", "summary"),
        ("Dell/results/XE/bert/power/result_0/node_3.txt", "node_power"),
        ("Dell/results/XE/bert/power/result_0/sw_0.txt", "switch_power"),
        ("Dell/results/XE/bert/power/result_0/total_power.txt", None),
        ("Azure/results/nd/maskrcnn/.!65506!result_4.txt", None),
        ("intel/results/skx/resnet/intel_caffe_result_4.txt", None),
        ("intel/results/skx/resnet/raw_logs/result_4.txt", None),
        ("Dell/benchmarks/bert/implementations/config.json", None),
        ("Dell/benchmarks/bert/requirements.txt", None),
        ("README.md", None),
    ],
)
def test_only_files_with_results_are_wanted(path, kind):
    assert file_kind(path) == kind


def test_text_among_results_that_is_not_read_is_named():
    assert looks_like_log("intel/results/skx/resnet/intel_caffe_result_4.txt")
    assert not looks_like_log("Dell/results/XE/bert/power/result_0/total_power.txt")
    assert not looks_like_log("Dell/benchmarks/bert/requirements.txt")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("result_0.txt", 0),
        ("result_run10.txt", 10),
        ("result_240930043022868987627_01.txt", 1),
        ("result_5119-240509201759124491233_raw_06.txt", 6),
        ("result.txt", None),
        ("result_240930043022868987627.txt", None),
    ],
)
def test_logs_are_numbered_by_the_end_of_their_name(name, number):
    assert log_number(name) == number


@given(st.lists(st.text(min_size=1, max_size=20), max_size=8))
def test_paths_of_any_kind_have_a_place(folders):
    place(tuple(folders), num_above=2)
    file_kind("/".join(folders) or "x")
