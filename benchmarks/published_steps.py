"""How wrong step times are on published steps whose source was left out whole, against other tools.

    python benchmarks/published_steps.py [--llm-analysis-python PYTHON] [--predictions NAME=FILE.csv ...]
                                         [--chips] [--neighbours] [--distance]

Every repository or paper of the table of published steps is predicted by parameters fitted to all others; one
row of a cluster counts. Others on the same rows: a constant MFU, Calculon where the row states what it
predicts, llm-analysis (PYTHON is an interpreter that has it), and any tool whose FILE has the columns row_id
and predicted_step_s. --chips: every chip left out in turn, wherever it ran. --neighbours: what correcting by
the error on near steps of other sources gains. --distance: by how much more MFU differs between sources where
a step differs in one thing.
docs/understand/published-steps.md and docs/experiments/0030 and 0040 have the figures.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import nnls

from equipoise.calibration.published import PublishedRow, nodes_of, published_steps, rows_of_table
from equipoise.calibration.published.executions import (
    chosen,
    digest_of,
    software_of,
    with_executions,
)
from equipoise.calibration.published.quantities import number
from equipoise.decide.explanation.published_nearby import (
    OTHER_PRECISION,
    PER_DOUBLING_OF_ACCELERATORS,
    PER_DOUBLING_OF_PARAMS,
    PER_DOUBLING_OF_SEQUENCE,
)
from equipoise.runs.readers.cells import TextRow
from equipoise.spec import family_of
from equipoise.spec.catalogue import shipped
from equipoise.spec.strategy import software

sys.path.append(str(Path(__file__).resolve().parents[1] / "records"))
from software_fit import (
    HeldOutSteps,
    fit_software,
    fitting_rows,
    held_out_steps,
    software_rows,
)
from step_table import source_of

DEVIATE = NormalDist().inv_cdf(0.95)
# What calculators assume where nothing else is known.
CONSTANT_MFU = 0.4
# How slugs of chips of desktops and workstations begin.
CARDS = ("gtx-", "quadro-", "rtx-", "titan-")
# llm-analysis 0.2.2, constant.py: "FLOPS efficiency achieved by Megatron-LM is ~0.5 for LLM training".
LLM_ANALYSIS_EFFICIENCY = 0.5
LLM_ANALYSIS_CHIPS = {
    "a100-sxm4-40gb": "a100-sxm-40gb",
    "a100-sxm4-80gb": "a100-sxm-80gb",
    "a100-pcie-40gb": "a100-pcie-40gb",
    "a100-pcie-80gb": "a100-pcie-80gb",
    "h100-sxm5-80gb": "h100-sxm-80gb",
    "h100-pcie-80gb": "h100-pcie-80gb",
    "v100-sxm2-16gb": "v100-sxm-16gb",
    "v100-sxm2-32gb": "v100-sxm-32gb",
}
LLM_ANALYSIS = """
import json, logging, sys
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import ModelConfig, ParallelismConfig
from llm_analysis.config import get_dtype_config_by_name, get_gpu_config_by_name
logging.disable(logging.CRITICAL)
for line in sys.stdin:
    step = json.loads(line)
    try:
        gated = step["model"].pop("gated")
        found = LLMAnalysis(
            ModelConfig(name="model", **step["model"]), get_gpu_config_by_name(step["gpu"]),
            get_dtype_config_by_name("w16a16e16"), ParallelismConfig(**step["parallel"]),
            flops_efficiency=step["efficiency"],
        ).training(
            batch_size_per_gpu=step["micro"], gradient_accumulation_steps=step["accumulated"],
            seq_len=step["seq"], mlp_gated_linear_units=gated, ds_zero=DSZeRO(step["zero"]),
            activation_recomputation=ActivationRecomputation(step["recompute"]),
        )["latency_per_iter"]
    except Exception as err:
        found = None
    print("RESULT", json.dumps([step["row_id"], found]), flush=True)
"""
Floats = NDArray[np.float64]


def table_rows() -> tuple[PublishedRow, ...]:
    """One row of each cluster of the shipped table, but those written down from memory."""
    table = published_steps().filter(pl.col("trust") != "recalled")
    return fitting_rows(chosen(with_executions(rows_of_table(table))))


def line(name: str, log_ratio: Floats, half: Floats | None = None) -> str:
    """A row of a table: errors of some steps, by log(measured / predicted)."""
    error = np.abs(np.exp(-log_ratio) - 1)
    inside = "" if half is None else f"{np.mean(np.abs(log_ratio) <= half):.0%}"
    bias = np.exp(-np.median(log_ratio)) - 1
    return (
        f"| {name} | {len(error)} | {np.median(error):.1%} | {np.quantile(error, 0.9):.1%} | {bias:+.1%} | "
        f"{inside} |"
    )


HEAD = "| {} | steps | median | 90 % | bias | inside 90 % |\n|---|---|---|---|---|---|"


def by_group(title: str, held: HeldOutSteps, groups: Sequence[str]) -> str:
    """The errors of each group, and of all, as a table."""
    names = np.array(groups)
    half = DEVIATE * held.log_sd
    lines = [HEAD.format(title)]
    for name in sorted(set(groups)):
        mine = names == name
        lines.append(line(name, held.log_ratio[mine], half[mine]))
    lines.append(line("all", held.log_ratio, half))
    is_inside = np.abs(held.log_ratio) <= half
    medians = [np.median(np.abs(np.exp(-held.log_ratio[names == name]) - 1)) for name in set(groups)]
    shares = [np.mean(is_inside[names == name]) for name in set(groups)]
    means = f"Mean of the medians: {np.mean(medians):.1%}; of the shares inside: {np.mean(shares):.0%}."
    return "\n".join(lines) + f"\n\n{means}"


def against(name: str, predicted_s: Mapping[str, float], held: HeldOutSteps) -> None:
    """Another tool next to ours, on the rows that it predicts."""
    ids = [digest_of(row) for row in held.rows]
    mine = np.flatnonzero([each in predicted_s for each in ids])
    if not len(mine):
        print(f"\n{name}: predicts none of these rows")
        return
    theirs = np.array([np.log(held.rows[at].seconds or np.nan) - np.log(predicted_s[ids[at]]) for at in mine])
    print("\n" + HEAD.format(f"on the {len(mine)} steps of {name}"))
    print(line(name, theirs))
    print(line("this model", held.log_ratio[mine], DEVIATE * held.log_sd[mine]))


def constant_mfu() -> dict[str, float]:
    """Seconds of every step with an MFU, were it CONSTANT_MFU."""
    table = published_steps().filter(
        pl.col("mfu").is_not_null() & pl.col("model_kind").is_in(["dense", "experts"])
    )
    seconds = table["step_s"] * table["mfu"] / CONSTANT_MFU
    return dict(zip(table["row_id"], seconds, strict=True))


def calculon(rows: Sequence[PublishedRow]) -> dict[str, float]:
    """What rows state that Calculon predicts."""
    found = {}
    for row in rows:
        told = number(TextRow(place="", cells=row.cells), "other_tool_prediction", most=1e30)
        if told is not None and row.conversion is not None and "Calculon" in row.cells.get("other_tool", ""):
            found[digest_of(row)] = row.conversion.seconds(told)
    return found


def llm_analysis(python: str, rows: Sequence[PublishedRow]) -> dict[str, float]:
    """What llm-analysis predicts of dense models in 16 bits on the GPUs that it knows."""
    steps = []
    for row in rows:
        nodes, strategy, model = (
            nodes_of(row),
            row.strategy,
            None if row.model is None else row.model.transformer,
        )
        if nodes is None or strategy is None or model is None or model.num_expert_blocks or strategy.cp > 1:
            continue
        gpu = LLM_ANALYSIS_CHIPS.get(nodes.accelerator.slug)
        if gpu is None or strategy.precision not in {"fp16", "bf16"} or strategy.trained != "full":
            continue
        steps.append(
            {
                "row_id": digest_of(row),
                "gpu": gpu,
                "efficiency": LLM_ANALYSIS_EFFICIENCY,
                "model": {
                    "num_layers": model.layers,
                    "n_head": model.heads,
                    "hidden_dim": model.hidden,
                    "vocab_size": model.vocabulary,
                    "num_key_value_heads": model.kv_heads,
                    "ffn_embed_dim": model.ffn_hidden,
                    "expansion_ratio": model.ffn_hidden / model.hidden,
                    "max_seq_len": row.model.sequence,
                    "gated": model.gated,
                },
                "parallel": {"tp_size": strategy.tp, "pp_size": strategy.pp, "dp_size": strategy.dp},
                "micro": strategy.microbatch_samples,
                "accumulated": strategy.num_microbatches,
                "seq": row.model.sequence,
                "zero": strategy.zero_stage,
                "recompute": {"none": 0, "selective": 1, "full": 2}[strategy.recompute],
            }
        )
    sent = "\n".join(map(json.dumps, steps))
    done = subprocess.run(
        [python, "-c", LLM_ANALYSIS], input=sent, capture_output=True, text=True, check=True
    )
    told = [json.loads(each[7:]) for each in done.stdout.splitlines() if each.startswith("RESULT ")]
    return {row_id: seconds for row_id, seconds in told if seconds is not None}


def from_file(path: Path) -> dict[str, float]:
    """The predictions of a file."""
    with path.open(newline="") as file:
        return {each["row_id"]: float(each["predicted_step_s"]) for each in csv.DictReader(file)}


def _facts(row: PublishedRow) -> tuple[str, str, str, str]:
    nodes, ran = nodes_of(row), software_of(row)
    assert nodes is not None
    assert ran is not None
    model = row.model and row.model.transformer
    kind = "other" if model is None else "experts" if model.num_expert_blocks else "dense"
    known = row.model and row.model.known
    name = known.slug if known else str(None if model is None else (model.layers, model.hidden))
    return " ".join(family_of(nodes.accelerator.slug)), ran.name, kind, name


def _apart(one: PublishedRow, other: PublishedRow) -> float:
    """The distance of rows of one chip, software and kind."""
    assert one.strategy
    assert other.strategy
    far = OTHER_PRECISION * (one.strategy.precision != other.strategy.precision)
    pairs = [(one.num_accelerators, other.num_accelerators, PER_DOUBLING_OF_ACCELERATORS)]
    if one.model and other.model:
        pairs.append((one.model.sequence or 1, other.model.sequence or 1, PER_DOUBLING_OF_SEQUENCE))
        models = one.model.transformer, other.model.transformer
        if models[0] and models[1]:
            pairs.append((models[0].active_params, models[1].active_params, PER_DOUBLING_OF_PARAMS))
    return far + sum(weight * abs(float(np.log2(a / b))) for a, b, weight in pairs)


def neighbours(rows: Sequence[PublishedRow]) -> None:
    """Errors with the model's time times a share of its error on the three nearest steps of other sources."""
    arrays = software_rows(rows)
    sources = np.array([source_of(row) for row in rows])
    facts = [_facts(row) for row in rows]
    corrections: dict[str, list[tuple[str, float, float]]] = {"chip and software": [], "model too": []}
    for source in sorted(set(sources)):
        out, kept = np.flatnonzero(sources == source), np.flatnonzero(sources != source)
        names = np.unique(arrays.groups.software).tolist()
        fit = fit_software(arrays.taken(kept), names)
        error = np.empty(len(rows))
        for name in names:
            mine = np.flatnonzero(arrays.groups.software == name)
            error[mine] = arrays.log_s[mine] - np.log(arrays.arrays.taken(mine).step_s(fit.parameters(name)))
        for at in out:
            for label, length in (("chip and software", 3), ("model too", 4)):
                near = [other for other in kept if facts[other][:length] == facts[at][:length]]
                near = sorted(near, key=lambda other: _apart(rows[at], rows[other]))[:3]
                if near:
                    corrections[label].append((source, error[at], float(np.mean(error[near]))))
    for label, found in corrections.items():
        print("\n" + HEAD.format(f"corrected by steps of the same {label}; share of their error"))
        own, theirs = np.array([each[1:] for each in found]).T
        for share in (0.0, 0.25, 0.5, 1.0):
            print(line(f"{share:.0%}", own - share * theirs))


def distance() -> None:
    """Regression of |difference of log MFU| between steps of two sources on what they differ in."""
    table = published_steps().filter(
        (pl.col("row_id") == pl.col("execution"))
        & pl.col("mfu").is_not_null()
        & pl.col("model_kind").is_in(["dense", "experts"])
        & pl.col("software").is_not_null()
        & (pl.col("trust") != "recalled")
    )
    table = table.group_by(
        *("repository", "model", "workload", "params", "active_params", "accelerator", "num_accelerators"),
        *("sequence_tokens", "software", "dtype", "model_kind"),
        maintain_order=True,
    ).agg(pl.col("mfu").median())
    chips = {one.slug: one for one in shipped().accelerators()}

    def peak(slug: str) -> float:
        chip = chips[slug]
        return chip.peak_bf16_flop_per_s or chip.peak_fp16_flop_per_s or chip.peak_fp32_flop_per_s or 1.0

    rows = table.to_dicts()
    names = (
        "any",
        "kind",
        "params",
        "sequence",
        "form",
        "chip",
        "peak",
        "n",
        "software",
        "family",
        "dtype",
        "model",
    )
    terms, apart, pairs = [], [], []
    for at, one in enumerate(rows):
        for other in rows[:at]:
            if one["repository"] == other["repository"]:
                continue
            chip, chip2 = one["accelerator"], other["accelerator"]
            same_chip = family_of(chip) == family_of(chip2)
            families = software(one["software"]).family, software(other["software"]).family
            terms.append(
                (
                    1.0,
                    one["model_kind"] != other["model_kind"],
                    abs(np.log2(one["active_params"] / other["active_params"])),
                    abs(np.log2(one["sequence_tokens"] / other["sequence_tokens"])),
                    chip != chip2 and same_chip,
                    not same_chip,
                    abs(np.log2(peak(chip) / peak(chip2))),
                    abs(np.log2(one["num_accelerators"] / other["num_accelerators"])),
                    one["software"] != other["software"],
                    families[0] != families[1],
                    one["dtype"] != other["dtype"],
                    one["model"] is None or one["model"] != other["model"],
                )
            )
            apart.append(abs(np.log(one["mfu"] / other["mfu"])))
            pairs.append(" ".join(sorted((one["repository"], other["repository"]))))
    _, member, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    weight = np.sqrt(1.0 / counts[member])  # every pair of sources counts once
    found, _ = nnls(np.array(terms, dtype=float) * weight[:, None], np.array(apart) * weight)
    print(f"\n{len(rows)} steps, {len(apart)} pairs:", dict(zip(names, found.round(3).tolist(), strict=True)))


def chips(rows: Sequence[PublishedRow]) -> None:
    """Every chip left out in turn, and those of desktops and workstations together."""
    held = held_out_steps(rows, _chip)
    names = [_chip(row) for row in rows]
    print("\n" + by_group("chip left out", held, names))
    cards = np.array([name.startswith(CARDS) for name in names])
    print(
        "\n"
        + HEAD.format("together")
        + "\n"
        + line("cards", held.log_ratio[cards], DEVIATE * held.log_sd[cards])
    )


def _chip(row: PublishedRow) -> str:
    nodes = nodes_of(row)
    assert nodes is not None
    return nodes.accelerator.slug


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llm-analysis-python", metavar="PYTHON")
    parser.add_argument("--predictions", metavar="NAME=FILE", action="append", default=[])
    parser.add_argument("--chips", action="store_true")
    parser.add_argument("--neighbours", action="store_true")
    parser.add_argument("--distance", action="store_true")
    asked = parser.parse_args()
    rows = table_rows()
    held = held_out_steps(rows, source_of)
    print(by_group("source", held, [source_of(row) for row in rows]))
    print("\n" + by_group("software", held, [_facts(row)[1] for row in rows]))
    trained = ["unknown" if row.strategy is None else row.strategy.trained for row in rows]
    print("\n" + by_group("weights trained", held, trained))
    against(f"a constant MFU of {CONSTANT_MFU:.0%}", constant_mfu(), held)
    against("Calculon", calculon(rows), held)
    if asked.llm_analysis_python:
        told = llm_analysis(asked.llm_analysis_python, rows)
        against(f"llm-analysis at {LLM_ANALYSIS_EFFICIENCY:.0%}", told, held)
    for each in asked.predictions:
        name, _, file = each.partition("=")
        against(name, from_file(Path(file)), held)
    if asked.chips:
        chips(rows)
    if asked.neighbours:
        neighbours(rows)
    if asked.distance:
        distance()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
