"""Unequal accelerators together: nothing is better than in the weakest, equal ones change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.spec.cluster import cluster, mixture
from equipoise.spec.hardware import DTYPES, accelerator, accelerators

CHIPS = st.sampled_from(accelerators())


def test_two_unequal_cards_have_the_least_of_each() -> None:
    both = cluster("RTX 3090 + RTX A5000", num_accelerators=2)
    # Datasheets: memory 24 and 24 GB at 936 and 768 GB/s, fp16 71 and 111.1 TFLOP/s, 350 and 230 W.
    assert both.accelerator.slug == "rtx-3090-pcie-24gb+rtx-a5000-pcie-24gb"
    assert both.accelerator.memory_byte_per_s == 768e9
    assert both.accelerator.peak_bf16_flop_per_s == 71e12
    assert both.accelerator.power_w == 290
    assert (both.topology, both.node_size) == ("host", 2)


def test_what_limits_the_weakest_ones_attention_limits_both() -> None:
    both = cluster("H100 SXM5 80GB + B200", num_accelerators=2)
    assert both.accelerator.peak_bf16_flop_per_s == 989e12
    assert both.accelerator.asynchronous_products == 1  # wgmma of Hopper


def test_names_with_a_plus_of_their_own_are_found_first() -> None:
    assert cluster("Intel(R) Xeon(R) Platinum 8480+").accelerator.slug == "xeon-8480-cpu"
    with pytest.raises(SpecError, match=r"'rtx-3090\+h9000'"):
        cluster("rtx-3090+h9000")


@pytest.mark.law
@given(CHIPS)
def test_equal_ones_are_themselves(chip) -> None:
    assert mixture((chip, chip)) == chip


@pytest.mark.law
@given(st.lists(CHIPS, min_size=2, max_size=4))
def test_a_mixture_is_never_better_than_any_of_its_parts(chips) -> None:
    both = mixture(tuple(chips))
    for chip in chips:
        for field in (
            "memory_bytes",
            "memory_byte_per_s",
            "link_byte_per_s",
            *(f"peak_{dtype}_flop_per_s" for dtype in DTYPES),
        ):
            ours, theirs = getattr(both, field), getattr(chip, field)
            assert ours is None or (theirs is not None and ours <= theirs)
        assert (both.intra_latency_s or 0) >= (chip.intra_latency_s or 0)


def reached(chip, dtype):
    """FLOP/s of large matrix products of one type; None where the chip has none."""
    share = chip.achievable_fp32_fraction if dtype == "fp32" else chip.achievable_fraction
    peak = chip.peak_flop_per_s(dtype)
    return None if peak is None else share * peak


@pytest.mark.law
@pytest.mark.parametrize("dtype", DTYPES)
@given(chips=st.lists(CHIPS, min_size=2, max_size=4))
def test_a_mixture_multiplies_no_faster_than_any_of_its_parts(dtype, chips) -> None:
    ours = reached(mixture(tuple(chips)), dtype)
    theirs = [reached(chip, dtype) for chip in chips]
    assert ours is None or (None not in theirs and 0 < ours <= min(theirs) * (1 + 1e-9))


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        # MAMF of github.com/stas00/ml-engineering: A100 SXM 271.2 of 312, H100 SXM 794.5 of 989 TFLOP/s.
        ("A100 SXM4 80GB + H100 SXM5 80GB", 271.2e12),
        # Cards for desktops: 76.58 and 164.8 TFLOP/s (docs/experiments/0040).
        ("RTX 3090 + RTX 4090", 76.58e12),
    ],
)
def test_the_slowest_of_unequal_ones_keeps_the_rate_that_was_measured_of_it(text, measured) -> None:
    assert reached(cluster(text, num_accelerators=2).accelerator, "bf16") == pytest.approx(measured)


def test_one_that_was_measured_and_one_that_was_not_count_as_not_measured() -> None:
    both = mixture((accelerator("a100-sxm4-80gb"), accelerator("rtx-3080-pcie-10gb")))
    assert not both.achievable_is_measured
