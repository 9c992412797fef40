"""Whole answers with the user's own runs, made by a closed form: links that are slow make the number smaller."""

import pytest

from equipoise.advice.answer.advised import advise
from equipoise.advice.answer.asked import Request
from equipoise.bench.tables import run_row, write
from equipoise.perfmodel.load import workload_load
from equipoise.spec.cluster import cluster
from equipoise.spec.workload import workload

CHIP, BATCH, RATE_FLOP_PER_S, FIXED_S = "a100-sxm4-80gb", 256, 120e12, 0.005
NODES = cluster(CHIP, num_accelerators=8)
LOAD = workload_load(workload("gpt2_medium"))


def step_s(size, share, slower):
    """A ring of 2 bytes a parameter inside nodes of 8, then each card's part between nodes; none hidden."""
    inside, num_nodes = min(size, 8), max(1, size // 8)
    traffic = 2 * 2 * LOAD.params
    intra_s = traffic * (inside - 1) / inside / (0.8 * NODES.intra.byte_per_s / slower)
    inter_s = traffic * (num_nodes - 1) / num_nodes / inside / (0.9 * NODES.inter.byte_per_s / slower)
    return LOAD.train_flop_per_sample * share / RATE_FLOP_PER_S + intra_s + inter_s + FIXED_S


def rows(slower):
    for size in (1, 8, 16, 32):
        for share in (8, 4, 2):
            yield run_row(
                {
                    "run_id": f"{size} x {share}",
                    "campaign": "mine",
                    "workload": "gpt2_medium",
                    "accelerator": CHIP,
                    "num_accelerators": size,
                    "num_nodes": max(1, size // 8),
                    "strategy": None if size == 1 else "ddp",
                    "precision": "bf16",
                    "global_batch_samples": size * share,
                    "status": "success",
                    "samples_per_s": size * share / step_s(size, share, slower),
                }
            )


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    found = {}
    for slower in (1, 10):
        folder = tmp_path_factory.mktemp("runs")
        write(folder, list(rows(slower)), [])
        request = Request(
            workload="gpt2_medium",
            accelerators=(CHIP,),
            runs=folder,
            most=512,
            training_tokens=1e9,
            global_batch_samples=BATCH,
        )
        found[slower] = advise(request, scores=None)
    return found


def test_links_ten_times_slower_make_the_number_smaller_and_the_strategy_another(advised):
    usual, slow = (each.recommended for each in (advised[1], advised[10]))
    assert slow.num_accelerators <= usual.num_accelerators / 2
    assert slow.option.strategy.shard_state != usual.option.strategy.shard_state or (
        slow.option.strategy.microbatch_samples != usual.option.strategy.microbatch_samples
    )


def test_what_ran_and_what_did_not_lie_in_the_range(advised):
    num_steps = 1e9 / 1024 / BATCH
    for slower, advice in advised.items():
        times = {each.num_accelerators: each.time for each in advice.standing.choices}
        for size in (8, 32, 64):
            # the best strategy is no slower than plain data parallelism, which the closed form is of
            assert times[size].low <= num_steps * step_s(size, BATCH / size, slower), (slower, size)
        assert times[8].high >= 0.8 * num_steps * step_s(8, BATCH / 8, slower)


def test_it_says_that_parameters_were_fitted_and_how_wrong_they_were(advised):
    said = [each for each in advised[1].recommended.evidence if each.kind == "modelled"]
    assert said[0].name == "the model (fitted to your runs)"
    assert "with a size held out it was off by" in said[0].why
    assert advised[1].standing.plan.basis.name == "your runs"
