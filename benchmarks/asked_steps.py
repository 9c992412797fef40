"""Steps as an answer has them, asked as users ask, over published steps of the same training.

    python benchmarks/asked_steps.py [--trained lora qlora] [--software hf torchtitan ...] [--chips WORD]

Each published step of a model of the catalogue is asked for as `equipoise plan` is: model, accelerators,
length, global batch, precision and which weights are trained, with the strategy left open. What is advised
may be better than what was run, so ratios below one are expected; how far below, by software, shows which
software people who train so are answered with. Steps of one cluster count once; in sample, as answers are.
docs/experiments/0061-software-of-adapters.md has the figures.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[1] / "records"))
from step_table import source_of

import equipoise
from equipoise.calibration.published import PublishedRow, nodes_of, published_steps, rows_of_table
from equipoise.calibration.published.executions import chosen, software_of, with_executions
from equipoise.calibration.step_rows import refusal
from equipoise.errors import EquipoiseError

USUAL = "usual"


def asked(row: PublishedRow, software: str) -> float | None:
    """Seconds of a step as it is advised; None where nothing is."""
    strategy, model = row.strategy, row.model
    nodes = nodes_of(row)
    assert strategy is not None
    assert model is not None
    assert model.known is not None
    assert nodes is not None
    fixed = {"lora_rank": strategy.lora_rank, "lora_targets": strategy.lora_targets}
    more = {} if software == USUAL else {"software": software}
    if strategy.trained != "full":
        more["fix"] = {name: value for name, value in fixed.items() if value not in {0, "usual"}}
    try:
        answer = equipoise.plan(
            model.known.slug,
            accelerator=nodes.accelerator.slug,
            at=strategy.num_accelerators,
            sequence=model.sequence,
            tokens=1e10,
            train=strategy.trained,
            global_batch=strategy.global_batch_samples,
            precision=strategy.precision,
            **more,
        )
    except EquipoiseError:
        return None
    best = answer.record.recommended
    return None if best is None or best.step_s is None else best.step_s.value


def rows(trained: Iterable[str], chips: str) -> list[PublishedRow]:
    """One row of each cluster that such a question can be asked of."""
    found: dict[int, PublishedRow] = {}
    for row in chosen(with_executions(rows_of_table(published_steps()))):
        is_known = row.model is not None and row.model.known is not None and row.model.sequence is not None
        if row.kind != "step" or not is_known or row.strategy is None or refusal(row) is not None:
            continue
        nodes = nodes_of(row)
        if row.strategy.trained in trained and nodes is not None and chips in nodes.accelerator.slug:
            found.setdefault(row.cluster, row)
    return list(found.values())


def main() -> None:
    """Print a table by software that ran, and one by source."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trained", nargs="+", default=["lora", "qlora"])
    parser.add_argument("--software", nargs="+", default=["megatron_core", "torchtitan", "fsdp2_eager", "hf"])
    parser.add_argument("--chips", default="", help="part of the accelerators' names")
    options = parser.parse_args()
    names = [USUAL, *options.software]
    by_group: dict[tuple[str, str], list[tuple[float | None, ...]]] = defaultdict(list)
    for row in rows(options.trained, options.chips):
        ran, strategy = software_of(row), row.strategy
        assert strategy is not None
        assert row.seconds is not None
        ratios = []
        for name in names:
            step_s = asked(row, name)
            ratios.append(None if step_s is None else step_s / row.seconds)
        for group in (source_of(row), f"ran {'no known software' if ran is None else ran.name}", "all"):
            by_group[strategy.trained, group].append(tuple(ratios))
    print(f"| trained | steps of | steps | {' | '.join(names)} |\n|---|---|---|{'---|' * len(names)}")
    for (trained, group), found in sorted(by_group.items()):
        columns = []
        for values in zip(*found, strict=True):
            known = [each for each in values if each is not None]
            off = median(abs(each - 1) for each in known) if known else 0.0
            columns.append(f"{median(known):.2f}, {off:.0%}" if known else "-")
        print(f"| {trained} | {group} | {len(found)} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
