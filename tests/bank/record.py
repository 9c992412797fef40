"""Ask every question of the bank and store the answers.

    python tests/bank/record.py --write                    into answers.jsonl.zst, which tests hold
    python tests/bank/record.py --write --only lora-h200   the same, these answers alone replaced
    python tests/bank/record.py --out some.zst --only lora-h200 --only bert-a100

A record is a zstandard-compressed file of JSON lines: a header, then an answer per question, by theme.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zstandard
from questions import BANK, ROOT, ask, asking_folder, questions, write_sweep_tables

ANSWERS = BANK / "answers.jsonl.zst"
LEVEL = 19
LIMIT_BYTES = 3_000_000


def read(path: Path) -> tuple[dict, dict[str, dict]]:
    """The header of a record, and its answers by name."""
    lines = zstandard.ZstdDecompressor().decompress(path.read_bytes()).decode().split("\n")
    header, *answers = map(json.loads, lines)
    return header, {each["name"]: each for each in answers}


def write(path: Path, header: dict, answers: list[dict]) -> None:
    """Write a record."""
    lines = (json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in (header, *answers))
    path.write_bytes(zstandard.ZstdCompressor(level=LEVEL).compress("\n".join(lines).encode()))


def _commit() -> str:
    """The last commit that changed the code which answers."""
    command = ["git", "log", "-1", "--format=%H", "--", "src"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write answers.jsonl.zst")
    parser.add_argument("--out", type=Path, help="write another file")
    parser.add_argument("--only", action="append", metavar="NAME", help="ask this question; may be repeated")
    parser.add_argument("--workers", type=int, default=2, help="questions asked at once")
    options = parser.parse_args()
    if options.write == (options.out is not None):
        parser.error("give --write or --out FILE")
    unknown = set(options.only or ()) - {each.name for each in questions()}
    if unknown:
        parser.error(f"no question is named {', '.join(sorted(unknown))}")
    return options


def main() -> None:
    """Record what the options ask for."""
    options = _options()
    asked = [each for each in questions() if not options.only or each.name in options.only]
    kept = read(ANSWERS)[1] if options.write and options.only else {}
    begun = time.monotonic()
    with asking_folder() as folder, ThreadPoolExecutor(options.workers) as workers:
        write_sweep_tables(folder)
        for answer in workers.map(lambda each: ask(each, folder), asked):
            kept[answer["name"]] = answer
            print(f"{answer['exit_code']:>3}  {answer['name']}", file=sys.stderr)
    answers = [kept[each.name] for each in questions() if each.name in kept]
    path = ANSWERS if options.write else options.out
    header = {"commit": _commit(), "num_questions": len(answers)}
    write(path, header, answers)
    took_s = time.monotonic() - begun
    print(f"{len(answers)} answers, {path.stat().st_size:,} bytes in {path}, {took_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
