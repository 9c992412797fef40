"""What runs on a node of a Ray cluster: an actor that starts a rank as others are started. No torch.

Ray names the class by its module, which must be installed on every node.
"""

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.bench.environment import kernel_id
from equipoise.bench.launchers.folder import RESULT
from equipoise.bench.launchers.network import free_port
from equipoise.bench.launchers.ranks import Ranks, order_from

_POLL_S = 0.05


class RankActor:
    """One rank of a job, on the node that Ray chose; its folder is on that node alone."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="equipoise-"))
        self._ranks: Ranks | None = None

    def place(self) -> dict[str, Any]:
        """Where this is: host, kernel and cores, Ray's node and address, and a port that is free there."""
        import ray  # noqa: PLC0415 - only where Ray runs

        return {
            "host": platform.node(),
            "kernel": kernel_id(),
            "cores": sorted(os.sched_getaffinity(0)),
            "node": ray.get_runtime_context().get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "port": free_port(),
        }

    def begin(self, order: Mapping[str, Any], folder: str) -> None:
        """Start the rank. folder: where the sweep was started; the user's own module may be there."""
        if Path(folder).is_dir():
            os.chdir(folder)
        import ray  # noqa: PLC0415 - only where Ray runs

        os.environ["EQUIPOISE_RAY_NODE"] = ray.get_runtime_context().get_node_id()
        self._ranks = Ranks(order_from(order), self._folder)

    def ended(self, wait_s: float) -> dict[str, Any] | None:
        """How the rank ended, with what it left; None when it has not within that time."""
        assert self._ranks is not None
        deadline = time.monotonic() + wait_s
        while True:
            for end in self._ranks.ends():
                left = self._folder / RESULT
                result = json.loads(left.read_bytes()) if left.exists() else None
                return {"code": end.code, "why": end.why, "result": result}
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Kill what is left of the rank, and remove its folder."""
        if self._ranks is not None:
            self._ranks.end()
        shutil.rmtree(self._folder, ignore_errors=True)
