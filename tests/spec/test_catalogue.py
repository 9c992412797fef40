"""Catalogues: values that live side by side in one process, whatever files they were made of."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from equipoise.errors import SpecError, UnknownNameError
from equipoise.spec.catalogue import Catalogue, catalogue, cluster_in_text, counted_name, shipped

CHIP = """
[accelerator.x1-oam-{memory}gb]
title = "X1 {memory} GB"
vendor = "Example"
kind = "npu"
memory_bytes = {memory}e9
peak_bf16_flop_per_s = 1e15
host_byte_per_s = 31.5e9
node_size = 4
inter_byte_per_s = 25e9
intra_latency_s = 5e-6
inter_latency_s = 14e-6
topology = "host"
source = "a datasheet"
confidence = "low"
aliases = ["X1"]

[accelerator.h100-sxm5-80gb]
power_w = {memory}
"""
WORKLOAD = "[workload.bert]\nparams = {params}e6\naliases = ['{name}']\n"


def made(folder: Path, memory: int) -> Catalogue:
    """A catalogue of two files of the user's."""
    hardware, workloads = folder / f"h{memory}.toml", folder / f"w{memory}.toml"
    hardware.write_text(CHIP.format(memory=memory), encoding="utf-8")
    workloads.write_text(WORKLOAD.format(params=memory, name=f"bert {memory}"), encoding="utf-8")
    return catalogue([hardware], [workloads])


def assert_is(found: Catalogue, memory: int) -> None:
    """That a catalogue says what its own files say, and nothing else."""
    assert found.accelerator("X1").memory_bytes == memory * 1e9
    assert found.cluster("X1").accelerator.slug == f"x1-oam-{memory}gb"
    assert found.accelerator("h100").power_w == memory
    assert found.workload(f"bert {memory}").params == memory * 1e6
    text = cluster_in_text("4x X1", catalogue=found)
    assert text is not None
    assert text.accelerator.memory_bytes == memory * 1e9


def test_two_catalogues_live_side_by_side_and_leave_what_ships_alone(tmp_path: Path) -> None:
    before = shipped()
    slugs = [chip.slug for chip in before.accelerators()]
    first, second = made(tmp_path, 100), made(tmp_path, 200)
    assert_is(first, 100)
    assert_is(second, 200)
    assert_is(first, 100)
    assert first.accelerator_slug("X1") != second.accelerator_slug("X1")
    assert first.workload_slug("bert 200") is None
    assert shipped() is before
    assert [chip.slug for chip in shipped().accelerators()] == slugs
    assert shipped().accelerator("h100").power_w == 700
    assert cluster_in_text("4x X1") is None
    with pytest.raises(SpecError, match=r"'X1'.*list accelerators.*--hardware"):
        shipped().accelerator("X1")


def test_threads_with_different_catalogues_do_not_meet(tmp_path: Path) -> None:
    def look(memory: int) -> None:
        for _ in range(3):
            assert_is(made(tmp_path, memory), memory)

    with ThreadPoolExecutor(max_workers=4) as threads:
        list(threads.map(look, (100, 200, 300, 400)))


def test_no_files_is_what_ships() -> None:
    assert catalogue() is shipped()
    assert catalogue([], []) == shipped()


def test_equal_files_make_equal_catalogues(tmp_path: Path) -> None:
    first, again, other = made(tmp_path, 100), made(tmp_path, 100), made(tmp_path, 200)
    assert (first == again, hash(first) == hash(again)) == (True, True)
    assert first not in {other, shipped()}


def test_a_single_changed_field_makes_another_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "h.toml"
    path.write_text("[accelerator.h100-sxm5-80gb]\npower_w = 650\n", encoding="utf-8")
    changed = catalogue([path])
    assert changed != shipped()
    path.write_text("[accelerator.h100-sxm5-80gb]\npower_w = 600\n", encoding="utf-8")
    assert catalogue([path]).accelerator("h100").power_w == 600  # read anew
    assert changed.accelerator("h100").power_w == 650


def test_a_catalogue_goes_to_other_processes(tmp_path: Path) -> None:
    first = made(tmp_path, 100)
    found = pickle.loads(pickle.dumps(first))  # noqa: S301 - our own
    assert found == first
    assert_is(found, 100)


def test_a_system_may_be_a_few_lines_that_name_an_accelerator_as_people_do(tmp_path: Path) -> None:
    path = tmp_path / "h.toml"
    path.write_text(
        "[cluster.ours]\ntitle = 'Ours'\naccelerators = ['rtx4090']\nnode_size = 3\n"
        "source = 'we built it'\nconfidence = 'high'\n",
        encoding="utf-8",
    )
    ours = catalogue([path]).cluster("ours", num_accelerators=6)
    assert (ours.accelerator.slug, ours.num_nodes) == ("rtx-4090-pcie-24gb", 2)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.toml: "):
        catalogue([tmp_path / "absent.toml"])
    with pytest.raises(SpecError, match=r"absent\.toml: "):
        catalogue(workloads=[tmp_path / "absent.toml"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3x rtx4090", (3, "rtx4090")),
        ("64xh100", (64, "h100")),
        ("64 X h100 ", (64, "h100")),
        ("2\u00d7 a100 80gb", (2, "a100 80gb")),
        ("dgx-h100", (None, "dgx-h100")),
        ("rtx 4090", (None, "rtx 4090")),
        ("x1", (None, "x1")),
        ("0x h100", (0, "h100")),
    ],
)
def test_a_count_stands_before_the_name(text: str, found: tuple[int | None, str]) -> None:
    assert counted_name(text) == found


@pytest.mark.parametrize(
    "name", ["mac", "Cerebras WSE-3", "a3-highgpu", "Tenstorrent Wormhole", "Frobnicator 9"]
)
def test_hardware_without_a_near_name_is_sent_to_the_list_and_the_option(name):
    for find in (shipped().cluster, shipped().accelerator):
        with pytest.raises(UnknownNameError) as refused:
            find(name)
        assert "gb" not in str(refused.value)  # of a slug
        assert "list accelerators" in refused.value.remedy
        assert "--example" in refused.value.remedy
        assert "--hardware" in refused.value.remedy
        assert "src/" not in str(refused.value)


@pytest.mark.parametrize(
    ("typed", "meant"), [("h1000", "h100-sxm5-80gb"), ("rtx4091", "rtx-4090-pcie-24gb"), ("b20", "b200")]
)
def test_a_slip_of_a_name_is_answered_with_the_near_one(typed, meant):
    with pytest.raises(UnknownNameError, match=meant):
        shipped().cluster(typed)
