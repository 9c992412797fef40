"""What a topology means: ranges that narrow with what is known, verdicts that follow the links."""

import re
import tomllib
from pathlib import Path

import pytest

from equipoise.bench.topology import read
from equipoise.bench.topology.topology import Device, Topology
from equipoise.diagnose.link_findings import gain_words, gaps, named, sentences
from equipoise.diagnose.links import LEAST_GAIN, MODELS, meaning, named_chips
from equipoise.errors import UsageError
from equipoise.spec.hardware import accelerator
from equipoise.spec.links import rank

TRUTH = tomllib.loads((Path(__file__).parents[1] / "truth" / "links.toml").read_text())


def two(link, title=None, peers=None):
    listed = "".join(f"GPU {i}: {title} (UUID: GPU-{i})\n" for i in range(2)) if title else ""
    table = f"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{link}\t0-3\nGPU1\t{link}\t X \t0-3\n"
    reached = f"$ nvidia-smi topo -p2p r\n\tGPU0\tGPU1\nGPU0\tX\t{peers}\nGPU1\t{peers}\tX\n" if peers else ""
    return read((listed + table + reached).encode(), where="pasted")


def gains(found):
    return {gain.workload: gain for gain in found.gains}


@pytest.fixture(scope="module")
def behind_a_host_bridge():
    return meaning(two("PHB"))


def test_small_networks_lose_and_large_ones_gain_behind_a_host_bridge(behind_a_host_bridge):
    found = gains(behind_a_host_bridge)
    assert list(found) == list(MODELS)
    assert found["small_cnn"].verdict == "slower"
    assert found["gpt2_medium"].verdict == "gains"
    assert all(gain.low <= gain.speedup <= gain.high <= 2 for gain in found.values())


@pytest.mark.truth
def test_the_field_report_is_met_where_it_says_enough(behind_a_host_bridge):
    found = gains(behind_a_host_bridge)
    reported = TRUTH["field_report_speedup"]
    assert [slug for slug in reported if found[slug].low <= reported[slug] <= found[slug].high] == [
        "small_cnn",
        "resnet50",
        "resnet152",
        "vit_large",
    ]
    assert found["small_cnn"].verdict == "slower"
    # Its MobileNetV2 lost a fifth, on images whose size it does not state; at 224 pixels ours gains.
    assert found["mobilenet_v2"].low > reported["mobilenet_v2"]


@pytest.mark.parametrize(("num_gpus", "pairs"), [(3, "3"), (72, "2,556")])
def test_pairs_are_counted_with_their_thousands_apart(num_gpus, pairs):
    names = [f"GPU{place}" for place in range(num_gpus)]
    rows = [[name, *("X" if name == other else "NV18" for other in names)] for name in names]
    text = "\n".join(map("\t".join, [["", *names], *rows]))
    words = " ".join(sentences(meaning(read(text.encode(), where="pasted"))))
    assert re.search(rf"(?<![0-9,]){pairs} pairs", words)


def test_ranges_of_unnamed_cards_hold_those_of_each(behind_a_host_bridge):
    """However many others are in the catalogue."""
    unnamed = gains(behind_a_host_bridge)
    for name in ("rtx-2080-ti-pcie-11gb", "a2-pcie-16gb", "h100-pcie-80gb"):
        own = gains(meaning(two("PHB"), chip=accelerator(name)))
        assert own
        for slug, gain in own.items():
            # of the same draws of priors; rates of links are drawn anew
            assert unnamed[slug].low <= gain.low * 1.02, (name, slug)
            assert unnamed[slug].high >= gain.high * 0.98, (name, slug)


@pytest.mark.truth
def test_choices_of_the_field_report_come_out_on_a_card_like_its_own():
    found = meaning(two("PHB"), chip=accelerator("rtx-2080-ti-pcie-11gb"), batch=8, with_autocast=False)
    chosen = {slug: gain.speedup >= LEAST_GAIN for slug, gain in gains(found).items()}
    reported = TRUTH["field_report_speedup"]
    assert {slug: chosen[slug] for slug in reported} == {
        slug: speedup >= LEAST_GAIN for slug, speedup in reported.items()
    }
    text = "\n".join(sentences(found))
    assert re.search(r"peer access.*0\.80x.*MobileNetV2", text)


def test_why_is_said_by_the_parts_of_a_step():
    chip = accelerator("rtx-2080-ti-pcie-11gb")
    (slow,), (fast,) = (meaning(two(name), chip=chip).parts for name in ("PHB", "NV2"))
    assert fast.exchange_s < slow.exchange_s / 3
    assert fast.launching_s == pytest.approx(slow.launching_s)
    assert slow.share_s > slow.one_s / 2
    text = "\n".join(sentences(meaning(two("NV2"), chip=chip)))
    assert re.search(r"step of ResNet-50", text)
    assert "field report" not in text


def test_better_links_never_slow_a_model():
    chip = accelerator("a100-pcie-80gb")
    by_class = {name: gains(meaning(two(name), chip=chip)) for name in ("NV12", "PHB", "SYS")}
    assert MODELS
    for slug in MODELS:
        speedups = [by_class[name][slug].speedup for name in sorted(by_class, key=rank)]
        assert speedups == sorted(speedups, reverse=True)


def test_a_larger_batch_gains_more():
    chip = accelerator("rtx-4090-pcie-24gb")
    small, large = (gains(meaning(two("PHB"), chip=chip, batch=batch)) for batch in (8, 512))
    assert MODELS
    assert all(small[slug].speedup < large[slug].speedup for slug in MODELS)


def test_a_model_that_slows_down_is_no_example_of_what_may_not():
    found = meaning(two("SYS"), chip=accelerator("rtx-4090-pcie-24gb"), batch=2)
    assert {gain.verdict for gain in found.gains} == {"slower"}
    largest = max(found.gains, key=lambda gain: gain.params)
    assert next(gain_words(found)).count(largest.title) == 1


def test_titles_name_the_accelerator():
    found = meaning(two("PHB", title="NVIDIA GeForce RTX 4090"))
    assert found.chip is not None
    assert found.chip.slug == "rtx-4090-pcie-24gb"
    assert found.reached[0].reach.path == "staged"
    assert any(re.search("NVIDIA GeForce RTX 4090 .*peer access", each) for each in sentences(found))


def test_another_accelerator_than_the_titles_name_is_refused():
    """Else one answer mixes the links of one with the name of the other."""
    with pytest.raises(UsageError, match=r"RTX 4090.*H100"):
        meaning(two("PHB", title="NVIDIA GeForce RTX 4090"), chip=accelerator("h100-sxm5-80gb"))
    own = accelerator("rtx-4090-pcie-24gb")
    assert meaning(two("PHB", title="NVIDIA GeForce RTX 4090"), chip=own).chip == own


def test_what_narrows_the_range_is_listed(behind_a_host_bridge):
    text = "\n".join(sentences(behind_a_host_bridge))
    assert re.search(r"pair of 2 accelerators.*PCIe host bridge", text)
    assert re.search(r"PHB: 2 accelerators", text)
    assert "--accelerator NAME" in text
    assert "`nvidia-smi topo -p2p r`" in text
    text = "\n".join(sentences(meaning(two("PHB", peers="GNS"))))
    assert "-p2p" not in text
    assert re.search(r"GNS: .*not support", text)


def test_titles_that_no_table_has_are_named():
    found = meaning(two("PHB", title="NVIDIA Zeppelin 9"))
    assert found.chip is None
    assert any("NVIDIA Zeppelin 9" in each for each in sentences(found))


def test_unlike_accelerators_stand_for_each_of_them():
    devices = tuple(Device(name=f"GPU{i}", title=f"NVIDIA GeForce RTX {i + 3}090") for i in range(2))
    whole = two("PHB")
    mixed = Topology(origin=whole.origin, devices=devices, links=whole.links)
    assert [chip.slug for chip in named_chips(mixed)] == ["rtx-3090-pcie-24gb", "rtx-4090-pcie-24gb"]
    found = meaning(mixed)
    assert (found.chip, len(found.candidates)) == (None, 2)
    assert any("They differ" in each for each in sentences(found))


def test_sockets_are_not_taken_for_accelerators():
    found = meaning(
        Topology(
            origin="this machine", devices=(Device(name="CPU0", kind="cpu", num_cores=2, numa_affinity="0"),)
        )
    )
    assert (found.reached, found.gains) == ((), ())
    (only,) = sentences(found)
    assert re.match("No accelerators: 1 .*2 cores; NUMA 0", only)


def test_a_machine_without_accelerators_has_no_links_of_one():
    sockets = tuple(Device(name=f"CPU{number}", kind="cpu") for number in range(2))
    with pytest.raises(UsageError, match=r"H100.*nvidia-smi topo -m"):
        meaning(Topology(origin="this machine", devices=sockets), chip=accelerator("h100-sxm5-80gb"))


def test_crossovers_are_ordered_or_unknown(behind_a_host_bridge):
    (found,) = behind_a_host_bridge.crossovers
    assert found.low is not None
    assert found.params is not None
    assert found.least <= found.low <= found.params <= found.most


def test_contradictions_and_gaps_are_said():
    torn = read(b"\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV2\tSYS\nGPU1\tPHB\t X \tSYS\n", where="pasted")
    text = "\n".join(gaps(torn))
    assert re.search(r"GPU0 and GPU1: .*GPU0.* NV2.*GPU1 has PHB", text)
    assert "Missing rows: GPU2" in text


def test_a_cut_table_still_says_which_group_to_take():
    cut = read(
        b"\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\t X \tPIX\tSYS\tSYS\nGPU1\tPIX\t X \tSYS\tSYS\n", where="pasted"
    )
    text = "\n".join(sentences(meaning(cut)))
    assert re.search(r"For 2.* GPU0 and GPU1: .* PIX; .* SYS", text)


def test_runs_of_names_are_joined():
    assert named(["GPU0"]) == "GPU0"
    assert named([f"GPU{i}" for i in range(9, 12)]) == "GPU9-GPU11"
    assert named(["GPU0", "GPU2", "mlx5_0", "mlx5_1"]) == "GPU0, GPU2, mlx5_0 and mlx5_1"


def test_a_single_processor_has_no_link_between_sockets():
    # A GH200 has one socket; its GPU is a NUMA node of its own, and the card is SYS to it.
    text = "\n".join(
        sentences(
            meaning(
                read(b"\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tSYS\t0-71\nNIC0\tSYS\t X \t\n", where="pasted")
            )
        )
    )
    assert "What GPU0 sends " in text
    assert re.search(r"NUMA.*sockets", text)
