"""What starts the processes of a training: torchrun, Slurm, Ray, Kubernetes and SkyPilot, each as a file."""

import re
from collections.abc import Callable, Iterator
from shlex import join, quote

from msgspec import Struct

from equipoise.launch.text import rendered, yaml_text
from equipoise.spec.hardware import Accelerator

PORT = 29500
_RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
# What the container has to hold is the user's: an image is named by whoever builds it.
_IMAGE = "YOUR_IMAGE"


class Launch(Struct, frozen=True, kw_only=True):
    """Processes to start: as many a host as it has ranks, on so many hosts of one kind of accelerator.

    name: of the job. words: the script and its options, as torchrun takes them. takes_more: whether options
    of the model and its data follow. variables: of the environment, name and value.
    """

    name: str
    num_hosts: int
    ranks_per_host: int
    accelerator: Accelerator
    words: tuple[str, ...]
    takes_more: bool = False
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def job_name(self) -> str:
        """The name as Kubernetes takes it: lower case, digits and hyphens, at most 40."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40].strip("-")
        return plain if plain[:1].isalpha() else f"train-{plain}".strip("-")

    @property
    def arguments(self) -> str:
        """Script and options as words of a shell, an option a line."""
        lines: list[list[str]] = [[]]
        for word in self.words:
            if word.startswith("--"):
                lines.append([])
            lines[-1].append(word)
        return " \\\n    ".join(map(join, lines))

    @property
    def open_arguments(self) -> str:
        """The same, and the place of options that the user adds where the program needs some."""
        return self.arguments + (' \\\n    "$@"' if self.takes_more else "")

    @property
    def is_gpu(self) -> bool:
        """Whether ranks have a GPU each, rather than a processor."""
        return self.accelerator.kind == "gpu"


class Platform(Struct, frozen=True, kw_only=True):
    """What starts the processes.

    file: the name of what is written. why: how to start it, and its documentation. unsupported: what of a
    launch it cannot express. checked_with: what accepted such files in the tests.
    """

    name: str
    title: str
    file: str
    language: str
    render: Callable[[Launch], str]
    why: str
    checked_with: str
    unsupported: Callable[[Launch], Iterator[str]] | None = None


def _torchrun(launch: Launch) -> str:
    if launch.num_hosts == 1:
        if launch.ranks_per_host == 1 and launch.words[0].endswith(".py"):
            return f"python {launch.open_arguments}\n"
        return f"torchrun --standalone --nproc-per-node={launch.ranks_per_host} {launch.open_arguments}\n"
    return rendered(
        "torchrun",
        hosts=launch.num_hosts,
        ranks=launch.ranks_per_host,
        port=PORT,
        arguments=launch.open_arguments,
    )


def _slurm(launch: Launch) -> str:
    devices = f"#SBATCH --gpus-per-node={launch.ranks_per_host}\n" if launch.is_gpu else ""
    exports = "".join(f"export {name}={quote(value)}\n" for name, value in launch.variables)
    return rendered(
        "slurm",
        job=launch.job_name,
        hosts=launch.num_hosts,
        ranks=launch.ranks_per_host,
        port=PORT,
        devices=devices,
        exports=exports,
        arguments=launch.open_arguments,
    )


def _ray(launch: Launch) -> str:
    return rendered(
        "ray",
        hosts=launch.num_hosts,
        ranks=launch.ranks_per_host,
        port=PORT,
        words="".join(f"    {word!r},\n" for word in launch.words),
        more=" + sys.argv[1:]" if launch.takes_more else "",
        variables="".join(f"\n    {name!r}: {value!r}," for name, value in launch.variables)
        + ("\n" if launch.variables else ""),
        bundle='{"CPU": 1, "GPU": RANKS_PER_HOST}' if launch.is_gpu else '{"CPU": RANKS_PER_HOST}',
        needs="num_cpus=1, num_gpus=RANKS_PER_HOST" if launch.is_gpu else "num_cpus=RANKS_PER_HOST",
    )


def _environment(launch: Launch) -> dict[str, object]:
    variables = [{"name": name, "value": str(value)} for name, value in launch.variables]
    return {"env": variables} if variables else {}


def _resources(launch: Launch) -> dict[str, object]:
    resource = _RESOURCES.get(launch.accelerator.vendor) if launch.is_gpu else None
    return {} if resource is None else {"limits": {resource: launch.ranks_per_host}}


def _train_job(launch: Launch) -> str:
    resources = _resources(launch)
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": launch.job_name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": _IMAGE,
                # The runtime gives torchrun its numbers of hosts and ranks, and where they meet.
                "command": ["torchrun", *launch.words],
                "numNodes": launch.num_hosts,
                "numProcPerNode": launch.ranks_per_host,
                **({"resourcesPerNode": resources} if resources else {}),
                **_environment(launch),
            },
        },
    }
    return yaml_text(document)


def _job_set(launch: Launch) -> str:
    name, group = launch.job_name, "hosts"
    resources = _resources(launch)
    endpoint = f"{name}-{group}-0-0.{name}:{PORT}"
    container = {
        "name": "train",
        "image": _IMAGE,
        "command": [
            "torchrun",
            f"--nnodes={launch.num_hosts}",
            f"--nproc-per-node={launch.ranks_per_host}",
            "--rdzv-id=equipoise",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}",
            *launch.words,
        ],
        **({"resources": resources} if resources else {}),
        **_environment(launch),
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108 - of the container
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        # Ranks of a host and workers that read data share memory; a container has 64 MB otherwise.
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }
    job = {
        "completions": launch.num_hosts,
        "parallelism": launch.num_hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": [{"name": group, "replicas": 1, "template": {"spec": job}}],
        },
    }
    return yaml_text(document)


def _more_arguments(launch: Launch) -> Iterator[str]:
    if launch.takes_more:
        yield "options of your model and data: add them to its command"


def _no_resource(launch: Launch) -> Iterator[str]:
    yield from _more_arguments(launch)
    if launch.is_gpu and launch.accelerator.vendor not in _RESOURCES:
        yield f"a resource of {launch.accelerator.vendor}'s accelerators: add that of its device plugin"


# SkyPilot's own names of what clouds rent; `sky gpus list -a` prints them.
SKYPILOT_NAMES = {
    "p100-pcie-16gb": "P100",
    "v100-sxm2-16gb": "V100",
    "v100-sxm2-32gb": "V100-32GB",
    "t4-pcie-16gb": "T4",
    "a10-pcie-24gb": "A10",
    "a10g-pcie-24gb": "A10G",
    "l4-pcie-24gb": "L4",
    "l40-pcie-48gb": "L40",
    "l40s-pcie-48gb": "L40S",
    "a100-sxm4-40gb": "A100",
    "a100-sxm4-80gb": "A100-80GB",
    "a100-pcie-80gb": "A100-80GB",
    "h100-sxm5-80gb": "H100",
    "h100-pcie-80gb": "H100",
    "h200-sxm5-141gb": "H200",
    "b200-sxm6-180gb": "B200",
    "gb200-nvl72-186gb": "GB200",
    "mi300x-oam-192gb": "MI300X",
    "rtx-3090-pcie-24gb": "RTX3090",
    "rtx-4090-pcie-24gb": "RTX4090",
}


def _sky(launch: Launch) -> str:
    name = SKYPILOT_NAMES.get(launch.accelerator.slug)
    resources = {"resources": {"accelerators": f"{name}:{launch.ranks_per_host}"}} if name else {}
    script = rendered(
        "sky", hosts=launch.num_hosts, ranks=launch.ranks_per_host, port=PORT, arguments=launch.arguments
    )
    document = {
        "name": launch.job_name,
        **resources,
        "num_nodes": launch.num_hosts,
        "workdir": ".",
        **({"envs": dict(launch.variables)} if launch.variables else {}),
        "run": script,
    }
    return yaml_text(document)


def _not_in_sky(launch: Launch) -> Iterator[str]:
    yield from _more_arguments(launch)
    if launch.is_gpu and launch.accelerator.slug not in SKYPILOT_NAMES:
        yield f"{launch.accelerator.title}: its name there is not known; add resources.accelerators"


TORCHRUN = Platform(
    name="torchrun",
    title="Command",
    file="torchrun.sh",
    language="bash",
    render=_torchrun,
    why="https://docs.pytorch.org/docs/stable/elastic/run.html",
    checked_with="torchrun's own parser, torch 2.13",
)
SLURM = Platform(
    name="Slurm",
    title="The same under Slurm",
    file="job.sbatch",
    language="bash",
    render=_slurm,
    why="sbatch job.sbatch starts one launcher per host (https://slurm.schedmd.com/sbatch.html)",
    checked_with="a job of two nodes under Slurm's own sbatch",
)
RAY = Platform(
    name="Ray",
    title="The same on a Ray cluster",
    file="ray_launch.py",
    language="python",
    render=_ray,
    why="ray job submit --working-dir . -- python ray_launch.py starts one launcher per host "
    "(https://docs.ray.io/en/latest/cluster/running-applications/job-submission/index.html)",
    checked_with="a job of two ranks under Ray 2.60",
)
TRAIN_JOB = Platform(
    name="Kubernetes TrainJob",
    title="The same as a TrainJob of Kubeflow",
    file="trainjob.yaml",
    language="yaml",
    render=_train_job,
    why=f"kubectl apply -f trainjob.yaml, with an image that holds the script in place of {_IMAGE} "
    "(https://www.kubeflow.org/docs/components/trainer)",
    checked_with="the models of its API, kubeflow-trainer-api 2.3.0",
    unsupported=_no_resource,
)
JOB_SET = Platform(
    name="Kubernetes JobSet",
    title="The same as a JobSet",
    file="jobset.yaml",
    language="yaml",
    render=_job_set,
    why=f"kubectl apply -f jobset.yaml, with an image that holds the script in place of {_IMAGE} "
    "(https://jobset.sigs.k8s.io/docs)",
    checked_with="the models of its API, kubeflow-trainer-api 2.3.0",
    unsupported=_no_resource,
)
SKYPILOT = Platform(
    name="SkyPilot",
    title="The same as a task of SkyPilot",
    file="sky.yaml",
    language="yaml",
    render=_sky,
    why="sky launch sky.yaml (https://docs.skypilot.co/en/latest/reference/yaml-spec.html)",
    checked_with="sky.Task of skypilot 0.14.1",
    unsupported=_not_in_sky,
)
PLATFORMS: tuple[Platform, ...] = (TORCHRUN, SLURM, RAY, TRAIN_JOB, JOB_SET, SKYPILOT)
