"""Samples against batch on entries made from the formula itself: S_min 1e6, B_crit 1000."""

import polars as pl
import pytest

from equipoise.errors import EvidenceError
from equipoise.scaling.convergence import batch_growth


def scores(batches, *, offset=1.0, round_="v1.0"):
    return pl.DataFrame(
        {
            "round": [round_] * len(batches),
            "entry_id": [f"{round_}/{batch}" for batch in batches],
            "submitter": ["A"] * len(batches),
            "system": [f"s{batch}" for batch in batches],
            "accelerator": ["a"] * len(batches),
            "num_accelerators": [8] * len(batches),
            "score_s": [60.0] * len(batches),
            "global_batch_samples": list(batches),
            "samples_to_target": [offset * 1e6 * (1 + batch / 1000) for batch in batches],
        }
    )


BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)


def test_the_law_behind_exact_entries_is_found():
    found = batch_growth(scores(BATCHES))
    assert found.samples_min.low <= 1e6 <= found.samples_min.high
    assert found.batch_critical.low <= 1000 <= found.batch_critical.high
    # (1 + 4096 / 1000) / (1 + 64 / 1000)
    assert found.growth.value == pytest.approx(5.096 / 1.064, rel=0.03)
    assert found.num_rounds == 1
    assert (found.curve["low"] <= found.curve["samples"]).all()
    assert (found.curve["samples"] <= found.curve["high"]).all()


def test_the_offset_of_a_round_is_taken_from_its_points():
    both = pl.concat([scores(BATCHES), scores(BATCHES, offset=1.3, round_="v2.0")])
    found = batch_growth(both).entries.sort("global_batch_samples", "round")
    first, second = (found.filter(pl.col("round") == name)["adjusted_samples"] for name in ("v1.0", "v2.0"))
    assert (second / first).to_list() == pytest.approx([1.0] * len(BATCHES), abs=0.05)


def test_entries_that_do_not_tell_are_left_out():
    silent = scores(BATCHES).with_columns(samples_to_target=pl.lit(None, pl.Float64))
    found = batch_growth(pl.concat([scores(BATCHES), silent]))
    assert found.entries.height == len(BATCHES)


def test_batches_too_close_name_what_is_missing():
    with pytest.raises(EvidenceError, match=r"\b3 distinct") as caught:
        batch_growth(scores((64, 128)))
    assert caught.value.missing
