"""Arguments of the Python functions by verb, written by docs/questions.py from the fields."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypedDict


class SharedFields(TypedDict, total=False):
    """Fields of every function: docs/reference/questions.md has what each means."""

    accelerator: str | Sequence[str]
    cluster: str | Sequence[str]
    price: float | str | Mapping[str, float | str]
    region: str
    currency: str
    data: str | PathLike[str]
    also: str | PathLike[str] | Sequence[str | PathLike[str]]
    hardware: str | PathLike[str] | Sequence[str | PathLike[str]]
    workloads: str | PathLike[str] | Sequence[str | PathLike[str]]


class TrainingFields(SharedFields, total=False):
    """Fields of `advise` and `plan`: docs/reference/questions.md has what each means."""

    config: str | PathLike[str]
    train: str | Sequence[str]
    tokens: float | str
    samples: float | str
    examples: float | str
    epochs: float | str
    sequence: int | str
    image_size: int | str
    completion: int | str
    prompt: int | str
    group: int | str
    global_batch: int | str
    precision: str | Sequence[str]
    here: bool
    accelerators: int | str | Sequence[int]
    at: int | str | Sequence[int]
    node_size: int | str
    oversubscription: float | str
    leaf_nodes: int | str
    topology: str | PathLike[str]
    power_cap: float | str
    objective: Literal["balance", "time", "cost", "energy", "value_of_time"]
    value_of_time: float | str
    hour_usd: float | str
    deadline: float | str
    budget: float | str
    prices: str | PathLike[str]
    terms: str | Sequence[str] | Mapping[str, str | Sequence[str]]
    on_reclaim: Literal["wait", "shrink"]
    carbon: float | str
    collectives: str | PathLike[str] | Sequence[str | PathLike[str]]
    fix: str | Sequence[str] | Mapping[str, object]
    software: Literal[
        "jax_tpu",
        "jax",
        "megatron_core",
        "automodel",
        "torchtitan",
        "fsdp2_eager",
        "hf",
        "fsdp",
        "deepspeed",
        "megatron",
        "ngc",
        "priors",
    ]


class AdviseFields(TrainingFields, total=False):
    """Fields of `advise`: docs/reference/questions.md has what each means."""

    max_accelerators: int | str
    max: int | str
    stock: int | str | Mapping[str, int | str]
    queue: float | str
    electricity: float | str
    pue: float | str
    buy: bool
    purchase: float | str
    utilisation: float | str
    hosting: float | str
    horizon: float | str
    runs: str | PathLike[str]
    trace: str | PathLike[str] | Sequence[str | PathLike[str]]
    traced_as: str
    submitter: Literal["best", "new"]
    tokens_per_param: float | str


class PlanFields(TrainingFields, total=False):
    """Fields of `plan`: docs/reference/questions.md has what each means."""

    nodes: int | str
    top: int | str


class PredictFields(SharedFields, total=False):
    """Fields of `predict`: docs/reference/questions.md has what each means."""

    global_batch: int | str
    precision: str | Sequence[str]
    accelerators: int | str | Sequence[int]
    at: int | str | Sequence[int]
    value_of_time: float | str
    hour_usd: float | str
    deadline: float | str
    carbon: float | str
    from_: str | PathLike[str]
    column: str | Sequence[str] | Mapping[str, object]
    strategy: str
    law: str
    round: str
    submitter: Literal["best", "new"]
    fix: str | Sequence[str] | Mapping[str, object]


class AllocateFields(SharedFields, total=False):
    """Fields of `allocate`: docs/reference/questions.md has what each means."""

    node_size: int | str
