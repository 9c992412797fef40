"""How to run the choice: the commands and code of its strategy, and settings with a reason on its machine."""

from dataclasses import replace

from equipoise.advice.answer.advice import Choice, Standing
from equipoise.advice.launch.commands import launch_snippets
from equipoise.advice.launch.settings import Setting, runtime_settings
from equipoise.advice.launch.snippet import Snippet
from equipoise.errors import SpecError


def snippets_of(standing: Standing, choice: Choice | None) -> tuple[Snippet, ...]:
    """What to run; nothing where no strategy is known or nothing is known of how such chips are started."""
    if choice is None or choice.option is None or standing.cluster is None:
        return ()
    nodes = replace(standing.cluster, num_accelerators=choice.num_accelerators)
    try:
        return launch_snippets(choice.option, nodes)
    except SpecError:
        return ()


def settings_of(standing: Standing, choice: Choice | None) -> tuple[Setting, ...]:
    """Settings of the runtime with a measured or documented reason on this machine."""
    if choice is None or choice.option is None or standing.cluster is None:
        return ()
    nodes = replace(standing.cluster, num_accelerators=choice.num_accelerators)
    held = nodes.accelerator.memory_bytes
    share = None if held is None else choice.option.memory_bytes / held
    try:
        return runtime_settings(nodes, choice.option.strategy, memory_share=share)
    except SpecError:
        return ()
