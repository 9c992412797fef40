"""The method: the formulas of the performance model and whose they are, and its calibrated numbers."""

from dataclasses import dataclass
from typing import Final

from equipoise.findings import PlanFindings
from equipoise.perfmodel.prior import Prior
from equipoise.report.blocks import Block, Cell, Column, Fold, Table, prose
from equipoise.report.section import Section
from equipoise.report.words import ratio, sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One part of the model. formula: as text, its letters explained. source: whose it is."""

    part: str
    formula: str
    source: str


FORMULAS: Final = (
    Formula(
        part="Matrix products",
        formula=(
            "FLOP / (peak x fraction reached) + a time for each product's start and tail; memory-bound work"
            " is bytes / (rate x fraction)"
        ),
        source="MAMF tables for what the best product reaches; roofline (Williams et al. 2009)",
    ),
    Formula(
        part="Host",
        formula="device and host run side by side: a layer takes a smooth maximum of the two",
        source="fitted on measured iterations of A100",
    ),
    Formula(
        part="Collectives",
        formula=(
            "steps x latency + bytes over each link / rate: rings inside and between nodes, two trees, a "
            "reducing switch; the least of them"
        ),
        source=(
            "Hockney 1994; Patarasuk and Yuan 2009; Sanders, Speck and Träff 2009; NCCL src/graph/tuning.cc"
        ),
    ),
    Formula(
        part="Data axis",
        formula=(
            "gradients scattered and weights gathered once a step, beside the way back; with shard_state 3 "
            "two gathers and one scatter a layer"
        ),
        source="Rajbhandari et al. 2020; Zhao et al. 2023 (FSDP)",
    ),
    Formula(
        part="Tensor axis",
        formula=(
            "a sum of a micro-batch's activations behind each block on every pass; with sequence_parallel a"
            " scatter and a gather"
        ),
        source="Shoeybi et al. 2019; Korthikanti et al. 2022",
    ),
    Formula(
        part="Pipeline axis",
        formula=(
            "(micro-batches + (p - 1) / v) x the fullest of p stages in v chunks, and what is sent between "
            "them"
        ),
        source="Narayanan et al. 2021",
    ),
    Formula(
        part="Context and expert axes",
        formula=(
            "keys and values that every rank comes to see; tokens sent to the ranks of their experts and back"
        ),
        source="Liu et al. 2023; Llama team 2024; Lepikhin et al. 2020; DeepSeek-AI 2025",
    ),
    Formula(
        part="Memory",
        formula=(
            "weights, gradients and optimizer states, sharded as the strategy says; activations of the "
            "micro-batches alive; buffers; context"
        ),
        source="Rajbhandari et al. 2020; Korthikanti et al. 2022, eq. 1-6; Narayanan et al. 2021",
    ),
    Formula(
        part="Waiting",
        formula="the slowest of n ranks is sqrt(2 ln n) standard deviations behind the mean",
        source="largest of n normal deviates",
    ),
    Formula(
        part="Failures",
        formula=(
            "a checkpoint every sqrt(2 C M) seconds; lost: C / tau + (tau / 2 + R) / M, with M falling as 1"
            " / n"
        ),
        source="Young 1974; Daly 2006",
    ),
    Formula(
        part="Samples to the target",
        formula="S(B) = S_min (1 + B / B_crit) at global batch B",
        source="McCandlish et al. 2018, fitted on published results",
    ),
    Formula(
        part="Where more stop paying",
        formula=(
            "balance: the largest efficiency x speedup; marginal: a doubling still gains half of ideal; "
            "floor: efficiency one half"
        ),
        source="Eager, Zahorjan and Lazowska 1989; `equipoise explain`",
    ),
)


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    return (
        prose(
            "Every legal strategy was estimated by one model: seconds of a step by cause, bytes by "
            "kind. What does not fit "
            "was dropped; of the rest the fastest of each layout was kept. The time to train is the "
            "time of a step times "
            "the steps to the target, for a larger batch needs more samples."
        ),
        Table(
            name="formulas",
            caption="The parts of the model",
            columns=(Column(title="Part"), Column(title="Formula"), Column(title="Source")),
            rows=tuple(
                (
                    Cell(text=each.part, key=each.part),
                    Cell(text=each.formula, key=each.formula),
                    Cell(text=each.source, key=each.source),
                )
                for each in FORMULAS
            ),
        ),
        _parameters(findings),
    )


def _parameters(findings: PlanFindings) -> Fold:
    table = Table(
        name="parameters",
        caption="Each calibrated number: what is used here, and what was believed of it before measurements",
        columns=(
            Column(title="Parameter"),
            Column(title="Used", is_number=True, meaning="in this plan, SI units"),
            Column(title="Believed", is_number=True, meaning="median of the prior, SI units"),
            Column(title="Within a factor", is_number=True, meaning="two times in three"),
            Column(title="Meaning"),
            Column(title="Source of the belief", is_wide=True),
        ),
        rows=tuple(_parameter(each, findings.plan.parameters.value(each.name)) for each in findings.priors),
    )
    return Fold(
        name="parameters",
        title=f"The {len(findings.priors)} calibrated numbers",
        badges=(),
        blocks=(table,),
        is_long=True,
    )


def _parameter(prior: Prior, used: float) -> tuple[Cell, ...]:
    return (
        Cell(text=prior.name, key=prior.name),
        Cell(text=f"{used:.3g}", key=used, detail=None if used == prior.median else "fitted"),
        Cell(text=f"{prior.median:.3g}", key=prior.median),
        Cell(text=ratio(prior.factor), key=prior.factor),
        Cell(text=sentence(prior.meaning), key=prior.meaning),
        Cell(text=sentence(prior.source), key=prior.source),
    )


SECTION: Final[Section[PlanFindings]] = Section(
    name="method", title="Method", needs=("plan",), blocks=_blocks
)
