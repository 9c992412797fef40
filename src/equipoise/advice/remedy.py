"""What would make a training fit that does not: more accelerators, or other values of what was fixed."""

from equipoise.advice.setting import Setting
from equipoise.perfmodel.space import USUAL, Value
from equipoise.units import format_si

_MOST_DOUBLINGS = 12
# What saves memory, in the order of what it costs: another value of one knob at a time.
_SPARING: tuple[tuple[str, Value], ...] = (
    ("shard_state", 3),
    ("recompute", "full"),
    ("optimizer", "adam_8bit"),
    ("offload", "optimizer"),
    ("offload", "optimizer_and_params"),
    ("trained", "lora"),
    ("trained", "qlora"),
)


def remedy(setting: Setting, num_accelerators: int) -> str | None:
    """A sentence: what the training needs, what there is, and what would do; None where nothing is legal.

    Amounts are of all accelerators together, by the strategy that needs the least.
    """
    found = setting.searched(num_accelerators, num_best=1)
    if found.memories is None or found.num_fitting:
        return None
    needed = found.memories.least_bytes * num_accelerators
    held = float(setting.machine.memory_bytes)
    tries = [each for each in (_more(setting, num_accelerators), *_others(setting, num_accelerators)) if each]
    hint = f": try {' or '.join(tries)}" if tries else ""
    return (
        f"needs {format_si(needed, 'B')}, {num_accelerators} x {format_si(held, 'B')} hold "
        f"{format_si(held * num_accelerators, 'B')}{hint}"
    )


def _more(setting: Setting, num_accelerators: int) -> str | None:
    """The fewest doublings of accelerators on which it fits."""
    for doubling in range(1, _MOST_DOUBLINGS + 1):
        size = num_accelerators * 2**doubling
        if setting.searched(size, num_best=1).num_fitting:
            return f"{size:,} accelerators"
    return None


def _others(setting: Setting, num_accelerators: int) -> tuple[str, ...]:
    """The first changes of one knob that make it fit."""
    fitting = []
    for name, value in _SPARING:
        if value in setting.choices.get(name, USUAL[name]):
            continue
        choices = dict(setting.choices) | {name: (value,)}
        if name == "offload":
            choices["shard_state"] = (0, 1, 2, 3)
        if name == "trained":
            choices["lora_rank"] = (setting.workload.lora_rank or 16,)
        if setting.searched(num_accelerators, num_best=1, choices=choices).num_fitting:
            fitting.append(f"{name}={value}")
    return tuple(fitting[:2])
