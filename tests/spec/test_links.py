"""Classes of links: their order, their spellings, and rates that others measured."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.spec.hardware import accelerator, accelerators
from equipoise.spec.links import (
    KINDS,
    kind,
    link_byte_per_s,
    link_class,
    meaning,
    num_links,
    number,
    nvlink_candidates,
    rank,
    reach,
)

TRUTH = tomllib.loads((Path(__file__).parents[1] / "truth" / "links.toml").read_text())
GB = 1e9


# NVIDIA, GA102 white paper and the datasheets of these cards: 112.5 GB/s both ways by four links.
@pytest.mark.parametrize("name", ["rtx 3090 ti", "rtx a4500", "rtx a5500", "rtx a6000"])
def test_bridges_of_ga102_are_four_links_of_56_gb_per_s_together(name):
    chip = accelerator(name)
    assert (num_links(chip), reach("NV4", chip).stated_byte_per_s) == (4, (56.25 * GB, 56.25 * GB))


def test_the_link_of_every_accelerator_is_a_whole_number_of_nvlinks():
    rates = {each: link_byte_per_s(each) for each in accelerators()}
    parts = {
        each.slug: (each.bridge_byte_per_s or each.link_byte_per_s) / rate % 1
        for each, rate in rates.items()
        if rate is not None
    }
    assert len(parts) > 30
    assert {slug for slug, part in parts.items() if part} == set()


def test_classes_sort_from_best_to_worst():
    ordered = ["NV18", "NV12", "NV1", "XGMI", "XGMI2", "PIX", "PXB", "PHB", "NODE", "SYS"]
    by_spelling = sorted(ordered)
    assert sorted(by_spelling, key=rank) == ordered


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("SOC", "SYS"),
        (" nv2 ", "NV2"),
        ("NV02", "NV2"),
        ("XGMI", "XGMI"),
        ("X", None),
        ("NV0", None),
        ("NV#", None),
    ],
)
def test_spellings_lead_to_one_name(word, name):
    assert link_class(word) == name


@given(st.text(max_size=8))
def test_any_word_is_a_class_or_none(word):
    name = link_class(word)
    if name is not None:
        assert link_class(name) == name
        assert kind(name) in KINDS
        assert number(name) >= 1
        assert meaning(name)


@pytest.mark.truth
@pytest.mark.parametrize("slug", TRUTH["nccl_nvlink_gb_per_s"])
def test_nvlinks_reach_what_nccl_counts_on(slug):
    chip = accelerator(slug)
    found = reach(f"NV{num_links(chip)}", chip)
    counted = TRUTH["nccl_nvlink_gb_per_s"][slug] * GB * num_links(chip)
    assert found.low <= counted <= found.high
    assert found.stated_byte_per_s[0] == pytest.approx(num_links(chip) * link_byte_per_s(chip))


@pytest.mark.truth
@pytest.mark.parametrize("slug", TRUTH["nccl_pcie_gb_per_s"])
def test_pcie_reaches_what_nccl_counts_on(slug):
    found = reach("PXB", accelerator(slug), has_peers=True)
    assert found.low <= TRUTH["nccl_pcie_gb_per_s"][slug] * GB <= found.high


@pytest.mark.truth
@pytest.mark.parametrize("slug", TRUTH["nccl_sockets_gb_per_s"])
def test_links_between_sockets_reach_what_nccl_counts_on(slug):
    found = reach("SYS", accelerator(slug), has_peers=True)
    counted = TRUTH["nccl_sockets_gb_per_s"][slug]
    rates = counted if isinstance(counted, list) else [counted]
    assert rates
    for each in rates:
        assert found.low <= each * GB <= found.high


@pytest.mark.truth
@pytest.mark.parametrize(
    "case", TRUTH["both_ways"], ids=lambda case: f"{case['class']}-{case['accelerator']}"
)
def test_ranges_hold_what_was_measured(case):
    found = reach(case["class"], accelerator(case["accelerator"]), has_peers=case.get("peers"))
    assert case["gb_per_s"]
    for both in case["gb_per_s"]:
        assert found.low <= both * GB / 2 <= found.high


def test_links_are_counted_from_rates():
    assert [
        num_links(accelerator(slug)) for slug in ("a800-sxm4-80gb", "h100-nvl-94gb", "rtx-a6000-pcie-48gb")
    ] == [8, 12, 4]
    assert num_links(accelerator("l40s-pcie-48gb")) is None


def test_an_accelerator_that_is_not_known_widens_the_range():
    wide, narrow = reach("NV18"), reach("NV18", accelerator("h100-sxm5-80gb"))
    assert wide.low <= narrow.low < narrow.high < wide.high
    assert {chip.slug for chip in nvlink_candidates(8)} == {"a800-sxm4-80gb", "h800-sxm5-80gb"}


def test_without_peer_access_bytes_pass_the_hosts_memory():
    chip = accelerator("l40s-pcie-48gb")
    assert reach("PHB", chip, has_peers=False).path == "staged"
    assert reach("PHB", chip).path == "near"
    assert reach("PHB", accelerator("rtx-4090-pcie-24gb")).path == "staged"
    assert reach("PHB", chip, has_peers=False).high < reach("PHB", chip).low


def test_a_narrow_slot_carries_less():
    chip = accelerator("rtx-4090-pcie-24gb")
    assert reach("PHB", chip, slot_byte_per_s=7.88e9).byte_per_s == pytest.approx(
        reach("PHB", chip).byte_per_s / 4, rel=1e-2
    )


def test_links_an_accelerator_does_not_have_are_refused():
    with pytest.raises(SpecError, match=r"NV4.*l40s-pcie-48gb.*NVLink"):
        reach("NV4", accelerator("l40s-pcie-48gb"))
    with pytest.raises(SpecError, match=r"XGMI.*l40s-pcie-48gb.*Infinity Fabric"):
        reach("XGMI", accelerator("l40s-pcie-48gb"))
