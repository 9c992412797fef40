"""Cold commands against importing the libraries they rest on: CPU seconds of whole processes, as ratios.

    python benchmarks/commands.py [--repetitions 5] [--only NAME ...]

Each repetition starts one process after the other: first the imports alone (numpy, polars, scipy.optimize,
scipy.stats, typer, rich), then every command; the table has medians, so that load on the machine and its
speed fall out of the ratios. User and system seconds, of a command and the processes it waits for; one
thread. A first round, which writes Python's bytecode, is not counted.
docs/experiments/0033-cold-commands.md has the figures.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

IMPORTS = ("-c", "import numpy, polars, scipy.optimize, scipy.stats, typer, rich")
H200 = ("--accelerator", "h200-sxm5-141gb")
H100 = ("--accelerator", "h100-sxm5-80gb")
MORE = ("--accelerator", "b200-sxm-180gb", "--accelerator", "mi300x")
# Name, arguments, and the ratio to reach; {out} is a file that the command writes.
COMMANDS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("advise", ("advise", "llama2_70b_lora", *H200), 0.7),
    ("advise, four systems", ("advise", "llama2_70b_lora", *H200, *H100, *MORE), 0.8),
    ("plan, dense model", ("plan", "llama2_70b_lora", *H200, "--at", "64"), 0.4),
    ("plan, GPT-3", ("plan", "gpt3", *H100, "--at", "512"), 0.6),
    ("plan, DeepSeek-V3", ("plan", "deepseekv3_671b", *H100, "--at", "2048", "--tokens", "1T"), 0.9),
    ("report", ("report", "--out", "{out}"), 2.0),
    ("predict", ("predict", "--workload", "llama2_70b_lora", *H200, "--at", "8,64,512"), 0.45),
    ("scores", ("scores", "--round", "v4.1"), 0.4),
    ("topology", ("topology",), 0.25),
    ("help", ("--help",), 0.1),
)


def cpu_s(arguments: tuple[str, ...]) -> float:
    """User and system seconds of a process and of those it waited for. Raises where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    )
    error = process.stderr.read() if process.stderr else b""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {error.decode()}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Time the commands in turn and print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=[name for name, _, _ in COMMANDS])
    options = parser.parse_args()
    chosen = [each for each in COMMANDS if options.only is None or each[0] in options.only]
    with TemporaryDirectory() as folder:
        out = str(Path(folder) / "report.html")
        named = {"imports": IMPORTS}
        for name, arguments, _ in chosen:
            named[name] = ("-m", "equipoise", *(each.format(out=out) for each in arguments))
        for arguments in named.values():
            cpu_s(arguments)
        rounds = [{name: cpu_s(each) for name, each in named.items()} for _ in range(options.repetitions)]
    alone = median(each["imports"] for each in rounds)
    print(f"Importing alone: {alone:.2f} s of the core, median of {options.repetitions}.\n")
    print("| command | ratio to importing | to reach |\n|---|---|---|")
    for name, arguments, to_reach in chosen:
        ratio = median(each[name] for each in rounds) / alone
        print(f"| {name}: `{' '.join(arguments).format(out='FILE')}` | {ratio:.2f} | {to_reach:g} |")


if __name__ == "__main__":
    main()
