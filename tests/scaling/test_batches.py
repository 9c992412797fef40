"""Samples against batch on entries made from the formula itself: S_min 1e6, B_crit 1000."""

import pytest
from msgspec.structs import replace

from equipoise.errors import EvidenceError
from equipoise.scaling.convergence import batch_growth
from equipoise.spec.mlperf import ScoredEntry


def entries(batches, *, offset=1.0, round_="v1.0"):
    return [
        ScoredEntry(
            entry_id=f"{round_}/{batch}",
            campaign=round_,
            workload="bert",
            accelerator="a",
            num_accelerators=8,
            score_s=60.0,
            global_batch_samples=batch,
            samples_to_target=offset * 1e6 * (1 + batch / 1000),
        )
        for batch in batches
    ]


BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)


def test_the_law_behind_exact_entries_is_found():
    found = batch_growth(entries(BATCHES))
    assert found.samples_min.low <= 1e6 <= found.samples_min.high
    assert found.batch_critical.low <= 1000 <= found.batch_critical.high
    # (1 + 4096 / 1000) / (1 + 64 / 1000)
    assert found.growth.value == pytest.approx(5.096 / 1.064, rel=0.03)
    assert found.num_rounds == 1
    assert found.curve
    assert all(each.low <= each.samples <= each.high for each in found.curve)


def test_the_offset_of_a_round_is_taken_from_its_points():
    found = batch_growth([*entries(BATCHES), *entries(BATCHES, offset=1.3, round_="v2.0")])
    adjusted = {
        (each.campaign, each.global_batch_samples): samples
        for each, samples in zip(found.entries, found.adjusted_samples, strict=True)
    }
    ratios = [adjusted["v2.0", batch] / adjusted["v1.0", batch] for batch in BATCHES]
    assert ratios == pytest.approx([1.0] * len(BATCHES), abs=0.05)


def test_entries_that_do_not_tell_are_left_out():
    silent = [replace(each, samples_to_target=None) for each in entries(BATCHES)]
    found = batch_growth([*entries(BATCHES), *silent])
    assert len(found.entries) == len(BATCHES)


def test_batches_too_close_name_what_is_missing():
    with pytest.raises(EvidenceError, match=r"\b3 distinct") as caught:
        batch_growth(entries((64, 128)))
    assert caught.value.missing
