"""How to run a strategy: commands, training code, settings, and files of what starts it and what trains."""

from equipoise.launch.commands import (
    PROGRAMS,
    Snippet,
    bench_command,
    bench_method,
    launch_files,
    launch_snippets,
    program,
    ranks_per_host,
    write_launch_files,
)
from equipoise.launch.program import Translation
from equipoise.launch.settings import Setting, runtime_settings

__all__ = [
    "PROGRAMS",
    "Setting",
    "Snippet",
    "Translation",
    "bench_command",
    "bench_method",
    "launch_files",
    "launch_snippets",
    "program",
    "ranks_per_host",
    "runtime_settings",
    "write_launch_files",
]
