import re

import pytest

from equipoise.scaling.metrics import pointers
from equipoise.study.claims import claims_about
from equipoise.study.findings import headline, summary

NAMES = {"bert": "BERT", "retinanet": "RetinaNet"}


@pytest.fixture
def bert(entries):
    """E = 0.1 at 1,024 of which the batch takes half: 10 ** -0.5; and an older chip as reference."""
    return entries(
        [
            {"num_accelerators": 2, "score_s": 2000.0, "accelerator": "a100-sxm4-80gb"},
            {"num_accelerators": 4, "score_s": 256.0, "samples_to_target": 1000.0},
            {"num_accelerators": 64, "score_s": 20.0, "samples_to_target": 1000.0},
            {
                "num_accelerators": 1024,
                "score_s": 10.0,
                "samples_to_target": 1000.0 * 10**0.5,
                "energy_j": 5e6,
            },
        ]
    )


def test_headline_states_what_is_left_and_how_the_claims_fare(bert):
    text = headline("Round 9", {"bert": bert}, claims_about({"bert": bert}, label="v9.9"))
    assert re.match(r"Round 9: 1,024 .*\b10 % .*\b6 claims", text)
    assert "tested" in text


def test_headline_of_several_workloads_gives_the_range(bert, entries):
    retinanet = entries(
        {"workload": "retinanet", "entry_id": f"r{size}", "num_accelerators": size, "score_s": score_s}
        for size, score_s in ((4, 64.0), (64, 8.0))
    )
    both = {"bert": bert, "retinanet": retinanet}
    text = headline("Round 9", both, claims_about(both, label="v9.9"))
    assert "10 % to 50 %" in text


def test_headline_without_two_sizes_claims_nothing(entries):
    one = {"bert": entries([{"num_accelerators": 8, "score_s": 10.0}])}
    assert "%" not in headline("Round 9", one, claims_about(one, label="v9.9"))


def test_summary_sentences_by_hand(bert):
    generation, cause, between, energy = summary(NAMES, {"bert": bert}, pointers(bert, "bert"))
    # E' = (2000 x 2) / (10 x 1024) = 0.39 against 0.1 like for like.
    assert re.search(r"BERT .*\b1,024 accelerators .*E' 0\.391.*\b0\.1 ", generation)
    assert re.search(r"\b50 % .*samples", cause)
    assert "BERT 64 accelerators" in between
    assert energy.endswith(": BERT 1.")


def test_what_the_data_do_not_carry_is_left_out(entries):
    one = {"bert": entries([{"num_accelerators": 8, "score_s": 10.0}])}
    (only,) = summary(NAMES, one, ())
    assert "energy" in only
