"""How to run a strategy: commands, training code, settings, and options of the programs that train."""

from equipoise.launch.commands import Snippet, bench_command, launch_snippets, ranks_per_host
from equipoise.launch.settings import Setting, runtime_settings
from equipoise.launch.trainer_options import Translation, megatron_options, torchtitan_options

__all__ = [
    "Setting",
    "Snippet",
    "Translation",
    "bench_command",
    "launch_snippets",
    "megatron_options",
    "ranks_per_host",
    "runtime_settings",
    "torchtitan_options",
]
