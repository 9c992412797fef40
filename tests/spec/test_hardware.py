"""Accelerators by name: every raw name of the results resolves, facts obey the laws of chips, users can override."""

import csv
import math
import re
import tomllib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.spec import hardware
from equipoise.spec.catalogue import shipped
from equipoise.spec.hardware import DTYPES, HARDWARE_FILE, AcceleratorAlias, load_hardware, shipped_hardware

# Largest square products as reported for cards, of which the facts are medians.
SQUARE_PRODUCTS = Path(__file__).parents[2] / "docs" / "experiments" / "data" / "0040-square-products.csv"
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Where the development table and the datasheets read since then differ: slug and field.
CORRECTED = {
    ("b200-sxm6-180gb", "fp32"),  # 600e12 over 8 GPUs in NVIDIA's HGX table
    ("b300-sxm6-270gb", "fp32"),  # likewise
    ("b300-sxm6-270gb", "mem_gb"),  # 288 fitted, 270 usable and in every MLPerf name
    ("gb300-nvl72-279gb", "mem_gb"),  # likewise 279
    ("tpu-v7x", "fp16"),  # no fp16 unit is documented
    ("gaudi-oam-32gb", "bf16"),  # published at Hot Chips 2024
}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_raw_accelerator_name_of_the_results_resolves(data_dir: Path) -> None:
    table = rows(data_dir / "mlperf" / "accelerator_names.csv")
    assert len(table) == 94
    unresolved = [
        row["raw_name"] for row in table if hardware.shipped_hardware().alias(row["raw_name"]) is None
    ]
    # No name at all, CPU-only systems (their processor is the accelerator), and TPU, which needs its system.
    assert unresolved == ["", "N/A", "NA", "TPU"]


def test_raw_names_resolve_to_the_chip_memory_and_unit_found_independently(data_dir: Path) -> None:
    table = list(rows(data_dir / "mlperf" / "accelerator_names.csv"))
    assert table
    for row in table:
        alias = hardware.shipped_hardware().alias(row["raw_name"])
        if alias is None:
            continue
        chip = hardware.accelerator(alias.slug)
        words = alias.slug.split("-")
        stated = row["canonical_chip"].casefold()
        if stated.startswith("tpu"):
            assert words[1] == ("v6e" if "v6e" in stated else stated.split()[1])
        else:
            named = [word for word in re.split(r"[\s]+", stated) if word in {*words, f"{words[0]}{words[1]}"}]
            assert named, (row["raw_name"], alias.slug)
        if re.fullmatch(r"\d+", row["memory_gb"]):
            assert chip.memory_bytes == int(row["memory_gb"]) * 10**9, row["raw_name"]
        assert alias.accelerators_per_count == (0.5 if row["count_unit"] == "core" else 1.0)


@pytest.mark.parametrize(
    ("raw", "slug"),
    [
        ("NVIDIA H100-SXM5-80GB", "h100-sxm5-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("H100 NVL Tensor Core GPU (PCIe)", "h100-nvl-94gb"),
        ("NVIDIA A100 - PCIe - 80 GB", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIe-40GB(250W)", "a100-pcie-40gb"),
        ("Nvidia Tesla V100", "v100-sxm2-32gb"),
        ("NVIDIA V100", "v100-sxm2-16gb"),
        ("Tesla V100-SXM3-32GB-H", "v100-sxm3h-32gb"),
        ("AMD Instinct MI325X 256GB HBM3e", "mi325x-oam-256gb"),
        ("Intel(R) Gaudi(R) 2 AI Accelerator", "gaudi2-oam-96gb"),
        ("Intel\u00ae Gaudi\u00ae 2 AI Accelerator", "gaudi2-oam-96gb"),
        ("Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", "xeon-8380h-cpu"),
        (
            "Pre-released Intel\u00c2\u00ae Xeon Scalable processor codenamed Cooper Lake-6",
            "xeon-cooper-lake-6-cpu",
        ),
        ("TPU-trillium", "tpu-v6e"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090-pcie-24gb"),
    ],
)
def test_spellings_of_the_results(raw: str, slug: str) -> None:
    assert shipped().accelerator_slug(raw) == slug


def test_names_match_whole_never_in_part() -> None:
    assert hardware.accelerator("NVIDIA A40").slug == "a40-pcie-48gb"
    assert shipped().accelerator_slug("RTX A400") is None
    assert shipped().accelerator_slug("NVIDIA H100-SXM5-80GB and more") is None
    assert shipped().accelerator_slug("H100") is None


def test_early_tpu_counts_are_cores() -> None:
    assert hardware.shipped_hardware().alias("tpuv2-512") == AcceleratorAlias(
        slug="tpu-v2", accelerators_per_count=0.5
    )
    assert hardware.shipped_hardware().alias("tpu-v3") == AcceleratorAlias(slug="tpu-v3")


def test_a_bare_tpu_needs_its_system() -> None:
    assert hardware.shipped_hardware().alias("TPU") is None
    assert hardware.shipped_hardware().alias("TPU", "tpu-v9-128") is None
    found = hardware.shipped_hardware().alias("TPU", "tpu-v4-6912")
    assert found == AcceleratorAlias(slug="tpu-v4")


def test_figures_agree_with_the_development_table(data_dir: Path) -> None:
    columns = {
        **{f"{dtype}_tflops": (dtype, 1e12) for dtype in DTYPES},
        "mem_gb": ("memory_bytes", 1e9),
        "mem_bw_gbs": ("memory_byte_per_s", 1e9),
        "link_unidir_gbs_per_chip": ("link_byte_per_s", 1e9),
        "tdp_w": ("power_w", 1.0),
        "mamf_bf16_measured": ("achieved_bf16_flop_per_s", 1e12),
    }
    table = rows(data_dir / "accelerators.csv")
    assert len(table) == 57
    differing = set()
    for row in table:
        chip = hardware.accelerator(row["name"])
        for column, (field, unit) in columns.items():
            ours = chip.peak_flop_per_s(field) if field in DTYPES else getattr(chip, field)
            theirs = float(row[column]) * unit if row[column] else None
            both = ours is not None and theirs is not None
            elsewhere = theirs is None and column == "mamf_bf16_measured"  # 0040 has cards that MAMF lacks
            if ours != theirs and not elsewhere and not (both and math.isclose(ours, theirs, rel_tol=1e-9)):
                differing.add((chip.slug, field if field in DTYPES else column))
    assert differing == CORRECTED


def test_achieved_rates_are_those_measured(data_dir: Path) -> None:
    measured = {
        row["hardware"]: float(row["measured"]) for row in rows(data_dir / "measured" / "mamf_gemm.csv")
    }
    assert len(measured) == 15
    for name, tflop_per_s in measured.items():
        chip = hardware.accelerator(name)
        assert chip.achieved_bf16_flop_per_s == pytest.approx(tflop_per_s * 1e12), name
        assert chip.achievable_is_measured


def test_other_achieved_rates_are_the_median_of_those_reported(data_dir: Path) -> None:
    mamf = {row["hardware"] for row in rows(data_dir / "measured" / "mamf_gemm.csv")}
    known = {hardware.accelerator(name).slug for name in mamf}
    reported: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows(SQUARE_PRODUCTS):
        for dtype in ("fp32", "fp16", "bf16"):
            if row[f"{dtype}_tflop_per_s"]:
                reported[row["accelerator"], dtype].append(float(row[f"{dtype}_tflop_per_s"]) * 1e12)
    stated = {
        (chip.slug, dtype): rate
        for chip in hardware.accelerators()
        for dtype in ("fp32", "fp16", "bf16")
        if (rate := getattr(chip, f"achieved_{dtype}_flop_per_s")) is not None
        and not (dtype == "bf16" and chip.slug in known)
    }
    assert len(stated) > 30
    assert stated == {key: pytest.approx(median(reported[key]), rel=1e-3) for key in stated}
    cards = {slug for slug, _ in reported}
    assert cards == {slug for slug, _ in stated}


def test_what_nobody_measured_is_taken_from_the_nearest_of_the_same_maker() -> None:
    # By hand from the MAMF table: 668.4 / 1307, 784.9 / 1307, 1565 / 2516, and 83.18 / 103 of RX 7900 XT:
    # with 1.46 W a TFLOP/s MI250X is nearest to MI325X (0.77), MI300X (0.57) and MI355X (0.56).
    assert hardware.accelerator("MI250X").achievable_fraction == pytest.approx(784.9 / 1307)
    assert not hardware.accelerator("MI250X").achievable_is_measured
    assert hardware.accelerator("A100 SXM4 80GB").achievable_fraction == pytest.approx(271.2 / 312)
    # RTX 6000 Ada, 300 W for 364.2 TFLOP/s, lies between RTX PRO 6000 Max-Q (300 W, 238.6 of 438.9) and L40S
    # (350 W, 269.1 of 362). Nor more power's share is less: L4 (70.89 of 121) counts with the one, T4 (42.31 of
    # 65) with the other.
    less, more = (70.89 / 121 + 238.6 / 438.9) / 2, (269.1 / 362 + 42.31 / 65) / 2
    way = math.log(300 / 364.2 * 438.9 / 300) / math.log(350 / 362 * 438.9 / 300)
    between = less + way * (more - less)
    assert hardware.accelerator("RTX 6000 Ada").achievable_fraction == pytest.approx(between)
    # Another form of a chip that was measured comes before all others: V100, 95 of 125.
    assert hardware.accelerator("v100-sxm3h-32gb").achievable_fraction == pytest.approx(95 / 125, rel=0.05)
    # TPU v4 feeds 4.4 bytes a kFLOP, nearest to v5e with 4.2, whose XLA reaches 181.8 of 197 TFLOP/s; not to
    # Ironwood's 3.2 (two cores of 956.4, of 2,307) nor to v6e's 1.8.
    assert hardware.accelerator("tpu-v4").achievable_fraction == pytest.approx(181.8 / 197)
    assert hardware.accelerator("tpu-v7x").achievable_fraction == pytest.approx(2 * 956.4 / 2307)


@pytest.mark.parametrize(("products", "least"), [(hardware._NARROW, 40), (hardware._SINGLE, 30)])
def test_a_card_left_out_is_told_by_those_built_alike(products: hardware._Products, least: int) -> None:
    # Each measured card of NVIDIA's as one that nobody measured, nor another of its chip or peaks.
    measured = {
        chip: fraction
        for chip in hardware.accelerators()
        if (fraction := products.achieved_fraction(chip)) is not None
    }
    away = []
    for chip, fraction in measured.items():
        if chip.vendor == "NVIDIA":
            others = [
                hardware._MeasuredChip(each, part, products.power_per_flop_log(each))
                for each, part in measured.items()
                if not hardware.is_same_chip(each, chip) and not hardware.has_same_peaks(each, chip)
            ]
            by_power = hardware._fractions_by_power(others)
            away.append(
                abs(math.log(hardware._expected_fraction(chip, others, by_power, products) / fraction))
            )
    assert len(away) > least
    # The nearest three by power per FLOP/s, of any build, were 8.7 and 8.9 % off.
    assert sum(away) / len(away) < 0.08


def test_a_share_lies_between_those_of_its_neighbours() -> None:
    by_power = [(0.0, 0.5), (1.0, 0.75), (1.125, 1.0)]  # by hand; the last rise is more than in proportion
    for at, share in ((-1.0, 0.5), (0.0, 0.5), (0.5, 0.625), (1.0, 0.75), (3.0, 1.0)):
        assert hardware._fraction_between(by_power, at) == pytest.approx(share)
    assert hardware._fraction_between(by_power, 1.0625) == pytest.approx(0.75 * math.exp(0.0625))


def test_fp32_reaches_a_share_of_its_own() -> None:
    # 19.18 of 19.5 TFLOP/s and 24.79 of 35.6: the second half of Ampere's fp32 units shares its issue slots.
    assert hardware.accelerator("a100-sxm4-80gb").achievable_fp32_fraction == pytest.approx(19.18 / 19.5)
    assert hardware.accelerator("rtx-3090-pcie-24gb").achievable_fp32_fraction == pytest.approx(24.79 / 35.6)


def test_names_of_one_series_are_not_one_chip() -> None:
    def same(one: str, other: str) -> bool:
        return hardware.is_same_chip(hardware.accelerator(one), hardware.accelerator(other))

    assert same("h100-sxm5-80gb", "h100-pcie-80gb")
    assert not same("rtx-3090-pcie-24gb", "rtx-5060-pcie-8gb")
    assert not same("tpu-v4", "tpu-v5e")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # A800 and H800 are A100 and H100 with slower NVLinks, H200 an H100 with more memory; H20 computes slower.
        ("a800-sxm4-80gb", "a100-sxm4-80gb", True),
        ("h800-sxm5-80gb", "h100-sxm5-80gb", True),
        ("h200-sxm5-141gb", "h100-sxm5-80gb", True),
        ("h20", "h100-sxm5-80gb", False),
        ("rtx-4090-pcie-24gb", "rtx-4080-pcie-16gb", False),
    ],
)
def test_chips_with_the_same_peaks(one: str, other: str, *, expected: bool) -> None:
    first, second = hardware.accelerator(one), hardware.accelerator(other)
    assert hardware.has_same_peaks(first, second) is expected
    assert hardware.has_same_peaks(second, first) is expected


def test_every_accelerator_states_the_node_it_sits_in() -> None:
    assert hardware.accelerators()
    for chip in hardware.accelerators():
        for field in (
            "node_size",
            "num_nics",
            "inter_byte_per_s",
            "intra_latency_s",
            "inter_latency_s",
            "link_byte_per_s",
        ):
            assert getattr(chip, field), (chip.slug, field)
        assert chip.topology in hardware.TOPOLOGIES
        assert len(chip.node_source or "") > 5
        assert chip.topology != "host" or chip.host_byte_per_s
        assert not chip.switch_reduces or chip.topology == "switch"


@pytest.mark.parametrize(
    (
        "name",
        "byte_per_s",
    ),  # PCIe 3, 4 and 5 with 16 lanes of 8, 16, 32 GT/s and 128/130 coding; NVLink-C2C both ways over 2
    [("T4", 15.75e9), ("a100-sxm4-80gb", 31.5e9), ("h100-sxm5-80gb", 63e9), ("GH200 96GB", 450e9)],
)
def test_host_links_are_those_of_the_slot(name: str, byte_per_s: float) -> None:
    assert hardware.accelerator(name).host_byte_per_s == byte_per_s


def test_memory_size_is_the_one_in_the_slug() -> None:
    assert hardware.accelerators()
    for chip in hardware.accelerators():
        stated = re.search(r"-(\d+)(gb|mb)$", chip.slug)
        if stated is None:
            assert chip.kind in {"tpu", "cpu"}, chip.slug
            continue
        assert chip.memory_bytes == int(stated[1]) * {"gb": 10**9, "mb": 10**6}[stated[2]]


@pytest.mark.law
def test_narrower_types_are_never_slower() -> None:
    assert hardware.accelerators()
    for chip in hardware.accelerators():
        for wide, narrow in (
            ("fp32", "tf32"),
            ("tf32", "fp16"),
            ("fp16", "fp8"),
            ("bf16", "fp8"),
            ("fp8", "fp4"),
        ):
            slow, fast = chip.peak_flop_per_s(wide), chip.peak_flop_per_s(narrow)
            assert slow is None or fast is None or slow <= fast, (chip.slug, wide, narrow)


@pytest.mark.truth
@pytest.mark.parametrize(
    ("name", "dtype", "flop_per_s"),
    [
        ("Arc Pro B60", "bf16", 196.61e12 / 2),  # hmc-tech.com: int8, of which bf16 is half
        ("RX 9070", "bf16", 1165e12 / 8),  # svethardware.cz: sparse int4
        (
            "R9700",
            "fp16",
            2 * 95.7e12,
        ),  # AMD's datasheet, cited by huggingface.js 1895: vector units, half of matrix
        ("W7800", "fp16", 90.5e12),  # huggingface.co/hardware/amd
        ("P40", "fp32", 11.758e12),  # cpu-gpu.alldbin.com
        ("910C", "bf16", 289e15 / 384),  # chinaresearchcollective.substack.com, 2026-06-17: of a supernode
    ],
)
def test_peaks_are_those_that_other_pages_state(name: str, dtype: str, flop_per_s: float) -> None:
    # Pages read on 2026-11-24.
    assert hardware.accelerator(name).peak_flop_per_s(dtype) == pytest.approx(flop_per_s, rel=0.01)


def test_the_card_of_half_the_memory_is_not_taken_for_this_one() -> None:
    # NVIDIA sells an RTX A2000 of 6 GB too: logs of that name are not of the one of 12 GB.
    assert shipped().accelerator_slug("NVIDIA RTX A2000 12GB") == "rtx-a2000-pcie-12gb"
    assert shipped().accelerator_slug("NVIDIA RTX A2000") is None


@pytest.mark.law
def test_peaks_are_dense_and_nothing_beats_its_peak() -> None:
    # Where a maker states sparse figures they are twice the dense ones, and twice the narrower dense type would be less.
    assert hardware.accelerators()
    for chip in hardware.accelerators():
        if chip.vendor == "NVIDIA" and chip.peak_fp8_flop_per_s and chip.peak_bf16_flop_per_s:
            assert chip.peak_fp8_flop_per_s / chip.peak_bf16_flop_per_s == pytest.approx(2, rel=0.03)
        if chip.achieved_bf16_flop_per_s is not None:
            assert chip.peak_bf16_flop_per_s is not None
            # Above 1 where a card for desktops runs above the clock of its stated peak.
            most = 1.2 if chip.for_desktops else 1.0
            assert 0.4 < chip.achieved_bf16_flop_per_s / chip.peak_bf16_flop_per_s < most


@pytest.mark.truth
@pytest.mark.parametrize(
    ("name", "recommended_bytes"),
    [
        ("Apple M1", 10922.67 * 2**20),  # abetlen/llama-cpp-python, issue 687: 16 GB
        ("Apple M2 Pro", 21845.34 * 2**20),  # ollama/ollama, issue 434: 32 GB
        ("Apple M2 Max", 73728 * 2**20),  # ggml-org/llama.cpp, issue 3213: 96 GB
        ("Apple M4 Max", 107.52 * 2**30),  # antirez/ds4, pull request 893: 128 GB, macOS 26
    ],
)
def test_macs_hold_what_metal_recommends_at_most(name: str, recommended_bytes: float) -> None:
    # Devices have 2**30 for each 1e9 bytes of the table.
    usable = hardware.accelerator(name).usable_memory_bytes
    assert usable is not None
    assert 0.85 * recommended_bytes < usable * 2**30 / 1e9 < 1.001 * recommended_bytes


def test_other_accelerators_are_had_whole() -> None:
    chip = hardware.accelerator("h100-sxm5-80gb")
    assert chip.usable_memory_bytes == chip.memory_bytes == 80e9


def test_every_accelerator_states_where_its_figures_come_from() -> None:
    assert hardware.accelerators()
    for chip in hardware.accelerators():
        assert SLUG.fullmatch(chip.slug)
        assert len(chip.source) > 5
        assert chip.confidence in {"high", "medium", "low"}
        assert chip.confidence != "high" or "from memory" not in chip.source


def test_every_accelerator_is_found_by_slug_title_and_aliases() -> None:
    assert hardware.accelerators()
    for chip in hardware.accelerators():
        for name in (chip.slug, chip.title, chip.slug.upper().replace("-", "_"), *chip.aliases):
            assert hardware.accelerator(name) == chip


def test_an_unknown_accelerator_names_the_nearest_and_the_file_to_edit() -> None:
    with pytest.raises(SpecError, match=r"'H100-SXM5-81GB'.*h100-sxm5-80gb.*list accelerators.*--hardware"):
        hardware.accelerator("H100-SXM5-81GB")
    with pytest.raises(SpecError, match=r" h100-sxm5-80gb\b.* h100-sxm5-96gb\b"):
        hardware.accelerator("SXM5 H100")


@given(st.text(max_size=200))
def test_any_text_is_either_known_or_refused_in_words(name: str) -> None:
    slug = hardware.slug_typed(name)
    if slug is None:
        with pytest.raises(SpecError, match="list accelerators"):
            hardware.accelerator(name)
    else:
        assert hardware.accelerator(name).slug == slug


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("h100", "h100-sxm5-80gb"),
        ("NVIDIA H100", "h100-sxm5-80gb"),
        ("h100 sxm", "h100-sxm5-80gb"),
        ("h100 pcie", "h100-pcie-80gb"),
        ("h100-nvl", "h100-nvl-94gb"),
        ("h200", "h200-sxm5-141gb"),
        ("b200", "b200-sxm6-180gb"),
        ("gb200", "gb200-nvl72-186gb"),
        ("rtx4090", "rtx-4090-pcie-24gb"),
        ("rtx 4090", "rtx-4090-pcie-24gb"),
        ("GeForce RTX4090", "rtx-4090-pcie-24gb"),
        ("mi300x", "mi300x-oam-192gb"),
        ("a100", "a100-sxm4-80gb"),
        ("a100 sxm", "a100-sxm4-80gb"),
        ("a100 80gb", "a100-sxm4-80gb"),
        ("a100-40GB", "a100-sxm4-40gb"),
        ("v100 32 GB", "v100-sxm2-32gb"),
        ("p100", "p100-sxm2-16gb"),
        ("v100", "v100-sxm2-16gb"),
        ("v100 16gb", "v100-sxm2-16gb"),
        ("gh200", "gh200-superchip-96gb"),
        ("gh200 141gb", "gh200-superchip-141gb"),
    ],
)
def test_what_people_type_is_found(name: str, slug: str) -> None:
    assert hardware.accelerator(name).slug == slug


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("A100 PCIe", "a100-pcie-40gb or a100-pcie-80gb"),
        ("v100 pcie", "v100-pcie-16gb or v100-pcie-32gb"),
        ("h100 96gb", "h100-sxm5-96gb or h100-sxm5-hbm2e-96gb"),
    ],
)
def test_a_name_of_different_products_is_refused_with_the_candidates(name: str, candidates: str) -> None:
    with pytest.raises(SpecError, match=f" {candidates};"):
        hardware.accelerator(name)


@pytest.mark.parametrize(
    "name",
    [
        "rtx 3050",
        "gtx 1060",
        "rtx 6000",
        "rx 7900",
        "a4",
        "100",
        "4000",
        "nvidia",
        "sxm5",
        "80gb",
        "xeon",
        "h100 40gb",
        "",
    ],
)
def test_a_name_is_never_completed_by_words_that_tell_chips_apart(name: str) -> None:
    with pytest.raises(SpecError, match=re.escape(repr(name))):
        hardware.accelerator(name)


def test_names_in_logs_are_never_completed() -> None:
    for name in ("h100", "rtx4090", "a100 80gb", "gb200"):
        assert shipped().accelerator_slug(name) is None
        assert hardware.shipped_hardware().exact(name) is None


def test_a_card_is_known_by_the_name_that_nvidia_smi_prints() -> None:
    assert shipped().accelerator_slug("NVIDIA A100 80GB PCIe") == "a100-pcie-80gb"
    assert shipped().accelerator_slug("NVIDIA A100-PCIE-40GB") == "a100-pcie-40gb"


@pytest.mark.parametrize(
    ("typed", "slug"),
    [
        ("4090", "rtx-4090-pcie-24gb"),
        ("3090", "rtx-3090-pcie-24gb"),
        ("5090", "rtx-5090-pcie-32gb"),
        ("3090 ti", "rtx-3090-ti-pcie-24gb"),
        ("7900xtx", "rx-7900-xtx-pcie-24gb"),
        ("a100-80g", "a100-sxm4-80gb"),
        ("H100 PCIe 80 GiB", "h100-pcie-80gb"),
        # Labels of nodes, what drivers print and what answers print, without the vendor.
        ("H100-80GB-HBM3", "h100-sxm5-80gb"),
        ("GH200-480GB", "gh200-superchip-96gb"),
        ("Radeon RX 7900 XTX", "rx-7900-xtx-pcie-24gb"),
        ("TPU v5 lite", "tpu-v5e"),
        ("HL-325L", "gaudi3-oam-128gb"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx-4060-ti-pcie-16gb"),
        ("AMD Instinct MI300X OAM", "mi300x-oam-192gb"),
    ],
)
def test_a_number_without_its_line_and_a_memory_in_short_are_read(typed: str, slug: str) -> None:
    assert shipped_hardware().accelerator(typed).slug == slug


@pytest.mark.parametrize("typed", ["6000", "4000", "910d", "5000"])
def test_a_number_that_several_lines_have_is_refused(typed: str) -> None:
    # Quadro RTX 6000, RTX 6000 Ada, RTX PRO 6000 and RTX A6000; Ascend 910D is another chip than 910.
    with pytest.raises(SpecError, match=typed):
        shipped_hardware().accelerator(typed)


def test_an_accelerator_is_found_by_the_title_that_answers_print() -> None:
    titles = {chip.title: chip.title.removeprefix(f"{chip.vendor} ") for chip in hardware.accelerators()}
    assert titles == {hardware.accelerator(name).title: name for name in titles.values()}


def test_the_closest_short_name_comes_first_among_what_may_be_meant() -> None:
    near = shipped_hardware().near("h1000")
    assert near[0] == "h100-sxm5-80gb"
    assert shipped_hardware().near("mi300").index("mi100-pcie-32gb") > 0


def test_every_short_name_is_claimed_once_and_means_its_accelerator() -> None:
    claimed = {
        slug: block["short"]
        for slug, block in tomllib.loads(HARDWARE_FILE.read_text())["accelerator"].items()
        if "short" in block
    }
    assert len(claimed) == len(set(claimed.values())) >= 7
    for slug, short in claimed.items():
        assert hardware.accelerator(short).slug == slug


NEW_CHIP = """
[accelerator.x1-oam-100gb]
title = "X1"
vendor = "Example"
kind = "npu"
memory_bytes = 100e9
peak_bf16_flop_per_s = 1e15
source = "a datasheet"
confidence = "low"
aliases = ["Example X-1"]
"""


def test_a_users_file_adds_and_overrides_and_later_wins(mine) -> None:
    first = mine(NEW_CHIP + "[accelerator.h100-sxm5-80gb]\npower_w = 500\n", "a.toml")
    second = mine('[accelerator.h100-sxm5-80gb]\npower_w = 600\naliases = ["our H100"]\n', "b.toml")
    table = load_hardware([first, second])
    assert table.accelerator("example x1 oam 100gb").memory_bytes == 100_000_000_000
    assert table.accelerator("EXAMPLE X 1").peak_bf16_flop_per_s == 1e15
    chip = table.accelerator("Our H100")
    assert (chip.power_w, chip.memory_byte_per_s) == (600, 3350e9)
    assert table.accelerator("NVIDIA H100-SXM5-80GB") == chip
    assert hardware.accelerator("h100-sxm5-80gb").power_w == 700


def test_a_users_file_may_claim_a_short_name(mine) -> None:
    ours = NEW_CHIP.replace("x1-oam-100gb", "h100-sxm5-64gb") + 'short = "h100"\n'
    table = load_hardware([mine(ours, "a.toml")])
    assert table.accelerator("h100").slug == "h100-sxm5-64gb"
    with pytest.raises(SpecError, match=r"a\.toml:\d+: .*short='x1';.*slug"):
        load_hardware([mine(ours.replace('short = "h100"', 'short = "x1"'), "a.toml")])
    with pytest.raises(SpecError, match=r"'x1' .* x1-oam-100gb"):
        load_hardware([mine(two_forms("x1"), "a.toml")])


def two_forms(short: str) -> str:
    """Two forms of one chip that both claim a short name."""
    one = NEW_CHIP + f'short = "{short}"\n'
    other = one.replace("x1-oam", "x1-pcie").replace('"X1"', '"X1 PCIe"').replace("Example X-1", "X1 card")
    return one + other


def test_a_chip_of_an_unknown_maker_reaches_no_less_with_more_power_or_a_higher_peak(mine) -> None:
    def reached(power_w: float, peak: float) -> float:
        text = NEW_CHIP.replace("= 1e15", f"= {peak}") + f"power_w = {power_w}\n"
        chip = load_hardware([mine(text, "a.toml")]).accelerator("X1")
        return peak * chip.achievable_fraction

    by_power = [reached(power_w, 1e15) for power_w in range(100, 4000, 60)]
    by_peak = [reached(700.0, peak * 1e13) for peak in range(10, 250, 4)]
    for rates in (by_power, by_peak):
        assert all(better > 0.999999 * rate for rate, better in pairwise(rates))
        assert rates[-1] > 1.1 * rates[0]


@pytest.mark.law
@pytest.mark.parametrize("vendor", ["Example", "NVIDIA", "AMD", "Intel"])
def test_leaving_the_power_out_makes_no_chip_faster(mine, vendor: str) -> None:
    def reached(line: str) -> float:
        text = re.sub("vendor = .*", f'vendor = "{vendor}"', NEW_CHIP) + line
        return load_hardware([mine(text, "a.toml")]).accelerator("X1").achievable_fraction

    assert NEW_CHIP.count("vendor = ") == 1
    stated = [reached(f"power_w = {power_w}\n") for power_w in (100, 300, 700, 1000, 2000)]
    assert reached("") <= min(stated) * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("values", "fitted"),
    [([1, 3, 2], [1, 2.5, 2.5]), ([3, 2, 1], [2, 2, 2]), ([1, 4, 4, 1], [1, 3, 3, 3])],  # by hand
)
def test_values_that_fall_are_replaced_by_their_mean(values: list[float], fitted: list[float]) -> None:
    assert hardware._never_falling(values) == pytest.approx(fitted)


def test_a_users_measurement_counts_among_other_accelerators(mine) -> None:
    measured = NEW_CHIP + "achieved_bf16_flop_per_s = 4e14\n"
    other = NEW_CHIP.replace("x1-oam", "x2-oam").replace("X1", "X2").replace("X-1", "X-2")
    table = load_hardware([mine(measured + other, "a.toml")])
    assert table.accelerator("X2").achievable_fraction == pytest.approx(0.4)
    assert not table.accelerator("X2").achievable_is_measured


def test_a_users_file_may_move_a_name(mine) -> None:
    path = mine('[accelerator.a100-pcie-40gb]\naliases = ["NVIDIA A100"]\n', "a.toml")
    assert load_hardware([path]).accelerator("NVIDIA A100").slug == "a100-pcie-40gb"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[accelerator.x]\ntitle = 'X'\n",
            r"a\.toml:1: \[accelerator\.x\]: .*vendor.*kind.*source.*confidence",
        ),
        (NEW_CHIP.replace('"npu"', '"toaster"'), r"a\.toml:2: .*kind='toaster';.* gpu .*tpu"),
        (NEW_CHIP.replace("100e9", "-1"), r"memory_bytes=-1;.*finite.*zero"),
        (NEW_CHIP.replace("100e9", "nan"), r"memory_bytes=nan;.*finite"),
        (NEW_CHIP.replace("100e9", "inf"), r"memory_bytes=inf;.*finite"),
        (NEW_CHIP.replace("100e9", "1.5"), r"memory_bytes=1\.5;.*whole"),
        (NEW_CHIP.replace("100e9", "true"), r"memory_bytes=True;.*number"),
        (NEW_CHIP.replace("100e9", '"80 GB"'), r"memory_bytes='80 GB';.*number"),
        (
            NEW_CHIP.replace("memory_bytes", "memory_byte"),
            r"'memory_byte';.*'memory_bytes'",
        ),
        (
            NEW_CHIP + "peak_fp8_flop_per_s = 1e12\n",
            r"peak_fp8_flop_per_s=1e\+12 is below peak_bf16_flop_per_s",
        ),
        (
            NEW_CHIP + "achieved_bf16_flop_per_s = 2e15\n",
            r"achieved_bf16_flop_per_s=2\d+\.0;.*peak 1e\+15",
        ),
        (
            NEW_CHIP.replace('["Example X-1"]', '"Example X-1"'),
            r"aliases='Example X-1';.*list",
        ),
        (NEW_CHIP.replace('"Example X-1"', '"--"'), r"a\.toml:\d+: .*alias.* letter .*digit"),
        (
            NEW_CHIP + NEW_CHIP.replace("x1-oam", "x2-oam").replace("X1", "X2"),
            r"'example x 1' .*x1-oam-100gb",
        ),
        (NEW_CHIP.replace("x1-oam-100gb", '"X 1"'), r"a\.toml:2: slug 'X 1';.*lower case"),
        (
            "[chip.x]\ntitle = 'X'\n",
            r"a\.toml:1: 'chip';.*\[accelerator\.<slug>\].*\[cluster",
        ),
        ("accelerator = 3\n", r"a\.toml:1: 'accelerator';.*\[accelerator"),
        ("[accelerator]\nx = 3\n", r"accelerator\.x=3;.*table"),
        (NEW_CHIP + "switch_reduces = 1\n", r"switch_reduces=1;.*true.*false"),
        (NEW_CHIP + "topology = 'star'\n", r"topology='star';.* switch .*mesh"),
        (
            NEW_CHIP + "[[accelerator.x1-oam-100gb.counted]]\nsystems = ['s']\n",
            r"\.counted\]: .*raw",
        ),
        (NEW_CHIP + "counted = [3]\n", r"counted=\[3\];.*\[\[accelerator"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line_and_what_to_write(mine, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_hardware([mine(text, "a.toml")])


def test_a_better_chip_of_the_same_maker_reaches_at_least_as_much() -> None:
    """In every data type: H800 is an H100 with fewer links, and H200 one with more memory."""
    chips = [chip for chip in hardware.accelerators() if (chip.vendor, chip.kind) == ("NVIDIA", "gpu")]

    def facts(chip: hardware.Accelerator) -> tuple[float, ...]:
        peaks = (chip.peak_flop_per_s(dtype) for dtype in DTYPES)
        power_w = chip.peak_power_w or chip.power_w
        return tuple(each or 0.0 for each in (*peaks, chip.memory_bytes, chip.memory_byte_per_s, power_w))

    def share(chip: hardware.Accelerator, dtype: str) -> float:
        return chip.achievable_fp32_fraction if dtype == "fp32" else chip.achievable_fraction

    pairs = [
        (one, other)
        for one in chips
        for other in chips
        if all(own >= theirs for own, theirs in zip(facts(one), facts(other), strict=True))
    ]
    assert len(pairs) > len(chips)
    assert DTYPES
    for one, other in pairs:
        for dtype in DTYPES:
            least = (other.peak_flop_per_s(dtype) or 0) * share(other, dtype)
            assert (one.peak_flop_per_s(dtype) or 0) * share(one, dtype) >= least * (1 - 1e-12)
    # 794.5 of 989 TFLOP/s: what the MAMF table has of H100, for want of a figure of H800.
    assert hardware.accelerator("h800-sxm5-80gb").achievable_fraction == pytest.approx(794.5 / 989)
    assert hardware.accelerator("a800-sxm4-80gb").achievable_fraction == pytest.approx(271.2 / 312)


def test_a_power_cap_leaves_the_achievable_share() -> None:
    chip = hardware.accelerator("h100-sxm5-80gb")
    assert hardware.capped(chip, 350).achievable_fraction == chip.achievable_fraction


def test_a_power_cap_that_nobody_can_set_is_refused() -> None:
    # DGX B200 user guide, power capping (docs.nvidia.com, 2026-11-22): AllowableMin 200 of 1,000 W
    with pytest.raises(SpecError, match="expected from 200 W"):
        hardware.capped(hardware.accelerator("b200-sxm6-180gb"), 199.0)
    assert hardware.capped(hardware.accelerator("b200-sxm6-180gb"), 200.0).power_w == 200.0
    # How fast a chip is under a limit follows from what it takes without.
    assert hardware.accelerator("tpu-v6e").power_w is None
    with pytest.raises(SpecError, match="power_w"):
        hardware.capped(hardware.accelerator("tpu-v6e"), 100.0)
