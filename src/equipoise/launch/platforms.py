"""Processes to start: what templates of torchrun, Slurm, Ray, Kubernetes and SkyPilot name of them."""

import re
from pathlib import Path
from shlex import join, quote
from typing import Any

from msgspec import Struct, convert

from equipoise.files import shipped_table
from equipoise.launch.text import yaml_scalar
from equipoise.spec.hardware import Accelerator

_TABLE = shipped_table(Path(__file__).with_name("platforms.toml"))
_RESOURCES = convert(_TABLE["resources"], dict[str, str])
SKYPILOT_NAMES = convert(_TABLE["skypilot_names"], dict[str, str])
_PORT = 29500


class Launch(Struct, frozen=True, kw_only=True):
    """Processes to start: as many a host as it has ranks, on so many hosts of one kind of accelerator.

    host_size: accelerators of a host. name: of the job. words: the script and its options, as torchrun takes
    them. takes_more: whether options of the model and its data follow. variables: of the environment, name
    and value.
    """

    name: str
    num_hosts: int
    ranks_per_host: int
    host_size: int
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
    def facts(self) -> dict[str, Any]:
        """What templates may name."""
        chip = self.accelerator
        is_gpu = chip.kind == "gpu"  # else ranks have a processor each
        is_script = self.words[0].endswith(".py")
        return {
            "job": self.job_name,
            "yaml_job": yaml_scalar(self.job_name),
            "hosts": self.num_hosts,
            "ranks": self.ranks_per_host,
            "whole": self.ranks_per_host == self.host_size,
            "all_ranks": self.num_hosts * self.ranks_per_host,
            "unlaunched": self.num_hosts == self.ranks_per_host == 1 and is_script,
            "port": _PORT,
            "gpu": is_gpu,
            "vendor": chip.vendor,
            "title": chip.title,
            "resource": _RESOURCES.get(chip.vendor, "") if is_gpu else "",
            "skypilot_name": SKYPILOT_NAMES.get(chip.slug, ""),
            "takes_more": self.takes_more,
            "arguments": self.arguments,
            "open_arguments": self.open_arguments,
            "words": [{"yaml": yaml_scalar(word), "python": repr(word)} for word in self.words],
            "variables": [
                {
                    "name": name,
                    "yaml_name": yaml_scalar(name),
                    "python_name": repr(name),
                    "shell": quote(value),
                    "yaml": yaml_scalar(value),
                    "python": repr(value),
                }
                for name, value in self.variables
            ],
        }
