"""Where sharded training can run: found out from the installed torch, without loading it."""

from importlib.metadata import PackageNotFoundError, version

from equipoise.bench.methods.method import shared

# The first torch whose `fully_shard` is public: torch.distributed.fsdp.fully_shard.
_FIRST = (2, 6)


def sharded(world_size: int, backend: str) -> str | None:
    """Why sharded training cannot run."""
    reason = shared(world_size, backend)
    if reason is not None:
        return reason
    try:
        found = version("torch")
    except PackageNotFoundError:
        return "needs torch: pip install 'equipoise[torch]'"
    major, minor = (int("".join(filter(str.isdigit, part))) for part in found.split(".")[:2])
    if (major, minor) < _FIRST:
        return f"needs torch 2.6 or later; got {found}"
    return None
