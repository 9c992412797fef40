"""Pasted topologies parse to the links they show, whatever happened to them on the way; nothing is guessed."""

import re
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from equipoise.bench.topology import read
from equipoise.bench.topology.topology import best_groups, islands
from equipoise.errors import DataError, EvidenceError

# By hand from the samples: devices, classes among them (None: not told), cards, rows that are missing.
SAMPLES = {
    "a100x8_nv12": (8, {"NV12": 28}, 0, []),
    "a800x8_nv8_9nic_truncated": (8, {"NV8": 28}, 9, ["GPU7", *(f"NIC{i}" for i in range(9))]),
    "amd_4gpu_pcie_hops3_rocm_smi": (4, {"SYS": 6}, 0, []),
    "dask_slurm_2of8_nv12_10nic_truncated": (2, {"NV12": 1}, 10, [f"NIC{i}" for i in range(3, 10)]),
    "gb200x4_multi_numa_truncated": (4, {"NV18": 6}, 6, ["GPU3", *(f"NIC{i}" for i in range(6))]),
    "h100x8_hgx_nv18_10nic_truncated": (8, {"NV18": 28}, 10, [f"NIC{i}" for i in range(3, 10)]),
    "h100x8_nv18": (8, {"NV18": 28}, 0, []),
    "h100x8_nv18_ht_affinity": (8, {"NV18": 28}, 0, []),
    "h200x8_nvlink_nv18_8nic_ansi_mlperf_google": (8, {"NV18": 28}, 8, []),
    "l40s_x4_node_sys": (4, {"NODE": 2, "SYS": 4}, 2, []),
    "mig_nvidia_smi_L": (1, {}, 0, []),
    "nccl1817_8gpu_pix_node_sys_truncated": (
        8,
        {"PIX": 2, "NODE": 4, "SYS": 16, None: 6},
        0,
        ["GPU4", "GPU5", "GPU6", "GPU7"],
    ),
    "rtx5090x2_phb": (2, {"PHB": 1}, 0, []),
    "rtx5090x2_topo_p2p_rw_gns": (2, {None: 1}, 0, []),
    "rtx6000ada_x4_node_sys_stelline": (4, {"NODE": 2, "SYS": 4}, 4, []),
    "rtx_2gpu_nvlink_nv2": (2, {"NV2": 1}, 0, []),
    "rtx_2gpu_phb_workstation": (2, {"PHB": 1}, 0, []),
}


def topology(text, where="pasted"):
    return read(text if isinstance(text, bytes) else text.encode(), where=where)


@pytest.fixture
def sample(data_dir):
    return lambda name: topology((data_dir / "topology" / f"{name}.txt").read_bytes(), name)


def test_every_sample_is_known_here(data_dir):
    assert {path.stem for path in (data_dir / "topology").glob("*.txt")} == SAMPLES.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_parse_to_what_they_show(name, sample):
    found = sample(name)
    num_devices, classes, num_nics, missing = SAMPLES[name]
    assert [device.name for device in found.devices] == [f"GPU{i}" for i in range(num_devices)]
    assert Counter(link.link_class for link in found.between_devices) == classes
    assert [nic.name for nic in found.nics] == [f"NIC{i}" for i in range(num_nics)]
    assert [row.name for row in found.missing_rows] == missing
    assert not [link for link in found.links if link.conflict]


def test_affinities_are_read_as_lists_and_numbers(sample):
    found = sample("gb200x4_multi_numa_truncated").devices
    assert [(device.cpu_affinity, device.numa_affinity, device.numa_id) for device in found] == [
        ("0-71", "0,3-9,11-17", "2"),
        ("0-71", "0,3-9,11-17", "10"),
        ("72-143", "1,19-25,27-33", "18"),
        (None, None, None),
    ]
    workstation = sample("rtx_2gpu_phb_workstation").devices[0]
    assert (workstation.cpu_affinity, workstation.numa_affinity) == ("0-11", None)


def test_a_legend_names_the_cards(sample):
    found = sample("h200x8_nvlink_nv18_8nic_ansi_mlperf_google")
    assert (found.nics[0].title, found.nics[7].title) == ("rocep145s0", "rocep206s0")
    assert found.classes[frozenset(("GPU0", "NIC1"))] == "PIX"
    assert found.classes[frozenset(("NIC6", "NIC7"))] == "PIX"


def test_slices_belong_to_their_gpu(sample):
    (device,) = sample("mig_nvidia_smi_L").devices
    assert (device.title, device.slices) == ("NVIDIA A100-SXM4-80GB", ("1g.10gb",) * 7)


def test_peer_access_is_told_apart_from_links(sample):
    (link,) = sample("rtx5090x2_topo_p2p_rw_gns").links
    assert (link.link_class, link.peers) == (None, "GNS")


def test_weights_tell_hops_over_infinity_fabric_where_hops_say_one():
    found = topology(
        "=== Weight between two GPUs ===\n       GPU0 GPU1 GPU2\nGPU0   0    15   30\nGPU1   15   0    15\nGPU2   30   15   0\n"
        "=== Hops between two GPUs ===\n       GPU0 GPU1 GPU2\nGPU0   0    1    1\nGPU1   1    0    1\nGPU2   1    1    0\n"
        "=== Link Type between two GPUs ===\n       GPU0 GPU1 GPU2\nGPU0   0    XGMI XGMI\nGPU1   XGMI 0    XGMI\n"
        "=== Numa Nodes ===\nGPU[0] : (Topology) Numa Node: 0\nGPU[0] : (Topology) Numa Affinity: 3\n"
    )
    assert [link.link_class for link in found.links] == ["XGMI", "XGMI2", "XGMI"]
    assert [row.name for row in found.missing_rows] == ["GPU2"]
    assert found.devices[0].numa_affinity == "3"


@pytest.mark.parametrize(("kind", "words"), [("XGMI", "hops"), ("PCIE", "NUMA")])
def test_what_a_missing_table_of_weights_leaves_open_depends_on_the_links(kind, words):
    found = topology(
        f"=== Link Type between two GPUs ===\n       GPU0 GPU1\nGPU0   0    {kind}\nGPU1   {kind} 0\n"
    )
    (note,) = found.notes
    assert "weights" in note
    assert words in note


def test_amd_smi_names_devices_by_their_address():
    table = "{}:\n             0000:03:00.0 0000:0c:00.0\n0000:03:00.0 {a:12} {b}\n0000:0c:00.0 {b:12} {a}\n"
    found = topology(
        table.format("WEIGHT TABLE", a="0", b="40")
        + table.format("HOPS TABLE", a="0", b="2")
        + table.format("LINK TYPE TABLE", a="SELF", b="PCIE")
        + table.format("NUMA BW TABLE", a="N/A", b="N/A")
    )
    assert [(device.name, device.title) for device in found.devices] == [
        ("GPU0", "0000:03:00.0"),
        ("GPU1", "0000:0c:00.0"),
    ]
    assert [(link.link_class, link.weight, link.hops) for link in found.links] == [("PCIE", 40, 2)]


PAIRS = ["PHB", "NV4", "PHB", "PHB", "NV4", "PHB"]  # 0-1, 0-2, 0-3, 1-2, 1-3, 2-3


def classes(found):
    return [link.link_class for link in found.between_devices]


def test_a_table_on_one_line_is_read():
    found = topology(
        "$ nvidia-smi topo -m GPU0 GPU1 GPU2 GPU3 GPU0 X PHB NV4 PHB GPU1 PHB X PHB NV4 GPU2 NV4 PHB X PHB "
        "GPU3 PHB NV4 PHB X Software: 0.20.1"
    )
    assert classes(found) == PAIRS


def test_heads_and_cells_that_are_run_together_are_taken_apart():
    found = topology(
        "s114 nvidia-smi topo -m\nGPU0GPU1mlx5_0mlx5_2CPU AffinityNUMA AffinityGPU NUMA ID\n"
        "GPU0   XSYSPHB  SOC  0-13,28-41    0        N/A\nGPU1SYSXSYSPHB 14-27,42-55    1        N/A\n"
        "mlx5_0 PHB SYS X SYS\nmlx5_2 SOC PHB SYS X"
    )
    assert [nic.name for nic in found.nics] == ["mlx5_0", "mlx5_2"]
    assert found.missing_rows == ()
    assert [link.link_class for link in found.links] == ["SYS", "PHB", "SYS", "SYS", "PHB", "SYS"]
    assert found.devices[1].cpu_affinity == "14-27,42-55"


def test_wrapped_lines_are_joined():
    found = topology(
        "\tGPU0\tGPU1\tGPU2\nGPU3\tCPU Affinity\nGPU0\t X \tPHB\tNV4\nPHB\t0-11\nGPU1\tPHB\t X \tPHB\nNV4\t0-11\n"
        "GPU2\tNV4\tPHB\t X \nPHB\t0-11\nGPU3\tPHB\tNV4\tPHB\n X \t0-11\n"
    )
    assert classes(found) == PAIRS
    assert found.missing_rows == ()


def test_tables_of_markdown_and_tags_of_launchers_are_read():
    assert classes(
        topology("| | GPU0 | GPU1 | CPU Affinity |\n|--|--|--|--|\n| GPU0 | X | NODE | 0-3 |\n")
    ) == ["NODE"]
    tagged = "".join(
        f"[1,{rank}]<stdout>:{line}\n"
        for line in ("\tGPU0\tGPU1\tCPU Affinity", "GPU0\t X \tPXB\t0-3", "GPU1\tPXB\t X \t0-3")
        for rank in (0, 1)
    )
    found = topology(tagged)
    assert (classes(found), found.missing_rows, found.notes) == (["PXB"], (), ())


def test_rows_that_contradict_each_other_are_reported_and_not_decided():
    (link,) = topology("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tPHB\t X \n").links
    assert (link.link_class, link.conflict) == (None, ("NV2", "PHB"))


def test_a_row_that_lost_a_cell_is_left_out_and_named():
    found = topology("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV2\tSYS\nGPU1\tX\tNV2\tSYS\nGPU2\tSYS\tSYS\tX\n")
    assert [row.name for row in found.missing_rows] == ["GPU1"]
    (note,) = found.notes
    assert note.startswith("Row GPU1, line 3: ")
    assert classes(found) == ["NV2", "SYS", "SYS"]


@pytest.mark.parametrize("end", ["NV1", "NV", "SY"])
def test_a_cell_in_which_the_text_ends_is_not_believed(end):
    found = topology(f"\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tNV12\tNV12\t0-3\nGPU1\tNV12\t X \t{end}")
    assert classes(found) == ["NV12", "NV12", None]
    assert [(row.name, row.num_cells) for row in found.missing_rows] == [("GPU1", 2), ("GPU2", 0)]


def test_without_heads_the_x_tells_the_columns():
    found = topology("GPU0\t X \tNV2\tSYS\t0-11\nGPU1\tNV2\t X \tSYS\t0-11\nGPU2\tSYS\tSYS\t X \t12-23\n")
    assert classes(found) == ["NV2", "SYS", "SYS"]
    assert "heads" in found.notes[0]


def test_a_class_of_some_later_driver_is_named_and_not_translated():
    found = topology("\tGPU0\tGPU1\nGPU0\t X \tC2C\nGPU1\tC2C\t X \n")
    assert classes(found) == [None]
    (note,) = found.notes
    assert note.endswith(": C2C.")


def test_a_second_machine_in_one_text_is_said_to_be_left_out():
    one = "\tGPU0\tGPU1\nGPU0\t X \t{0}\nGPU1\t{0}\t X \n\nLegend:\n\n  X    = Self\n\n"
    found = topology(one.format("NV2") + one.format("SYS"))
    assert classes(found) == ["NV2"]
    assert "line 9" in found.notes[0]
    assert topology(one.format("NV2") * 2).notes == ()


def test_all_that_nvidia_smi_prints_may_be_pasted_together():
    found = topology(
        "GPU 0: NVIDIA GeForce RTX 5090 (UUID: GPU-1)\nGPU 1: NVIDIA GeForce RTX 5090 (UUID: GPU-2)\n"
        "$ nvidia-smi topo -m\n\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-63\nGPU1\tPHB\t X \t0-63\n"
        "$ nvidia-smi topo -p2p n\n \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n"
        "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n"
    )
    assert found.devices[1].title == "NVIDIA GeForce RTX 5090"
    assert [(link.link_class, link.peers) for link in found.links] == [("PHB", "GNS")]


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16"])
def test_files_of_other_systems_are_read(codec):
    text = "\tGPU0\tGPU1\r\nGPU0\t X \tNV2\r\nGPU1\tNV2\t X \r\n"
    assert classes(topology(text.encode(codec))) == ["NV2"]


def test_one_accelerator_is_a_topology_too():
    found = topology("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-1\tN/A\n\nLegend:\n")
    assert ([device.name for device in found.devices], found.links) == (["GPU0"], ())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "`nvidia-smi topo -m`"),
        (b"hello world", "no matrix"),
        (b"\x7fELF\0\0", "line 1: a NUL byte"),
        (b"GPU0 " * 1_000_000, "more than 4,000,000 bytes"),
        (b"GPU0 X\n" * 30_000, "30,001 lines"),
        (b"x" * 50_000, "50,000 characters"),
    ],
)
def test_what_is_no_topology_is_refused_in_one_sentence(content, words):
    with pytest.raises(DataError) as refused:
        read(content, where="x.txt")
    assert str(refused.value).startswith("x.txt: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_heads_without_rows_are_too_little_evidence():
    with pytest.raises(EvidenceError, match="pasted: 2 accelerators") as refused:
        topology("\tGPU0\tGPU1\tCPU Affinity\n")
    assert refused.value.missing == ("the rows GPU0, GPU1",)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(content):
    try:
        read(content, where="x")
    except (DataError, EvidenceError):
        return


WORDS = st.sampled_from(
    [
        "GPU0",
        "GPU1",
        "GPU2",
        "NIC0",
        "X",
        "NV2",
        "SYS",
        "N/A",
        "0-3",
        "C2C",
        "Legend:",
        "CPU",
        "Affinity",
        "mlx5_0",
        "OK",
        "GNS",
    ]
)


@given(st.lists(st.tuples(WORDS, st.sampled_from([" ", "\t", "\n", ""])), max_size=60))
# Two rows of one name, and no heads of columns: each was a column of that name.
@example([("GPU0", " "), ("X", " "), ("GPU0", " "), ("NV2", " "), ("X", " ")])
def test_any_words_of_a_table_are_read_or_refused(parts):
    try:
        found = topology("".join(word + gap for word, gap in parts))
    except (DataError, EvidenceError):
        return
    names = [device.name for device in found.devices] + [nic.name for nic in found.nics]
    assert len(set(names)) == len(names)
    assert len(found.links) in (0, len(names) * (len(names) - 1) // 2)


CLASSES = ["NV1", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"]
GAPS = st.sampled_from(["\t", "\t\t", "   ", " \t "])


@st.composite
def tables(draw):
    """A topology as nvidia-smi lays it out, columns in any order, and the links that it shows."""
    num_gpus, num_nics = draw(st.integers(1, 9)), draw(st.integers(0, 4))
    cards = draw(st.sampled_from(["NIC{}", "mlx5_{}", "rocep{}s0", "bnxt_re{}"]))
    names = [f"GPU{i}" for i in range(num_gpus)] + [cards.format(i) for i in range(num_nics)]
    columns = draw(st.permutations(names))
    links = {
        frozenset((a, b)): draw(st.sampled_from(CLASSES)) for i, a in enumerate(names) for b in names[:i]
    }
    heads = draw(st.sampled_from([[], ["CPU Affinity"], ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]]))
    gap = draw(GAPS)
    lines = [gap.join(["", *columns, *heads])]
    for name in draw(st.permutations(names)):
        cells = [" X " if other == name else links[frozenset((name, other))] for other in columns]
        behind = ["0-3,8-11", "0", "N/A"][: len(heads)] if name.startswith("GPU") else []
        lines.append(gap.join([name, *cells, *behind]))
    legend = draw(
        st.sampled_from(["", "\n\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"])
    )
    echo = draw(st.sampled_from(["", "root@n1:~# nvidia-smi topo -m\n", "nvidia-smi topo -m", "\x1b[4m"]))
    return echo + "\n".join(lines) + legend, links, len(heads)


@pytest.mark.law
@given(tables())
def test_a_printed_topology_parses_back_to_its_links(table):
    text, links, num_heads = table
    found = topology(text)
    assert found.classes == links
    assert found.missing_rows == ()
    assert found.notes == ()
    assert found.devices
    assert all((device.cpu_affinity == "0-3,8-11") == (num_heads > 0) for device in found.devices)


@pytest.mark.law
@given(tables(), st.data())
def test_a_cut_topology_tells_no_link_that_the_whole_does_not(table, data):
    text, links, _ = table
    cut = text[: data.draw(st.integers(0, len(text)))]
    try:
        found = topology(cut)
    except (DataError, EvidenceError):
        return
    assert found.classes.items() <= links.items()


@pytest.mark.law
@given(tables())
def test_islands_part_the_devices_and_groups_get_no_better_as_they_grow(table):
    text, links, _ = table
    found = topology(text)
    parts = islands(found)
    placed = [name for group in parts.members for name in group]
    assert sorted(placed) == sorted(device.name for device in found.devices)
    assert parts.unplaced == ()
    order = {name: place for place, name in enumerate(["NV18", "NV12", "NV1", *CLASSES[3:]])}
    groups = best_groups(found)
    ranks = [order[group.link_class] for group in groups]
    assert ranks == sorted(ranks)
    inside = [[links[frozenset(pair)] for pair in combinations(group.devices, 2)] for group in groups]
    assert [max(each, key=order.__getitem__) for each in inside] == [group.link_class for group in groups]


def test_islands_are_the_sockets_where_there_is_no_fabric(sample):
    assert islands(sample("l40s_x4_node_sys")).members == (("GPU0", "GPU1"), ("GPU2", "GPU3"))


def test_islands_nobody_told_are_not_made_up(sample):
    parts = islands(sample("nccl1817_8gpu_pix_node_sys_truncated"))
    assert parts.members == (("GPU0", "GPU1", "GPU2", "GPU3"),)
    assert parts.unplaced == ("GPU4", "GPU5", "GPU6", "GPU7")


def test_the_weakest_link_of_each_group_is_that_of_the_best_choice(sample):
    groups = best_groups(sample("l40s_x4_node_sys"))
    assert [(group.num_devices, group.link_class, group.worst_class) for group in groups] == [
        (2, "NODE", "SYS"),
        (4, "SYS", "SYS"),
    ]


def test_nvlinks_that_no_accelerator_has_enough_of_go_through_a_switch(sample):
    assert sample("a100x8_nv12").is_switched
    assert not sample("rtx_2gpu_nvlink_nv2").is_switched


def test_colours_and_titles_of_terminals_are_not_seen():
    text = "\x1b]0;title\x07\x1b[1;32muser\x1b[0m$ nvidia-smi topo -m\r\n\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tPIX\n"
    found = topology(text)
    assert classes(found) == ["PIX"]
    assert not re.search(r"[\x00-\x1f]", "".join(found.notes) + found.devices[0].name)


def test_colours_that_copying_has_cut_are_not_seen():
    table = (
        "\t[4mGPU0\tGPU1\tGPU2\tCPU Affinity[0m\nGPU0\t X \tNV4\tSYS\t0-15\n"
        "GPU1\tNV4\t X \tPIX\t0-15\nGPU2\tSYS\tPIX\t X \t0-15\n"
    )
    assert classes(topology(table)) == ["NV4", "SYS", "PIX"]


def test_rows_that_no_column_is_headed_for_tell_no_link():
    table = "\t#GPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tSYS\nGPU1\tNV4\t X \tPIX\nGPU2\tSYS\tPIX\t X \n"
    with pytest.raises(EvidenceError):
        topology(table)
