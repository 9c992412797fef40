"""Fuzz every reader, guided by the branches it takes, for a bounded time: `make fuzz`.

Each target runs in a process of its own under a cap on memory; an input may take so many seconds. What is
found is written to tests/findings, where the tests read it from then on.
"""

import argparse
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FINDINGS = HERE.parent / "tests" / "findings"
# Inputs that took branches of their own, kept for the next run, in folders of targets.
KEPT = HERE / "corpus.tar.xz"
MOST_KEPT_BYTES = 1 << 14
# Readers take a tenth of it; what asks for more must be refused before.
MEMORY_BYTES = 6 * 2**30
INPUT_S = 10
# Of the changes, those that put a value of another type in place of one.
RETYPED_FRACTION = 0.3
MAX_INPUT_BYTES = 1 << 16


def _child(name: str, seconds: int, corpus: Path) -> None:
    """Fuzz one target in this process; never returns."""
    import atheris  # noqa: PLC0415 - only here

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path.insert(0, str(HERE))
    with atheris.instrument_imports(include=["equipoise"]):
        from targets import TARGETS  # noqa: PLC0415 - instrumented as it loads
    from value_types import retyped  # noqa: PLC0415 - beside this file

    def mutated(data: bytes, most_bytes: int, seed: int) -> bytes:
        """Bytes changed, or a value of JSON or TOML of another type."""
        drawn = random.Random(seed)  # noqa: S311 - the same for everybody
        changed = retyped(data, drawn) if drawn.random() < RETYPED_FRACTION else data
        return changed if data != changed and len(changed) <= most_bytes else atheris.Mutate(data, most_bytes)

    target = next(each for each in TARGETS if each.name == name)
    FINDINGS.mkdir(exist_ok=True)
    target.survives(b"")  # what is loaded on first use takes no input's seconds
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed[:MAX_INPUT_BYTES])
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_S}",
        f"-max_len={MAX_INPUT_BYTES}",
        "-rss_limit_mb=3000",
        f"-artifact_prefix={FINDINGS}/{name}-",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.survives, custom_mutator=mutated)
    atheris.Fuzz()


def _keep(corpus: Path) -> None:
    """Write the corpus to the archive: its smaller inputs, in order, without time or owner."""
    with tarfile.open(KEPT, "w:xz") as archive:
        for path in sorted(path for path in corpus.glob("*/*") if path.stat().st_size <= MOST_KEPT_BYTES):
            member = tarfile.TarInfo(path.relative_to(corpus).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(member, file)


def main() -> int:
    """Fuzz the targets named, or all; 1 where something was found."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("targets", nargs="*", help="which; all unless given")
    asked.add_argument("--seconds", type=int, default=20, help="for each target")
    asked.add_argument("--child", help=argparse.SUPPRESS)
    asked.add_argument("--corpus", type=Path, help="begin from its folders, one per target, and keep inputs")
    asked.add_argument("--keep", action="store_true", help=f"write what was found useful to {KEPT.name}")
    given = asked.parse_args()
    if given.child:
        _child(given.child, given.seconds, given.corpus)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = given.corpus or Path(scratch)
        with tarfile.open(KEPT) as archive:
            archive.extractall(corpus, filter="data")
        found = _fuzzed(given.targets, given.seconds, corpus)
        if given.keep:
            _keep(corpus)
    if found:
        print(f"Found: {', '.join(found)}. The inputs are in {FINDINGS.name}/: mend the reader, keep them.")
    return 1 if found else 0


def _fuzzed(asked: list[str], seconds: int, corpus: Path) -> list[str]:
    """Fuzz the targets asked for, or all, a process each; the names of those where something was found."""
    sys.path.insert(0, str(HERE))
    from targets import TARGETS  # noqa: PLC0415 - not where a child loads it instrumented

    names = asked or [each.name for each in TARGETS]
    found = []
    slow = {each.name for each in TARGETS if each.is_slow}
    for name in names:
        if name in slow:
            # Not Python: there are no branches to be guided by.
            done = subprocess.run(
                [sys.executable, str(HERE / f"{name}.py"), "--seconds", str(seconds)], check=False
            )
            found += [name] if done.returncode else []
            continue
        (corpus / name).mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, "--child", name, "--corpus", str(corpus / name)]
        done = subprocess.run(
            [*command, "--seconds", str(seconds)], capture_output=True, text=True, check=False
        )
        told = done.stderr + done.stdout
        runs = next(
            (line.split()[-1] for line in told.splitlines() if "number_of_executed_units" in line), "?"
        )
        covered = next(
            (line.split("cov: ")[1].split()[0] for line in reversed(told.splitlines()) if "cov: " in line),
            "?",
        )
        verdict = "ok" if done.returncode == 0 else "FOUND"
        print(f"{name:<16} {runs:>9} inputs  {covered:>6} branches  {verdict}", flush=True)
        if done.returncode:
            found.append(name)
            print("\n".join(told.splitlines()[-25:]), flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
