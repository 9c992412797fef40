"""Descriptions of systems as people wrote them: each oddity of the published rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.runs.readers.mlperf.system import Names, SystemFacts, read_scaling, read_summary, read_system

PLAIN = b"""{"submitter": "Dell", "division": "closed", "status": "Available on-premise", "system_name": "XE8640",
"number_of_nodes": "2", "accelerators_per_node": "4", "accelerator_model_name": "NVIDIA H100-SXM5-80GB",
"host_processor_model_name": "Intel(R) Xeon(R) Platinum 8468", "framework": "NGC Pytorch 24.09"}"""


def test_counts_are_multiplied_and_may_be_text():
    found = read_system(PLAIN)
    assert (found.num_nodes, found.num_accelerators, found.division) == (2, 8, "closed")
    assert found.accelerator == "NVIDIA H100-SXM5-80GB"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"division"', b'"divison"'),
        (b'"submitter"', b'"sumitter"'),
        (b'"number_of_nodes"', b'"number of nodes"'),
        (b'"accelerators_per_node"', b'"Accelerators_Per_Node"'),
        (b'"2"', b"2.0"),
        (b'"4"', b'"4 (2 a tray)"'),
        (b'24.09"}', b'24.09",\n}'),
        (b'"Dell"', b'"De\tll"'),
        (b'{"submitter"', b'\xef\xbb\xbf{"submitter"'),
    ],
)
def test_slips_of_the_pen_are_read_as_meant(before, after):
    assert before in PLAIN
    found = read_system(PLAIN.replace(before, after))
    assert (found.num_nodes, found.num_accelerators, found.division) == (2, 8, "closed")
    assert found.submitter is not None


def test_a_number_of_nodes_that_cannot_be_read_is_not_taken_for_one():
    found = read_system(PLAIN.replace(b'"2"', b"9" * 400))
    assert (found.num_nodes, found.num_accelerators) == (None, None)


def test_entry_json_counts_its_nodes():
    text = b"""{"division": "closed", "status": "on-prem", "hardware": "DGX-1V", "framework": "MXNet NGC 18.11",
    "nodes": [{"num_nodes": 128, "accelerator": "Tesla V100-SXM2-16GB", "num_accelerators": 8, "cpu": "2x Xeon"}]}"""
    found = read_system(text)
    assert (found.num_nodes, found.num_accelerators, found.system_name) == (128, 1024, "DGX-1V")


def test_a_tpu_slice_names_its_own_count():
    # v0.5: tpuv3-32 is 32 cores on all nodes together, and a core is half a chip.
    text = b'{"nodes": [{"num_nodes": 2, "accelerator": "tpuv3-32", "num_accelerators": 32}]}'
    found = read_system(text)
    assert found.num_accelerators == 32
    machine = Names().accelerators(found, None)
    assert machine == ("tpu-v3", 16)


def test_log_lines_in_place_of_json_are_read():
    text = (
        b'org: {"value": "NVIDIA", "metadata": {"file": "mlperf_logger.py", "lineno": 218}}\n'
        b'division: {"value": "closed", "metadata": {"file": "mlperf_logger.py", "lineno": 222}}\n'
        b'status: {"value": "onprem", "metadata": {"file": "mlperf_logger.py", "lineno": 226}}\n'
        b"entry: {\"value\": \"{'hardware': 'DGX-1 with V100', 'framework': 'PyTorch NVIDIA Release 19.05', "
        b"'nodes': \\\"{'num_nodes': '24', 'cpu': '2x Xeon', 'accelerator': 'Tesla V100-SXM2-16GB', "
        b"'num_accelerators': '8'}\\\"}\", \"metadata\": {}}\n"
    )
    found = read_system(text)
    assert (found.num_nodes, found.num_accelerators) == (24, 192)
    assert (found.submitter, found.division, found.availability) == ("NVIDIA", "closed", "onprem")
    assert found.accelerator == "Tesla V100-SXM2-16GB"


def test_a_list_of_results_stands_in_for_a_description():
    text = b"""[{"division": "closed", "availability": "Available on-premise", "submitter": "Nebius", "system": "s",
    "number_of_nodes": "4", "accelerator_model_name": "NVIDIA H100", "accelerators_count": 32, "framework": "NeMo",
    "details_url": "https://github.com/mlcommons/training_results_v5.0/blob/main/Nebius/systems/nebius_n4.json"}]"""
    found = read_summary(text)["nebius_n4"]
    assert (found.num_nodes, found.num_accelerators, found.availability) == (4, 32, "Available on-premise")


def test_machines_without_accelerators_run_on_their_processors():
    names = Names()
    text = b"""{"number_of_nodes": "8", "accelerators_per_node": "0", "accelerator_model_name": "N/A",
    "host_processors_per_node": "4", "host_processor_model_name": "Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz"}"""
    machine = names.accelerators(read_system(text), None)
    assert machine == ("xeon-8380h-cpu", 32)
    assert not names.unknown


def test_early_machines_state_their_processors_in_words():
    text = b"""{"hardware": "4-nodes 4x Intel(R) Xeon(R) Platinum 8180 processor", "nodes": [{"num_nodes": 4,
    "accelerator": "NA", "num_accelerators": 0, "cpu": "Intel(R) Xeon(R) Platinum 8180 CPU @ 2.50GHz"}]}"""
    machine = Names().accelerators(read_system(text), None)
    assert machine == ("xeon-8180-cpu", 16)


@pytest.mark.parametrize(
    ("raw", "nodes", "per_node", "slug"),
    [
        # As systems and summaries of v6.0 write them; Isambard-AI has four GH200 a node, others have one.
        ("NVIDIA Hopper GPU (GH200)", 16, 4, "gh200-quad-96gb"),
        ("NVIDIA Hopper GPU (GH200)", 16, 1, "gh200-superchip-96gb"),
        ("NVIDIA GH200 96GB", 2, 4, "gh200-quad-96gb"),
        ("GH200 quad", 2, 4, "gh200-quad-96gb"),
        ("NVIDIA B300 SXM6 PC", 1, 8, "b300-sxm6-270gb"),
        ("NVIDIA Blackwell GPU (B300-SXM-270GB)", 1, 8, "b300-sxm6-270gb"),
        ("NVIDIA B300 Blackwell Ultra GPU", 1, 8, "b300-sxm6-270gb"),
        # Racks: a host of four is no form of its own.
        ("NVIDIA Blackwell Ultra GPU (GB300)", 18, 4, "gb300-nvl72-279gb"),
        ("NVIDIA A100-SXM4-80GB", 2, 4, "a100-sxm4-80gb"),
    ],
)
def test_a_chip_in_several_forms_is_the_one_whose_nodes_hold_so_many(raw, nodes, per_node, slug):
    system = SystemFacts(accelerator=raw, num_nodes=nodes, num_accelerators=nodes * per_node)
    assert Names().accelerators(system, None) == (slug, nodes * per_node)


def test_absurdly_long_names_are_cut():
    machine = Names().accelerators(SystemFacts(accelerator="x" * 10_000, num_accelerators=8), None)
    assert len(machine[0]) < 250


def test_unknown_names_stay_raw_and_are_counted():
    names = Names()
    for _ in range(2):
        machine = names.accelerators(SystemFacts(accelerator="Frobnicator 9", num_accelerators=8), None)
    assert machine[0] == "Frobnicator 9"
    (row,) = names.rows()
    assert (row.kind, row.raw, row.count) == ("accelerator", "Frobnicator 9", 2)
    assert "--hardware" in row.edit


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        (b'{"scaling_factor": 1.023}', 1.023),
        (b'{"scaling_factor": "1.5",}', 1.5),
        (b'{"scaling_factor": 0}', None),
        (b'{"scaling_factor": NaN}', None),
        (b'{"scaling_factor": 1e300}', None),
        (b'{"scaling_factor": 1e-300}', None),
        (b'{"factor": 1.1}', None),
        (b"[1.1]", None),
        (b"", None),
    ],
)
def test_a_factor_is_a_positive_number_or_unreadable(text, factor):
    assert read_scaling(text) == factor


@pytest.mark.parametrize(
    "text", [b"", b"\x00" * 99, b"[" * 100_000, b"9" * 100_000, b"[1, 2]", b"hello", b"\xff\xfe{"]
)
def test_what_describes_no_system_is_none(text):
    assert read_system(text) is None


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_never_raise(noise):
    read_system(noise)
    read_system(b'{"nodes": ' + noise + b"}")
    read_summary(noise)
    read_scaling(noise)
