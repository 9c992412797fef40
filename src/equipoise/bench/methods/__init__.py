"""The ways to train that can be measured, one file each; text such as `accumulate:4` names one. No torch."""

from difflib import get_close_matches

from equipoise.bench.methods.method import (
    Argument,
    Method,
    MethodArgument,
    OptimizerSettings,
    Step,
    alone,
    sharded,
    shared,
)
from equipoise.errors import UsageError

__all__ = ["METHODS", "Argument", "Method", "OptimizerSettings", "Step", "method"]

_BUCKET = MethodArgument(meaning="the bucket in MiB", example="25", kind=float, least=0.001, needed=False)

METHODS = (
    Method(
        name="single",
        meaning="one rank, no communication",
        begins="data_parallel:begin_single",
        source="the baseline",
        why_not=alone,
    ),
    Method(
        name="ddp",
        meaning="gradients averaged in buckets while the backward pass runs",
        begins="data_parallel:begin_ddp",
        source="Li et al. 2020, PyTorch Distributed, arXiv 2006.15704",
        takes=_BUCKET,
        why_not=shared,
    ),
    Method(
        name="static_graph",
        meaning="ddp that is told that the same weights are used in every step",
        begins="data_parallel:begin_ddp",
        source="torch.nn.parallel.DistributedDataParallel, static_graph",
        takes=_BUCKET,
        why_not=shared,
    ),
    Method(
        name="fsdp",
        meaning="weights, gradients and optimizer state sharded; gathered where needed",
        begins="data_parallel:begin_fsdp",
        source="Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277",
        why_not=sharded,
    ),
    Method(
        name="accumulate",
        meaning="gradients of several batches summed on each rank before they are averaged",
        begins="data_parallel:begin_accumulate",
        source="Ott et al. 2018, Scaling NMT, arXiv 1806.00187, section 3.1",
        takes=MethodArgument(meaning="the number of batches", example="4", kind=int, least=1),
        why_not=shared,
    ),
    Method(
        name="fp16",
        meaning="ddp that sends gradients as float16",
        begins="data_parallel:begin_rounded",
        source="torch.distributed.algorithms.ddp_comm_hooks.default_hooks, fp16_compress_hook",
        why_not=shared,
    ),
    Method(
        name="bf16",
        meaning="ddp that sends gradients as bfloat16",
        begins="data_parallel:begin_rounded",
        source="torch.distributed.algorithms.ddp_comm_hooks.default_hooks, bf16_compress_hook",
        why_not=shared,
    ),
    Method(
        name="powersgd",
        meaning="ddp that sends a low-rank approximation of each gradient, its error fed back",
        begins="data_parallel:begin_powersgd",
        source="Vogels et al. 2019, PowerSGD, arXiv 1905.13727",
        takes=MethodArgument(meaning="the rank of the approximation", example="2", kind=int, least=1),
        why_not=shared,
    ),
    Method(
        name="topk",
        meaning="ddp that sends only the largest values of each gradient, the rest kept for later steps",
        begins="data_parallel:begin_topk",
        source="Stich et al. 2018, Sparsified SGD with Memory, arXiv 1809.07599",
        takes=MethodArgument(
            meaning="the fraction of values", example="0.01", kind=float, least=1e-6, largest=1.0
        ),
        why_not=shared,
    ),
    Method(
        name="localsgd",
        meaning="each rank trains alone; weights are averaged every so many steps",
        begins="local:begin_localsgd",
        source="Stich 2019, Local SGD, arXiv 1805.09767",
        takes=MethodArgument(meaning="the number of steps between averages", example="8", kind=int, least=1),
        why_not=shared,
    ),
    Method(
        name="localsgd_fp16",
        meaning="local SGD that sends the changes of weights since the last average, as float16",
        begins="local:begin_localsgd",
        source="Stich 2019, arXiv 1805.09767; rounded as gradients are by fp16_compress_hook",
        takes=MethodArgument(meaning="the number of steps between averages", example="8", kind=int, least=1),
        why_not=shared,
    ),
    Method(
        name="diloco",
        meaning="local SGD whose averaged change is applied by an outer optimizer with momentum; "
        "unstable at short periods where the inner optimizer has momentum too",
        begins="local:begin_diloco",
        source="Douillard et al. 2023, DiLoCo, arXiv 2311.08105",
        takes=MethodArgument(meaning="the number of steps between averages", example="8", kind=int, least=1),
        why_not=shared,
    ),
    Method(
        name="diloco_fp16",
        meaning="DiLoCo that sends the changes of weights as float16; unstable where diloco is",
        begins="local:begin_diloco",
        source="Douillard et al. 2025, Streaming DiLoCo, arXiv 2501.18512: rounds to 4 bits",
        takes=MethodArgument(meaning="the number of steps between averages", example="8", kind=int, least=1),
        why_not=shared,
    ),
)


def method(text: str) -> tuple[Method, Argument]:
    """The method and the argument that `name` or `name:argument` names.

    Raises UsageError with the nearest names, or with what the argument must be.

    >>> found, argument = method("accumulate:4")
    >>> found.name, argument
    ('accumulate', 4)
    """
    name, colon, given = text.strip().partition(":")
    known = {each.name: each for each in METHODS}
    if name not in known:
        near = get_close_matches(name, known, n=3)
        listed = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(known)}"
        raise UsageError(f"method {name!r} is unknown; {listed}")
    found = known[name]
    if found.takes is None:
        if colon:
            raise UsageError(f"{text}: {name} takes no argument; write {name}")
        return found, None
    if not colon:
        if found.takes.needed:
            raise UsageError(
                f"{name} needs an argument, {found.takes.meaning}; write {name}:{found.takes.example}"
            )
        return found, None
    return found, found.takes.read(name, given)
