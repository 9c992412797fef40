"""Pieces of text to run or paste: as files under a header of what they cannot express, and of `bench`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from textwrap import wrap

from msgspec import Struct

from equipoise.bench.trial import PRECISIONS
from equipoise.errors import UsageError
from equipoise.spec.strategy import Strategy

_COLUMNS = 100
# What every reader of the file passes over, in formats that have no comments.
_JSON_HEADER = "equipoise"


class Snippet(Struct, frozen=True, kw_only=True):
    """What to run or paste.

    target: the program it is for. code: empty where the target cannot run the strategy at all. why: what it
    does, and where that is documented. language: bash, python, yaml or json. file: the name under which it is
    written; empty where it is no file of its own. unsupported: what the strategy has and the target cannot
    express. checked_with: the program, or the table of its rules, that accepted such text in the tests; empty
    where nothing did.
    """

    title: str
    target: str
    code: str
    why: str
    language: str = "bash"
    file: str = ""
    unsupported: tuple[str, ...] = ()
    checked_with: str = ""


def launch_files(strategy: Strategy, snippets: Sequence[Snippet]) -> dict[str, str]:
    """Text by name of every snippet that is a file, under its strategy and what it cannot express."""
    return {each.file: _with_header(each, strategy) for each in snippets if each.file and each.code}


def write_launch_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder, which is made where it is missing; all of them, or none.

    Raises UsageError where they cannot be written.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            written.append(folder / name)
            written[-1].write_text(text, encoding="utf-8")
    except OSError as err:
        for each in written:
            each.unlink(missing_ok=True)
        raise UsageError(f"{folder}: cannot be written ({err.strerror}); name another folder") from err


def _with_header(snippet: Snippet, strategy: Strategy) -> str:
    if snippet.language == "json":
        about = {"strategy": strategy.text(), "not_expressed": list(snippet.unsupported)}
        return json.dumps({_JSON_HEADER: about, **json.loads(snippet.code)}, indent=2) + "\n"
    lines = [f"Strategy: {strategy.text()}", snippet.why]
    if snippet.unsupported:
        lines += [f"{snippet.target} cannot express:", *(f"- {each}" for each in snippet.unsupported)]
    comment = "".join(
        f"# {part}\n" for line in lines for part in wrap(_printable(line), _COLUMNS, break_long_words=False)
    )
    first, _, rest = snippet.code.partition("\n")
    if first.startswith("#!"):
        return f"{first}\n{comment}{rest}"
    shebang = "#!/bin/bash\n" if snippet.language == "bash" else ""
    return f"{shebang}{comment}\n{snippet.code}"


def _printable(line: str) -> str:
    """One line whatever names it has: nothing in it ends a comment."""
    return "".join(char if char.isprintable() else " " for char in line)


def bench_command(
    strategy: Strategy, workload: str, *, num_accelerators: int | None = None, out: str | None = None
) -> Snippet:
    """The command that times a strategy's steps, with its micro-batch, accumulation and precision.

    workload: a model of the zoo or module:function. num_accelerators: ranks to time it on, each with the work
    it has in the strategy; as many as the strategy takes unless given. out: the folder that keeps the sweep.
    No command where the model itself is cut: `bench` has the data axis alone.
    """
    size = strategy.num_accelerators if num_accelerators is None else num_accelerators
    cut = [axis for axis in ("tp", "pp", "cp", "ep") if getattr(strategy, axis) > 1]
    missing = [f"{axis}={getattr(strategy, axis)}: bench supports data parallelism only" for axis in cut]
    if cut:
        return _snippet("", tuple(missing))
    method, unmet = _method(strategy, size)
    precision = strategy.precision if strategy.precision in PRECISIONS else "bf16"
    # `bench` counts the samples of one pass over all ranks; `accumulate:K` makes K passes an update.
    parts = [
        f"equipoise bench {quote(workload)}",
        f"--sizes {size}",
        f"--batch {size * strategy.microbatch_samples}",
        f"--strategy {method}",
        f"--precision {precision}",
        *(() if out is None else (f"--out {quote(out)}",)),
    ]
    return _snippet(" ".join(parts) + "\n", (*unmet, *_unmet(strategy)))


def bench_method(strategy: Strategy) -> str | None:
    """The way to train of `bench` that does what a strategy does; None where none does."""
    if any(getattr(strategy, axis) > 1 for axis in ("tp", "pp", "cp", "ep")):
        return None
    method, unmet = _method(strategy, strategy.num_accelerators)
    return None if unmet else method


def _snippet(code: str, unsupported: tuple[str, ...]) -> Snippet:
    return Snippet(
        title="Time its steps",
        target="equipoise bench",
        file="bench.sh" if code else "",
        code=code,
        why="Micro-batch, accumulation and precision of the strategy. `equipoise record --runs runs` then "
        "compares it with the prediction, which --record and --launch keep.",
        unsupported=unsupported,
        checked_with="equipoise's own parser" if code else "",
    )


def _method(strategy: Strategy, size: int) -> tuple[str, tuple[str, ...]]:
    """The way to train of `bench`, and what of the exchange it leaves out."""
    accumulated = strategy.num_microbatches
    waits = f"accumulation of {accumulated} micro-batches: "
    if size == 1:
        return "single", ((waits + "every micro-batch is an update",) if accumulated > 1 else ())
    compressed = {
        "fp16": "fp16",
        "powersgd": f"powersgd:{max(1, strategy.compression_rank)}",
        "topk": f"topk:{1 / max(1, strategy.compression_rank):g}",
    }
    special = None
    if strategy.shards_weights:
        special = "fsdp"
    elif strategy.sync_period > 1:
        special = f"localsgd:{strategy.sync_period}"
    elif strategy.compression != "none":
        special = compressed[strategy.compression]
    if special is not None:
        unmet = (f"{waits}{special} exchanges after every one",) if accumulated > 1 else ()
        return special, unmet
    return ("ddp" if accumulated == 1 else f"accumulate:{accumulated}"), ()


def _unmet(strategy: Strategy) -> tuple[str, ...]:
    missing = []
    if strategy.precision not in PRECISIONS:
        missing.append(f"{strategy.precision}: it computes in fp32, tf32 or bf16; bf16 is printed")
    if strategy.zero_stage in {1, 2} and strategy.dp > 1:
        missing.append(f"ZeRO stage {strategy.zero_stage}: each rank keeps complete states")
    if strategy.dp_replicate > 1:
        missing.append(f"dp_replicate={strategy.dp_replicate}: fsdp shards over all ranks")
    if strategy.implementation == "compiled":
        missing.append("compilation: models run eagerly; compile in your own module:function")
    if strategy.recompute != "none":
        missing.append(f"{strategy.recompute} recomputation: use checkpoint in your own module:function")
    if strategy.optimizer != "sgd":
        missing.append(f"{strategy.optimizer}: the optimizer of the workload updates the weights")
    if not strategy.master_weights:
        missing.append("weights without a master copy: convert the model in your own module:function")
    if strategy.offload != "none" or strategy.activation_offload:
        what = "activations" if strategy.offload == "none" else strategy.offload.replace("_", " ")
        missing.append(f"offloading of {what} to the host's memory")
    if strategy.trained != "full":
        missing.append(f"{strategy.trained} adapters: make them in your own module:function")
    return tuple(missing)
