"""The launcher for a Ray cluster: each rank is started by an actor on one of the cluster's nodes."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import convert, to_builtins

from equipoise.bench.environment import no_torch, this_node
from equipoise.bench.launchers import (
    GRACE_S,
    RESULT,
    End,
    JobOutcome,
    Launcher,
    LaunchJob,
    Order,
    Ranks,
    begin,
    collect_ends,
    free_port,
    instructions,
    lost_another,
    outcome,
    read_document,
    write_document,
)
from equipoise.errors import DataError, UsageError, first_line

_RAY_TASK_POLL_S = 0.05


def _ray() -> Any:  # noqa: ANN401 - Ray is not followed
    """Return Ray, imported only when it is used."""
    import ray  # noqa: PLC0415 - see above

    return ray


class RankActor:
    """One rank of a job, on the node that Ray chose; its folder is local to that node."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="equipoise-"))
        self._ranks: Ranks | None = None

    def place(self) -> dict[str, Any]:
        """Return this actor's host, kernel identity, cores, Ray node, address and a free port."""
        ray = _ray()
        return {
            **this_node(),
            "node": ray.get_runtime_context().get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "port": free_port(),
        }

    def begin(self, order: Mapping[str, Any], folder: str) -> None:
        """Start the rank. folder: the sweep's working directory, which may contain the user's own module."""
        if Path(folder).is_dir():
            os.chdir(folder)
        ray = _ray()
        os.environ["EQUIPOISE_RAY_NODE"] = ray.get_runtime_context().get_node_id()
        self._ranks = begin(convert(order, Order), self._folder)

    def ended(self, wait_s: float) -> dict[str, Any] | None:
        """Return the end of the rank with its result; None if it has not ended within that time."""
        assert self._ranks is not None
        deadline = time.monotonic() + wait_s
        while True:
            for end in self._ranks.ends():
                return {"code": end.code, "why": end.why, "result": read_document(self._folder, RESULT)}
            if time.monotonic() > deadline:
                return None
            time.sleep(_RAY_TASK_POLL_S)

    def end(self) -> None:
        """Kill the rank if it still runs, and remove its folder."""
        if self._ranks is not None:
            self._ranks.end()
        shutil.rmtree(self._folder, ignore_errors=True)


NAME = "ray"
# Exceptions that Ray raises if no cluster answers.
_NO_CLUSTER = (ConnectionError, RuntimeError, ValueError)
_CONNECT = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error')"
_ANSWER_S = 20.0
_ASK_S = 2
_POLL_S = 1.0
_END_S = 20.0
# The exit code reported for the rank of a dead actor, which dies with it.
_DEAD = -signal.SIGKILL


def ray_cluster(options: Mapping[str, str]) -> Launcher:
    """Return the launcher that runs ranks on a Ray cluster.

    address: of the cluster; RAY_ADDRESS by default, else `auto`, which finds this machine's cluster.
    cpus_per_rank: Ray CPUs per rank; by default the sweep's largest trial fills the nodes.
    """
    unknown = sorted(set(options) - {"address", "cpus_per_rank"})
    cpus = options.get("cpus_per_rank", "0")
    if unknown or not cpus.isdecimal():
        found = ", ".join(unknown) or f"cpus_per_rank={cpus}"
        raise UsageError(f"launcher ray: {found}; expected address or cpus_per_rank, a number")
    address = options.get("address") or os.environ.get("RAY_ADDRESS") or "auto"

    def launch(job: LaunchJob) -> JobOutcome:
        try:
            _connect(address)
        except _NO_CLUSTER as err:
            raise DataError(_no_answer(address, first_line(err))) from err
        return _launch(job, int(cpus))

    return Launcher(name=NAME, why_not=partial(_why_not, address), launch=launch, binds_here=False)


def _why_not(address: str) -> str | None:
    """Return the reason why nothing can run there; None if a cluster answers.

    The check runs in a separate process. If a cluster has just ended, Ray waits for minutes and prints; and
    it ends any connected process a minute after its cluster has ended.
    """
    if find_spec("ray") is None:
        return "ray is not installed: pip install 'equipoise[ray]'"
    command = [sys.executable, "-c", _CONNECT, address]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_S)
    except subprocess.TimeoutExpired:
        return _no_answer(address, f"it did not answer within {_ANSWER_S:g} s")
    if asked.returncode:
        *_, why = asked.stderr.strip().splitlines() or ["Ray did not start"]
        return _no_answer(address, why)
    return no_torch()


def _no_answer(address: str, why: str) -> str:
    return f"no cluster at {address} ({why}); start one: ray start --head, and give --address"


def _connect(address: str) -> None:
    # By default, Ray hides a node's accelerators from actors that request none, and warns of that on every
    # start.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = _ray()
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level="error")


def _launch(job: LaunchJob, cpus: int) -> JobOutcome:
    """Run a job and return its outcome, after removing its actors and placement group."""
    import ray  # noqa: PLC0415 - only if Ray is used
    from ray.util.placement_group import placement_group, remove_placement_group  # noqa: PLC0415 - likewise

    bundle = _bundle(job, cpus)
    total = ray.cluster_resources()
    for name, each in bundle.items():
        if each * job.task.num_ranks > total.get(name, 0):
            return JobOutcome(
                reason=f"refused: {job.task.num_ranks} ranks need {each * job.task.num_ranks:g} {name}; "
                f"the Ray cluster has {total.get(name, 0):g}"
            )
    group = placement_group([bundle] * job.task.num_ranks, strategy="SPREAD")
    actors: list[Any] = []
    try:
        if not _placed(job, group):
            return JobOutcome(reason=f"no free resources in the Ray cluster within {job.limit_s:g} s")
        actors = [_actor(group, index, bundle) for index in range(job.task.num_ranks)]
        return _run(job, actors, int(bundle["CPU"]))
    finally:
        _end_actors(actors)
        remove_placement_group(group)


def _bundle(job: LaunchJob, cpus: int) -> dict[str, float]:
    """Return the resources that a rank requests from Ray."""
    ray = _ray()
    if not cpus:
        most_ranks = max(job.most_ranks, job.task.num_ranks)
        offers = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        offers = [offer for offer in offers if offer >= 1]
        # The largest trial is spread over all nodes; smaller ones have equally many cores per rank.
        per_node = -(-most_ranks // max(1, len(offers)))
        cpus = max(1, int(min(offers, default=1)) // per_node)
    return {"CPU": float(cpus)} | ({"GPU": 1.0} if job.task.device == "cuda" else {})


def _placed(job: LaunchJob, group: Any) -> bool:  # noqa: ANN401 - a Ray type
    """Wait for resources and return whether all ranks were placed; the wait is not part of the job's time."""
    deadline = time.monotonic() + job.limit_s
    while time.monotonic() < deadline:
        if group.wait(_ASK_S):
            return True
        job.report(f"queued: {job.task.num_ranks} ranks wait for resources of the Ray cluster")
    return False


def _actor(group: Any, index: int, bundle: Mapping[str, float]) -> Any:  # noqa: ANN401 - a Ray type
    import ray  # noqa: PLC0415 - only if Ray is used
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415 - likewise

    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    actor_class = ray.remote(RankActor).options(
        num_cpus=bundle["CPU"],
        num_gpus=bundle.get("GPU", 0),
        scheduling_strategy=strategy,
        max_restarts=0,
    )
    return actor_class.remote()


def _run(job: LaunchJob, actors: Sequence[Any], num_cores: int) -> JobOutcome:
    """Run the ranks in these actors and return the outcome."""
    ray = _ray()
    try:
        places = ray.get([actor.place.remote() for actor in actors], timeout=job.limit_s)
    except (ray.exceptions.RayError, TimeoutError) as err:
        return JobOutcome(reason=f"the actors did not start: {_first(err)}")
    # Ranks of a node are consecutive; nodes are in the order of their first actor.
    nodes = list(dict.fromkeys(place["node"] for place in places))
    by_rank = sorted(range(len(actors)), key=lambda index: nodes.index(places[index]["node"]))
    actors, places = [actors[index] for index in by_rank], [places[index] for index in by_rank]
    began = [
        actor.begin.remote(to_builtins(each), str(Path.cwd()))
        for actor, each in zip(actors, _orders(job, places, num_cores), strict=True)
    ]
    ends, ran_out = _ends(job, actors, places, began)
    hosts = {rank: place["host"] for rank, place in enumerate(places)}
    return outcome(job, ends, ran_out=ran_out, hosts=hosts)


def _orders(job: LaunchJob, places: Sequence[Mapping[str, Any]], num_cores: int) -> list[Order]:
    """Return an order for each actor; ranks with the same kernel and affinity get different cores."""
    seats: Counter[tuple[str, tuple[int, ...]]] = Counter()
    on_node = Counter(place["node"] for place in places)
    local: Counter[str] = Counter()
    orders = []
    for rank, place in enumerate(places):
        kind = (place["kernel"], tuple(place["cores"]))
        first = seats[kind] * num_cores
        seats[kind] += 1
        cores = place["cores"][first : first + num_cores] or place["cores"]
        orders.append(
            Order(
                ranks=(rank,),
                num_ranks=len(places),
                address=places[0]["address"],
                port=places[0]["port"],
                instructions=instructions(job, [cores]),
                first_local_rank=local[place["node"]],
                num_local_ranks=on_node[place["node"]],
            )
        )
        local[place["node"]] += 1
    return orders


def _ends(
    job: LaunchJob, actors: Sequence[Any], places: Sequence[Mapping[str, Any]], began: Sequence[Any]
) -> tuple[list[End], bool]:
    """Return the ends of ranks in the order they become known, and whether the job timed out."""
    ray = _ray()
    waiting = dict(zip(began, range(len(actors)), strict=True))

    def new_ends() -> list[End]:
        ends = []
        for ref in ray.wait(list(waiting), timeout=_POLL_S)[0]:
            rank = waiting.pop(ref)
            try:
                end = ray.get(ref)
            except ray.exceptions.RayError as err:
                end = {"code": _DEAD, "why": _fate(err, places[rank]["node"]), "result": None}
            if end is None:
                waiting[actors[rank].ended.remote(_POLL_S)] = rank
                continue
            ends.append(End(rank=rank, code=end["code"], why=end["why"]))
            if end["result"] is not None:
                write_document(job.folder, RESULT, end["result"])
        return ends

    def grace_s(end: End) -> float:
        # Ray notices a dead node later than the ranks that communicate with it.
        return _END_S if lost_another(end) else GRACE_S

    return collect_ends(len(actors), new_ends, limit_s=job.limit_s, grace_s=grace_s)


def _end_actors(actors: Sequence[Any]) -> None:
    """End every rank and kill its actor, if they still exist."""
    ray = _ray()
    ending = [actor.end.remote() for actor in actors]
    if ending:
        ray.wait(ending, num_returns=len(ending), timeout=_END_S)
    for actor in actors:
        with suppress(ray.exceptions.RayError):
            ray.kill(actor)


def _fate(err: BaseException, node: str) -> str:
    """Return the reason why a rank's actor does not answer, once Ray knows whether its node has failed."""
    ray = _ray()
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        alive = {one["NodeID"]: one["Alive"] for one in ray.nodes()}
        if not alive.get(node, False):
            return "is gone: its node failed"
        if not isinstance(err, ray.exceptions.ActorUnavailableError):
            break  # Ray attributes the failure to the actor
        time.sleep(_POLL_S)
    return f"is gone: {_first(err)}"


def _first(err: BaseException) -> str:
    """Return Ray's reason of a failure in one line."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    reasons = [line for line in lines if "died because" in line or "dead because" in line]
    return (reasons or lines or [type(err).__name__])[0]
