"""Parameters by software: by hand for two sources, and what has to hold of any."""

import csv
from functools import cache
from itertools import chain

import numpy as np
import pytest
from msgspec.structs import replace
from software_fit import (
    LOCAL_LOG_SD,
    RowGroups,
    fit_software,
    fitting_rows,
    held_out_steps,
    posterior,
    software_of,
    software_rows,
    with_source_spread,
)
from step_table import source_of

from equipoise.calibration.profiles import model_for, profiles, software_for
from equipoise.calibration.published.executions import campaign_of, read_executions
from equipoise.calibration.validate import basis_of, validate
from equipoise.decide.estimators.model import is_ordered
from equipoise.errors import SpecError
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import PRIORS
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import accelerator, accelerators
from equipoise.spec.strategy import SOFTWARE, SOFTWARE_NAMES, Strategy, software, software_in
from equipoise.spec.workload import workload


def two_sources(software="torchtitan", family="torch"):
    """One row of each of two sources of one software, of other models, chips and clusters."""
    apart = np.array([0, 1])
    return RowGroups(
        resolution=np.zeros(2),
        spread=np.ones(2),
        software=np.array([software] * 2),
        family=np.array([family] * 2),
        effects=dict.fromkeys(("source", "kind", "model", "chip", "cluster"), apart),
    )


def middle(slopes, target, names, *, local=False):
    return posterior(two_sources(), slopes, target, names=names, is_local=np.array([local]))


# 0.2025 + 0.1225 + 0.5625 = 0.8875 is shared by two sources of one software; each adds 0.48^2 = 0.2304 of its
# own parameters and 0.04^2 + 0.02^2 + 0.03^2 + 0.06^2 + 0.065^2 + 0.05^2 = 0.013225 besides: 0.243625 in all.
# Middle: 0.8875 (0.1 + 0.2) / (2 x 0.8875 + 0.243625); a new source: 0.8875 + 0.2304 - 2 x 0.8875^2 /
# 2.018625.
@pytest.mark.parametrize(
    ("name", "units", "variance"),
    [
        ("torchtitan", 0.8875 * 0.3 / 2.018625, 1.1179 - 2 * 0.8875**2 / 2.018625),
        ("fsdp", 0.325 * 0.3 / 2.018625, 1.1179 - 2 * 0.325**2 / 2.018625),
        ("jax", 0.2025 * 0.3 / 2.018625, 1.1179 - 2 * 0.2025**2 / 2.018625),
    ],
)
def test_two_sources_by_hand(name, units, variance):
    found = middle(np.ones((2, 1)), np.array([0.1, 0.2]), [name])
    assert found.units[name] == pytest.approx([units])
    assert found.covariance[name] == pytest.approx(np.array([[variance]]))


def test_without_slopes_rows_say_nothing_of_parameters():
    found = middle(np.zeros((2, 1)), np.array([0.1, 0.2]), ["torchtitan"])
    assert found.units["torchtitan"] == pytest.approx([0.0])
    assert found.covariance["torchtitan"] == pytest.approx(np.array([[1.1179]]))


def test_what_is_local_says_nothing_of_other_sources():
    found = middle(np.ones((2, 1)), np.array([0.1, 0.2]), ["torchtitan"], local=True)
    assert found.units["torchtitan"] == pytest.approx([0.0])
    assert found.covariance["torchtitan"] == pytest.approx(np.array([[0.04]]))


def test_a_model_far_from_all_others_counts_less():
    near = middle(np.ones((2, 1)), np.array([0.0, 0.3]), ["jax"]).units["jax"]
    far = middle(np.ones((2, 1)), np.array([0.0, 3.0]), ["jax"]).units["jax"]
    assert 0.0 < far < 10 * near


def test_a_source_far_from_all_others_has_a_wider_spread():
    """0.3 where 0.013225 is open, seen next to six rows as far off as stated; one that is near keeps its own."""
    slopes, target = np.zeros((2, 1)), np.array([0.0, 0.3])
    found = with_source_spread(two_sources(), slopes, target, is_local=np.array([False]))
    assert found.spread == pytest.approx([1.0, np.sqrt((0.09 / 0.013225 + 6) / 7)])


def test_the_interval_grows_with_the_distance_from_what_was_measured(data_dir):
    rows = fitting_rows(read_executions([data_dir / "measured" / "torchtitan.csv"]))
    arrays = software_rows(rows)
    found = fit_software(arrays, ["torchtitan", "fsdp", "jax"])
    width = {name: found.log_sd(name, arrays).mean() for name in found.units}
    local = np.sqrt(sum(each**2 for each in LOCAL_LOG_SD.values()))
    assert local < min(width["torchtitan"], width["fsdp"]) < width["jax"]
    open_ = {name: np.trace(covariance) for name, covariance in found.covariance.items()}
    assert open_["torchtitan"] < open_["fsdp"] < open_["jax"]


def test_nothing_is_fitted_to_cards_of_less_power_than_stated(data_dir):
    """Whatever power limited B200 take, the others are predicted as before; they are predicted, too."""
    rows = fitting_rows(read_executions([data_dir / "measured" / "torchao_float8.csv"]))
    limited = np.array(["power limited" in row.hardware for row in rows])
    assert 0 < limited.sum() < len(rows)
    slower = [
        replace(row, measured=row.measured / 3) if less else row
        for row, less in zip(rows, limited, strict=True)
    ]
    first, second = (held_out_steps(each, lambda row: row.row).log_ratio for each in (rows, slower))
    assert second == pytest.approx(first + np.log(3) * limited, abs=1e-9)


def test_rows_say_what_ran_and_who_measured_it_whatever_their_file_is_called(data_dir, mine):
    renamed = mine((data_dir / "measured" / "mpt_llm_foundry.csv").read_bytes(), "other.csv")
    rows = read_executions([renamed])
    assert len(rows) > 100
    assert {source_of(row) for row in rows} == {"github:mosaicml/llm-foundry"}
    assert {found.name for row in rows if (found := software_of(row))} == {"fsdp"}


@pytest.mark.parametrize(
    ("text", "vendor", "is_eager", "name"),
    [
        ("FSDP2 eager", "NVIDIA", True, "fsdp2_eager"),
        ("FSDP2+compile", "NVIDIA", False, "torchtitan"),
        ("PyTorch 2.7; FSDP2", "NVIDIA", False, "torchtitan"),
        ("Hugging Face Transformers + Accelerate, FSDP2", "NVIDIA", True, "hf"),
        ("VP=n/a;release=26.06 NeMo Container;FSDP=0", "NVIDIA", False, "megatron_core"),
        ("Megatron-DeepSpeed; ZeRO-1; 1F1B no interleaving", "NVIDIA", True, "megatron"),
        ("MaxText XLA; FSDP=256", "Google", False, "jax_tpu"),
        ("MaxText JAX XLA; FSDP=128", "NVIDIA", False, "jax"),
        ("HF Trainer + DeepSpeed ZeRO-3", "NVIDIA", True, "hf"),
        ("DDP; one node; NGC pytorch 22.09", "NVIDIA", True, "ngc"),
        ("NGC pytorch 22.09; transformers; channels last", "NVIDIA", True, "hf"),
        ("Megatron-Core; Megatron-FSDP, ZeRO-3", "NVIDIA", False, "megatron_core"),
    ],
)
def test_software_by_the_words_of_rows(text, vendor, is_eager, name):
    assert software_in(text, vendor=vendor, is_eager=is_eager) == software(name)


@pytest.mark.parametrize(("chip_year", "name"), [(2020, "megatron"), (2022, "megatron_core")])
def test_megatron_on_a_chip_of_its_time_is_megatron_of_that_time(chip_year, name):
    # H100 came out in 2022; Megatron-LM of 2021 never ran on it.
    found = software_in("Megatron-LM", vendor="NVIDIA", is_eager=True, chip_year=chip_year)
    assert found == software(name)


def test_words_that_name_nothing_are_no_software():
    assert software_in("DDP", vendor="NVIDIA", is_eager=True) is None
    with pytest.raises(SpecError, match="torchtitan"):
        software("tensorflow")


def test_every_software_ships_with_physical_parameters():
    found = profiles()
    assert tuple(found) == SOFTWARE_NAMES
    largest = {each.name: each.largest for each in PRIORS}
    beyond = [
        (each.name, name)
        for each in found.values()
        for name, value in each.values.items()
        if not 0 < value <= largest[name]
    ]
    assert beyond == []
    assert min(each.log_half_width for each in found.values()) > 0
    assert min(len(each.values) for each in found.values()) > 40


def step_s(name, model, chip, precision):
    nodes = cluster(chip, num_accelerators=64)
    found = model_for(nodes.accelerator, workload(model), software=name)
    strategy = Strategy(
        global_batch_samples=128, microbatch_samples=1, dp=64, zero_stage=3, precision=precision
    )
    times = estimate(workload_load(workload(model)), machine(nodes), grid([strategy]), found.parameters)
    return float(np.ravel(times.step_s)[0])


def links(chip):
    nodes = cluster(chip, num_accelerators=64)
    return (nodes.topology, nodes.intra.latency_s, nodes.inter.latency_s, nodes.switch_reduces)


@cache
def ordered_pairs():
    """Chips of NVIDIA, the first of which is as good as the second in every fact, over links of one kind."""
    chips = [
        each.slug
        for each in accelerators()
        if each.vendor == "NVIDIA" and each.peak_bf16_flop_per_s is not None
    ]
    nodes = {chip: cluster(chip, num_accelerators=64) for chip in chips}
    linked = {chip: links(chip) for chip in chips}
    return [
        (one, other)
        for one in chips
        for other in chips
        if one != other and linked[one] == linked[other] and is_ordered(nodes[one], nodes[other], 64)
    ]


@pytest.mark.parametrize("name", [each.name for each in SOFTWARE if each.vendor == "NVIDIA"])
@pytest.mark.parametrize("model", ["llama31_8b", "mixtral_8x7b"])
def test_a_better_chip_is_never_slower_under_any_software(name, model):
    pairs = ordered_pairs()
    assert ("h200-sxm5-141gb", "h100-sxm5-80gb") in pairs
    assert len(pairs) > 30
    times = {chip: step_s(name, model, chip, "bf16") for chip in {*chain.from_iterable(pairs)}}
    assert [pair for pair in pairs if times[pair[0]] > times[pair[1]] * (1 + 1e-9)] == []


@pytest.mark.parametrize("name", [each.name for each in SOFTWARE if each.vendor == "NVIDIA"])
@pytest.mark.parametrize("precision", ["fp8", "fp8_rowwise"])
def test_fewer_bits_are_never_slower_under_any_software(name, precision):
    chips = ("h100-sxm5-80gb", "h200-sxm5-141gb", "b200-sxm6-180gb")
    for chip in chips:
        narrow, wide = (step_s(name, "llama31_8b", chip, each) for each in (precision, "bf16"))
        assert narrow <= wide, chip


def test_the_software_named_serves_and_the_default_is_the_makers():
    chip, about = accelerator("h100-sxm5-80gb"), workload("llama31_8b")
    assert software_for(chip, about) == "megatron_core"
    stated, usual = model_for(chip, about, software="megatron_core"), model_for(chip, about)
    assert (stated.parameters, stated.draws) == (usual.parameters, usual.draws)
    assert model_for(chip, about, software="torchtitan").calibration == "torchtitan"
    assert software_for(accelerator("tpu-v5e"), about) == "jax_tpu"
    assert software_for(accelerator("mi300x-oam-192gb"), about) is None
    # Whoever trains adapters of a model of their own: not in what submitters to MLPerf's benchmark of them
    # ran.
    benchmark, adapters = workload("llama2_70b_lora"), replace(about, trained="lora", first_round=None)
    assert software_for(chip, benchmark) == "megatron_core"
    assert software_for(accelerator("mi300x-oam-192gb"), benchmark) is None
    for each in ("h100-sxm5-80gb", "rtx-5090-pcie-32gb", "mi300x-oam-192gb", "gaudi2-oam-96gb"):
        assert software_for(accelerator(each), adapters) == "hf"
    assert software_for(accelerator("tpu-v5e"), adapters) == "jax_tpu"
    with pytest.raises(SpecError, match=r"jax_tpu.* H100"):
        model_for(chip, about, software="jax_tpu")
    with pytest.raises(SpecError, match="jax_tpu"):
        model_for(accelerator("tpu-v5e"), about, software="torchtitan")


def test_in_sample_means_that_the_row_itself_was_fitted_to(data_dir, tmp_path):
    original = data_dir / "measured" / "torchtitan.csv"
    copied, changed = tmp_path / "copied.csv", tmp_path / "changed.csv"
    copied.write_bytes(original.read_bytes())
    with original.open(newline="", encoding="utf-8") as file:
        rows = [row | {"measured": str(float(row["measured"]) + 1)} for row in csv.DictReader(file)]
    with changed.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    first, second, third = (
        validate([path], basis_of=basis_of("auto")) for path in (original, copied, changed)
    )
    assert (first.in_sample, second.in_sample, third.in_sample) == (True, True, False)
    assert first.errors == second.errors


def test_a_campaign_is_what_rows_state_not_where_they_stand(data_dir, mine):
    copied = mine((data_dir / "measured" / "torchtitan.csv").read_bytes(), "copied.csv")
    rows, again = (
        [campaign_of(row) for row in read_executions([path])]
        for path in (data_dir / "measured" / "torchtitan.csv", copied)
    )
    assert rows == again
    assert len(set(rows)) == 4  # three documents; one of them also without a compiler
