"""What `equipoise doctor` says of measuring: devices, meters and launchers, each found out by asking."""

from typing import Any

from equipoise.cli.checked import check, version


def equipment() -> list[dict[str, Any]]:
    """One record a check, like `checkup.checks`; what is missing hinders nothing else."""
    return [*_devices(), *_meters(), *_models(), *_launchers()]


def _devices() -> list[dict[str, Any]]:
    from equipoise.bench.at_hand import at_hand

    found = at_hand("auto")
    many = f"{found.num_devices} seen by torch, over NCCL or RCCL" if found.device == "cuda" else None
    return [
        check("cpu", f"{at_hand('cpu').num_devices} cores, over gloo", "bench --device cpu"),
        check("torch", version("torch"), "training and timing", fix="pip install 'equipoise[bench]'"),
        check("cuda", many, "bench --device cuda", fix="none seen; install a torch built for CUDA or ROCm"),
    ]


def _meters() -> list[dict[str, Any]]:
    """Asked without an address each library says whether it starts."""
    from equipoise.bench.meters import nvml, rapl

    processors, accelerators = rapl.sources(), nvml.sources([])
    counted = ", ".join(source.part for source in processors.found) or None
    started = None if accelerators.reason else f"nvidia-ml-py {version('nvidia-ml-py')}"
    return [
        check("nvml", started, "energy of NVIDIA's accelerators", fix=_said(accelerators.reason)),
        check("rapl", counted, "energy of processors", fix=_said(processors.reason)),
    ]


def _models() -> list[dict[str, Any]]:
    fix = "pip install 'equipoise[zoo]'"
    return [check("transformers", version("transformers"), "larger models by name", fix=fix)]


def _launchers() -> list[dict[str, Any]]:
    """A launcher works when it says nothing against it; what it says is what to do."""
    from equipoise.bench.launchers.emulated import NAME, emulated
    from equipoise.bench.launchers.ray_cluster import ray_cluster
    from equipoise.bench.launchers.slurm import slurm
    from equipoise.bench.launchers.torchrun import TORCHRUN

    asked = (
        (TORCHRUN, "torch", "one node, or several"),
        (slurm({}), "submitit", "nodes of Slurm"),
        (ray_cluster({}), "ray", "nodes of Ray"),
        (emulated(f"{NAME}:1gbit"), None, "slow links, as namespaces of this machine; root"),
    )
    told = []
    for launcher, library, what in asked:
        reason = launcher.why_not()
        works = "usable" if library is None else f"{library} {version(library)}"
        told.append(check(launcher.name, None if reason else works, what, fix=_said(reason)))
    return told


def _said(reason: str | None) -> str | None:
    """A reason in one line, without the name of what it is about, which stands beside it."""
    if reason is None:
        return None
    for about in ("accelerators: ", "processors: "):
        reason = reason.removeprefix(about)
    return " ".join(reason.split())
