"""What `equipoise bench` was asked for, as the cells of a sweep. Looks for devices; runs nothing."""

import re
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from equipoise.bench.at_hand import AtHand, at_hand
from equipoise.bench.cell import Cell
from equipoise.bench.methods import method
from equipoise.bench.models import known_name
from equipoise.bench.store import Store
from equipoise.bench.sweep import Scaling, planned
from equipoise.errors import UsageError

_MOST_VALUES = 100
_MOST_CELLS = 100_000
_MOST_RANKS = 1_000_000
_MOST_BATCH = 1_000_000_000
# A host with many cores is not cut into ranks of one core each unless that is asked for.
_MOST_RANKS_UNASKED = 8
_WHOLE = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as they were given: lists are still text. binds_here: whether ranks run on this machine."""

    workloads: tuple[str, ...]
    sizes: str | None
    batches: str
    strategies: str
    precisions: str
    scaling: Scaling
    device: str
    binds_here: bool
    num_repetitions: int
    num_steps: int
    train_samples: int | None
    learning_rate: float | None
    num_arms: int


def cells_of(asked: Asked) -> tuple[Cell, ...]:
    """The cells of the sweep.

    Raises UsageError for what no cell can be made of: unknown names, batches that ranks cannot share, more
    ranks than devices.
    """
    for workload in asked.workloads:
        _refuse_unknown(workload)
    methods = _items(asked.strategies, "--strategy")
    for text in methods:
        method(text)
    here = at_hand(asked.device)
    sizes = _sizes(asked.sizes, here if asked.binds_here else None)
    cells = tuple(
        cell
        for precision in _items(asked.precisions, "--precision")
        for cell in planned(
            workloads=asked.workloads,
            methods=methods,
            sizes=sizes,
            batches=[_whole(item, "--batch", _MOST_BATCH) for item in _items(asked.batches, "--batch")],
            num_repetitions=asked.num_repetitions,
            precision=precision,
            num_steps=asked.num_steps,
            scaling=asked.scaling,
            num_arms=asked.num_arms,
            device=here.device,
            train_samples=asked.train_samples,
            learning_rate=asked.learning_rate,
        )
    )
    if len(cells) > _MOST_CELLS:
        raise UsageError(f"{len(cells)} runs; a sweep has at most {_MOST_CELLS}: take fewer of something")
    return cells


def planned_before(folder: Path) -> tuple[tuple[Cell, ...], dict[str, str]]:
    """The cells and settings of the sweep that a folder holds. Raises DataError when it holds none."""
    store = Store(folder)
    if not (folder / "sweep.json").exists():
        raise UsageError(f"{folder}: holds no sweep; expected the folder of one, or what to train")
    return store.plan(), store.settings()


def _refuse_unknown(workload: str) -> None:
    """Refuse a workload that no worker could find, before any is started."""
    if not known_name(workload):
        module = workload.partition(":")[0].partition(".")[0]
        if not module.isidentifier() or PathFinder.find_spec(module, [str(Path.cwd()), *sys.path]) is None:
            raise UsageError(
                f"{workload!r}: no module {module!r} here; expected module:function, such as train:model "
                "for def model() in train.py of this directory"
            )


def _sizes(listed: str | None, here: AtHand | None) -> tuple[int, ...]:
    """Numbers of ranks. here: the devices they have to share; None where other machines have them."""
    if listed is None:
        most = min(here.num_devices, _MOST_RANKS_UNASKED) if here else 2
        return tuple(_doubled(1, max(1, most)))
    text = listed.strip()
    continued = text.endswith("..")
    sizes = [_whole(item, "--sizes", _MOST_RANKS) for item in _items(text.removesuffix(".."), "--sizes")]
    if continued:
        if here is None:
            raise UsageError(f"--sizes {listed}: this launcher's devices are not known here; name every size")
        sizes += [size for size in _doubled(max(sizes), here.num_devices) if size not in sizes]
    if here is not None and max(sizes) > here.num_devices:
        kind = "cores" if here.device == "cpu" else "accelerators"
        raise UsageError(
            f"--sizes {max(sizes)}: this machine has {here.num_devices} {kind} to give each rank one; "
            "take smaller --sizes"
        )
    return tuple(dict.fromkeys(sizes))


def _doubled(first: int, most: int) -> list[int]:
    """A size doubled until it would pass the most."""
    sizes = []
    while first <= most:
        sizes.append(first)
        first *= 2
    return sizes


def _items(listed: str, option: str) -> list[str]:
    """The parts of a list, each once."""
    items = list(dict.fromkeys(item.strip() for item in listed.split(",") if item.strip()))
    if not items or len(items) > _MOST_VALUES:
        raise UsageError(f"{option} {listed!r}: expected 1 to {_MOST_VALUES} values, with commas between")
    return items


def _whole(item: str, option: str, most: int) -> int:
    if not _WHOLE.fullmatch(item) or not 1 <= int(item) <= most:
        raise UsageError(f"{option} {item!r}: expected whole numbers from 1 to {most:,}, such as 1,2,4")
    return int(item)
