"""How to run a strategy: commands, training code, settings, and files of what starts it and what trains."""

from equipoise.launch.commands import launch_snippets, ranks_per_host
from equipoise.launch.files import Snippet, launch_files, write_launch_files
from equipoise.launch.program import Translation
from equipoise.launch.programs import PROGRAMS, program
from equipoise.launch.settings import Setting, runtime_settings
from equipoise.launch.timing import bench_command, bench_method

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
