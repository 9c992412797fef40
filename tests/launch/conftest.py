"""Strategies that use every axis and way to train, once for all tests of what is printed."""

import sys
from pathlib import Path

import pytest

from equipoise.spec.workload import workload

sys.path.insert(0, str(Path(__file__).parent))

DENSE = "llama31_405b"  # 126 layers
EXPERTS = "deepseek_v3"  # 61 layers, 256 experts, one prediction layer
STRATEGIES = (
    (DENSE, "dp=2 tp=8 microbatch=1 global_batch=64 sequence_parallel=true tp_overlap=true"),
    (
        DENSE,
        "dp=2 tp=8 pp=16 microbatch=1 global_batch=64 sequence_parallel=true zero_stage=1 precision=fp8",
    ),
    (DENSE, "dp=2 pp=7 interleave=3 microbatch=1 global_batch=28 recompute=full precision=fp16"),
    (DENSE, "pp=9 interleave=7 cp=2 microbatch=2 global_batch=36 recompute=selective implementation=eager"),
    (
        DENSE,
        "dp=4 tp=2 microbatch=1 global_batch=8 zero_stage=3 precision=mxfp8 offload=optimizer_and_params",
    ),
    (DENSE, "dp=4 tp=2 microbatch=1 global_batch=8 zero_stage=2 precision=fp4 optimizer=adam_8bit"),
    (DENSE, "dp=4 tp=2 microbatch=1 global_batch=8 optimizer=adam_8bit precision=fp8_rowwise"),
    (
        DENSE,
        "dp=4 tp=2 microbatch=1 global_batch=8 offload=optimizer recompute=selective fused_attention=false",
    ),
    (DENSE, "dp=4 tp=2 microbatch=1 global_batch=8 optimizer=sgd precision=tf32 compression=powersgd"),
    (DENSE, "dp=4 tp=2 microbatch=1 global_batch=8 offload=optimizer optimizer=sgd precision=fp32"),
    (
        DENSE,
        "dp=16 tp=2 microbatch=1 global_batch=16 zero_stage=3 dp_replicate=4 recompute=full activation_offload=true",
    ),
    (DENSE, "dp=16 tp=2 pp=3 microbatch=1 global_batch=48 zero_stage=1 dp_replicate=2"),
    (
        EXPERTS,
        "dp=4 tp=4 pp=16 ep=16 microbatch=1 global_batch=64 sequence_parallel=true recompute=selective",
    ),
    (EXPERTS, "dp=8 ep=8 microbatch=1 global_batch=64 recompute=selective activation_offload=true"),
    (EXPERTS, "dp=64 ep=64 pp=8 interleave=2 microbatch=1 global_batch=1024 zero_stage=1 precision=fp8"),
    (DENSE, "dp=2 tp=8 microbatch=1 global_batch=64 sequence_parallel=true cuda_graphs=true"),
    (DENSE, "dp=2 pp=7 microbatch=1 global_batch=28 recompute=selective cuda_graphs=true"),
    (EXPERTS, "dp=64 ep=64 microbatch=1 global_batch=64 zero_stage=1 cuda_graphs=true"),
    (
        EXPERTS,
        "dp=64 ep=64 microbatch=1 global_batch=64 recompute=selective fused_attention=false cuda_graphs=true",
    ),
    (EXPERTS, "dp=64 ep=64 microbatch=1 global_batch=64 recompute=full cuda_graphs=true"),
    (
        EXPERTS,
        "dp=64 ep=64 pp=8 interleave=2 schedule=1f1b_overlap microbatch=1 global_batch=1024 recompute=selective",
    ),
    (EXPERTS, "dp=8 cp=2 ep=16 microbatch=1 global_batch=8 zero_stage=3 recompute=full"),
)


@pytest.fixture(params=STRATEGIES, ids=[text for _, text in STRATEGIES])
def trained(request):
    """A strategy's text and the sizes of the model it trains."""
    name, text = request.param
    return text, workload(name).transformer
