"""What a name in a trace stands for: communication between accelerators, copies, computation."""

import re

# NCCL before 2.19 (ncclKernel_AllReduce_RING_LL_Sum_float, ncclAllReduceRingLLKernel_sum_f32) and since
# (ncclDevKernel_, ncclSymDevKernel_, ncclSymkDevKernel_, with a template before it at times), RCCL, and what
# replaces them: MSCCL, oneCCL, custom all-reduce of vLLM and TensorRT-LLM, symmetric memory of torch, DeepEP,
# NVSHMEM. Copies between peers are communication too: pipelines and FSDP make them.
_COMMUNICATES = re.compile(
    r"^(?:void\s+)?(?:\w+::)*(?:nccl|rccl|mscclpp?|oneccl|ccl_|cross_device_reduce|deep_ep|nvshmem|nixl)"
    r"|(?<![a-z])nccl(?:Sym|Symk)?(?:Dev)?Kernel"
    r"|(?:one|two)_?shot_all_?reduce|multimem_(?:one_shot_)?all_?(?:reduce|gather)|all_?reduce_fusion_kernel"
    r"|^memcpy (?:ptop|peer)",
    re.IGNORECASE,
)
# What the host records while the library of a CPU backend works: the span of the operation itself.
_HOST_COMMUNICATES = re.compile(r"^(?:gloo|mpi|ucc):(\w+)")
# The same for backends of accelerators: the span of its launch, which says nothing of the operation.
_HOST_LAUNCHES = re.compile(r"^(?:nccl|rccl|xccl|hccl):")
# Operators that hold others, or only wait: their spans are not computation.
_WRAPS = re.compile(
    r"^(?:autograd::|torch::autograd::|c10d::|c10d_functional::|_c10d_functional::|record_param_comms|gloo:|nccl:"
    r"|torch::distributed::reducer::search|ProfilerStep|Optimizer\.|DistributedDataParallel\.|DataLoader|enumerate)"
    r"|^FSDP::|^PythonSubclass$|Backward\d*$|^## "
)
_STEP = re.compile(r"^ProfilerStep\s*#(\d{1,12})$")
_OPERATION = re.compile(
    r"(All_?Reduce|All_?Gather|Reduce_?Scatter|Broadcast|All_?To_?All|SendRecv|Reduce|Send|Recv)",
    re.IGNORECASE,
)
_COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")


def communicates(name: str) -> bool:
    """Whether a kernel or copy of the device moves data between accelerators.

    >>> communicates("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)")
    True
    >>> communicates("Memcpy PtoP (Device -> Device)"), communicates("void at::native::reduce_kernel<512>()")
    (True, False)
    """
    return _COMMUNICATES.search(name[:300]) is not None


def copies(category: str) -> bool:
    """Whether events of a category are copies or fills of memory and not kernels."""
    return category in _COPIES


def operation(name: str) -> str:
    """The collective in a kernel's name, or the start of the name where it is none of the known.

    >>> operation("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)")
    'allreduce'
    """
    found = _OPERATION.search(name[:300])
    return found[1].lower() if found else name[:60]


def host_operation(name: str) -> str | None:
    """The collective that a CPU backend works on in a span of the host; None for another span.

    >>> host_operation("gloo:all_reduce"), host_operation("nccl:all_reduce")
    ('all_reduce', None)
    """
    found = _HOST_COMMUNICATES.match(name)
    return found[1] if found else None


def launches(name: str) -> bool:
    """Whether a span of the host launches a collective of accelerators."""
    return _HOST_LAUNCHES.match(name) is not None


def computes_on_host(name: str) -> bool:
    """Whether an operator's span on the host is computation.

    >>> computes_on_host("aten::mm"), computes_on_host("c10d::allreduce_"), computes_on_host("AddmmBackward0")
    (True, False, False)
    """
    return _WRAPS.search(name[:300]) is None


def step_number(name: str) -> int | None:
    """The number of a step that a span marks; None for another span.

    >>> step_number("ProfilerStep#12"), step_number("ProfilerStep")
    (12, None)
    """
    found = _STEP.match(name)
    return int(found[1]) if found else None
