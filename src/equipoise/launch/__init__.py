"""How to run a strategy: commands, training code, settings, and files for launchers and training programs."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import join, quote
from textwrap import wrap
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import replace

from equipoise.bench.training import ZOO
from equipoise.bench.trial import PRECISIONS
from equipoise.errors import SpecError, UsageError
from equipoise.files import shipped_table, written
from equipoise.launch.program import PROGRAMS, Program, Translation, code_facts, strategy_facts
from equipoise.launch.settings import Setting, runtime_settings
from equipoise.launch.text import filled, holds, joined, yaml_scalar
from equipoise.spec.cluster import LARGEST_HOST, Cluster
from equipoise.spec.hardware import Accelerator
from equipoise.spec.strategy import PRIORS_ONLY, Strategy
from equipoise.spec.strategy import software as software_named
from equipoise.spec.workload import Workload

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

_TABLE = shipped_table(Path(__file__).with_name("platforms.toml"))
_RESOURCES = convert(_TABLE["resources"], dict[str, str])
SKYPILOT_NAMES = convert(_TABLE["skypilot_names"], dict[str, str])
_PORT = 29500


class Launch(Struct, frozen=True, kw_only=True):
    """Processes to start: `ranks_per_host` on each of `num_hosts` hosts with one kind of accelerator.

    host_size: accelerators per host. name: of the job. words: the script and its options, as arguments of
    torchrun. takes_more: whether the user adds options for the model and its data. joins_group: whether the
    script joins a process group even if it is the only process. is_spot: whether machines may be reclaimed.
    variables: environment variables, as names and values.
    """

    name: str
    num_hosts: int
    ranks_per_host: int
    host_size: int
    accelerator: Accelerator
    words: tuple[str, ...]
    takes_more: bool = False
    joins_group: bool = False
    is_spot: bool = False
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def job_name(self) -> str:
        """The name in the form that Kubernetes accepts: lower case, digits and hyphens, at most 40."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40].strip("-")
        return plain if plain[:1].isalpha() else f"train-{plain}".strip("-")

    @property
    def arguments(self) -> str:
        """Script and options, quoted for a shell, with one option per line."""
        lines: list[list[str]] = [[]]
        for word in self.words:
            if word.startswith("--"):
                lines.append([])
            lines[-1].append(word)
        return " \\\n    ".join(map(join, lines))

    @property
    def open_arguments(self) -> str:
        """Script and options, followed by a placeholder if the user must add options."""
        return self.arguments + (' \\\n    "$@"' if self.takes_more else "")

    @property
    def facts(self) -> dict[str, Any]:
        """The variables available to templates."""
        chip = self.accelerator
        is_gpu = chip.kind == "gpu"  # otherwise each rank has a processor
        is_script = self.words[0].endswith(".py")
        return {
            "job": self.job_name,
            "yaml_job": yaml_scalar(self.job_name),
            "hosts": self.num_hosts,
            "ranks": self.ranks_per_host,
            "whole": self.ranks_per_host == self.host_size,
            "all_ranks": self.num_hosts * self.ranks_per_host,
            "unlaunched": self.num_hosts == self.ranks_per_host == 1 and is_script and not self.joins_group,
            "port": _PORT,
            "gpu": is_gpu,
            "vendor": chip.vendor,
            "title": chip.title,
            "resource": _RESOURCES.get(chip.vendor, "") if is_gpu else "",
            "skypilot_name": SKYPILOT_NAMES.get(chip.slug, ""),
            "takes_more": self.takes_more,
            "is_spot": self.is_spot,
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


_COLUMNS = 100
# Key of the header in JSON, which has no comments; readers of the file ignore it.
_JSON_HEADER = "equipoise"


class Snippet(Struct, frozen=True, kw_only=True):
    """Code to run or paste.

    target: the program it is for. code: empty if the target cannot run the strategy. why: what it does, and
    where that is documented. language: bash, python, yaml or json. file: the name of its file; empty if it is
    not written to a file. unsupported: parts of the strategy that the target cannot express. checked_with:
    the program, or the table of its rules, that accepts such text in the tests; empty if none does.
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
    """Contents by name of every snippet that is a file, headed by the strategy and unsupported parts."""
    return {each.file: _with_header(each, strategy) for each in snippets if each.file and each.code}


def write_launch_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder, which is created if missing; either all of them, or none.

    Raises UsageError if they cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as all_files:  # files get their final names once all are complete
            for name, text in files.items():
                file = all_files.enter_context(written(folder / name))
                file.write(text.encode())
                file.flush()
    except OSError as err:
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
    """The line without control characters, so that names in it cannot end a comment."""
    return "".join(char if char.isprintable() else " " for char in line)


def bench_command(
    strategy: Strategy, workload: str, *, num_accelerators: int | None = None, out: str | None = None
) -> Snippet:
    """The command that times a strategy's steps, with its micro-batch, accumulation and precision.

    workload: a model of the zoo or module:function. num_accelerators: ranks to time it on, each with the same
    work as in the strategy; by default as many as in the strategy. out: the folder for the sweep.
    Without code if the model is sharded, because `bench` only has the data axis.
    """
    size = strategy.num_accelerators if num_accelerators is None else num_accelerators
    method, drops_accumulation = _method(strategy, size)
    facts = {
        **strategy_facts(strategy),
        "workload": quote(workload),
        "size": size,
        # `bench` counts the samples of one pass over all ranks; `accumulate:K` makes K passes per update.
        "batch": size * strategy.microbatch_samples,
        "method": method,
        "drops_accumulation": drops_accumulation,
        "computed_precision": strategy.precision if strategy.precision in PRECISIONS else "bf16",
        "out": "" if out is None else f" --out {quote(out)}",
    }
    found = filled("bench", facts)
    return Snippet(
        title="Time its steps",
        target="equipoise bench",
        file="" if found.refused else "bench.sh",
        code="" if found.refused else found.text,
        why="Micro-batch, accumulation and precision of the strategy. `equipoise record --runs runs` then "
        "compares it with the prediction, which --record and --launch keep.",
        unsupported=found.refused or found.unsupported,
        checked_with="" if found.refused else "equipoise's own parser",
    )


def bench_method(strategy: Strategy) -> str | None:
    """The method of `bench` that implements a strategy; None if there is none."""
    if any(getattr(strategy, axis) > 1 for axis in ("tp", "pp", "cp", "ep")):
        return None
    method, drops_accumulation = _method(strategy, strategy.num_accelerators)
    return None if drops_accumulation else method


def _method(strategy: Strategy, size: int) -> tuple[str, bool]:
    """The method of `bench`, and whether it lacks the accumulation over several micro-batches."""
    accumulated = strategy.num_microbatches
    fraction = 1 / max(1, strategy.compression_rank)
    compressed = {
        "fp16": "fp16",
        "powersgd": f"powersgd:{max(1, strategy.compression_rank)}",
        "topk": f"topk:{fraction:g}",
    }
    if size == 1:
        method = "single"
    elif strategy.shards_weights:
        method = "fsdp"
    elif strategy.sync_period > 1:
        method = f"localsgd:{strategy.sync_period}"
    elif strategy.compression != "none":
        method = compressed[strategy.compression]
    else:
        return ("ddp" if accumulated == 1 else f"accumulate:{accumulated}"), False
    return method, accumulated > 1


# Accelerators per host in domains larger than a host, such as NVL72.
_HOST_SIZE_IN_DOMAIN = 4
_SCRIPT = "train.py"
# Software names that mean plain torch, which the scripts use.
_OF_PLAIN_TORCH = ("fsdp", "ngc", PRIORS_ONLY)


# By kind: the conditions of each snippet, its template, and its other fields.
SNIPPETS = {
    kind: tuple(
        (each.get("when", ""), each["template"], convert({"code": "", **each}, Snippet)) for each in stated
    )
    for kind, stated in shipped_table(Path(__file__).with_name("snippets.toml")).items()
}


def _fitting(kind: str, facts: Mapping[str, object]) -> Iterator[Snippet]:
    """The snippets of a kind whose conditions hold."""
    for when, template, snippet in SNIPPETS[kind]:
        if all(holds(each, facts) for each in when.split()):
            found = filled(template, facts)
            yield replace(
                snippet,
                title=joined(snippet.title, facts),
                code=found.text,
                why=joined(snippet.why, facts),
                unsupported=found.unsupported,
            )


def launch_snippets(
    strategy: Strategy,
    cluster: Cluster,
    *,
    workload: Workload | None = None,
    settings: tuple[Setting, ...] | None = None,
    software: str | None = None,
    is_asked_for: bool = False,
    is_spot: bool = False,
) -> tuple[Snippet, ...]:
    """The snippets for a strategy: the command first, then environment and code, then the rest.

    cluster: the machine to run on, with all its accelerators. workload: the trained workload, for options
    that depend on its layers and experts. settings: settings whose variables are exported; by default those
    of `runtime_settings` for the cluster. software: the software that the strategy is planned for, whose
    program is preferred. is_asked_for: whether the user named the software; then its program is started even
    if a script of plain torch could train the strategy. is_spot: whether machines may be reclaimed.
    Raises SpecError for accelerators that torch's launcher does not support (TPUs, IPUs).
    """
    chip = cluster.accelerator
    if not chip.is_started:
        raise SpecError(
            f"accelerator {chip.slug!r} is a {chip.kind} of {chip.vendor}: commands are known for processors "
            "and GPUs that torch calls cuda, which its own launcher starts; see its vendor's guide"
        )
    model = None if workload is None else workload.transformer
    each = 1 if workload is None else workload.samples_per_example
    pairs = tuple(_example_caveats(each))
    strategy = replace(  # programs count examples
        strategy,
        microbatch_samples=max(1, strategy.microbatch_samples // each),
        global_batch_samples=max(1, strategy.global_batch_samples // each),
    )
    programs = [
        (each, each.translate(strategy, model))
        for each in PROGRAMS
        if workload is None or model is not None or not each.is_for_transformers
    ]
    facts = code_facts(strategy, workload)
    code = tuple(_with_unsupported(each, pairs) for each in _fitting("script", facts))
    started = _program_to_start(programs, software, is_asked_for=is_asked_for, has_script=bool(code))
    words: tuple[str, ...] = (_SCRIPT,)
    asked = software if is_asked_for else None
    lacks = _script_caveats(asked, is_written=bool(code))
    if started is not None:
        code, (words, lacks) = (), _program_words(*started, asked)
    found = runtime_settings(cluster, strategy) if settings is None else settings
    launch = Launch(
        name="train" if workload is None else workload.slug,
        num_hosts=strategy.num_accelerators // ranks_per_host(cluster, strategy),
        ranks_per_host=ranks_per_host(cluster, strategy),
        host_size=_host_size(cluster),
        accelerator=chip,
        words=words,
        takes_more=started is not None,
        joins_group=bool(code) and not facts["alone"],
        is_spot=is_spot,
        variables=tuple(
            (each.name, each.value)
            for each in found
            if each.is_variable and each.value is not None and not each.is_for_first_run
        ),
    )
    lacks = (*lacks, *_host_caveats(launch, cluster))
    first, *others = (
        replace(each, unsupported=(*lacks, *each.unsupported)) for each in _fitting("platform", launch.facts)
    )
    return (
        first,
        *_environment(found),
        *code,
        *_fitting("addition", facts),
        *_timing(strategy, "" if workload is None else workload.slug),
        *others,
        *(_with_unsupported(_program(each, translation), pairs) for each, translation in programs),
    )


def _program_to_start(
    programs: Sequence[tuple[Program, Translation]],
    software: str | None,
    *,
    is_asked_for: bool,
    has_script: bool,
) -> tuple[Program, Translation] | None:
    """The program to start, and its options; None if a script is started.

    If the user named a software, its program. Otherwise, if no script of plain torch trains the strategy, the
    program (not a library) of the software, else the one with the fewest unsupported parts.
    software, is_asked_for: as in `launch_snippets`. has_script: whether a script trains the strategy.
    """
    able = [(each, found) for each, found in programs if each.entry and found.options]
    named = [(each, found) for each, found in able if software in each.software]
    if is_asked_for and named:
        return named[0]
    whole = [(each, found) for each, found in able if not has_script and not each.is_library]
    return min(
        whole, key=lambda one: (software not in one[0].software, len(one[1].unsupported)), default=None
    )


def _program_words(
    program: Program, found: Translation, asked: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What torchrun starts for a program, and caveats. asked: software that the user named."""
    lacks = [f"{program.name}: {each}" for each in found.unsupported]
    if asked is not None and asked not in program.software:
        lacks.insert(0, f"{software_named(asked).title}: {program.name} is started")
    if program.is_library:
        lacks.insert(0, f"{_SCRIPT}, which is yours to write: it gives {program.file} to {program.name}")
        return program.entry, tuple(lacks)
    return (*program.entry, *found.words), tuple(lacks)


def _script_caveats(asked: str | None, *, is_written: bool) -> tuple[str, ...]:
    """Caveats of the script that is started. asked: software that the user named."""
    if not is_written:
        return (f"{_SCRIPT}, which is yours to write: no script here trains this strategy",)
    if asked is None or asked in _OF_PLAIN_TORCH:
        return ()
    return (f"{software_named(asked).title}: {_SCRIPT} here uses plain torch",)


def program(name: str) -> Program:
    """The program with a name. Raises SpecError, listing the known names, for an unknown one."""
    for each in PROGRAMS:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in PROGRAMS)
    raise SpecError(f"program {name!r} is not known; expected one of {known}")


def ranks_per_host(cluster: Cluster, strategy: Strategy) -> int:
    """Ranks per host: the number of its accelerators, or the most that divides the ranks equally."""
    count = strategy.num_accelerators
    return max(ranks for ranks in range(1, min(_host_size(cluster), count) + 1) if count % ranks == 0)


def _host_size(cluster: Cluster) -> int:
    return cluster.node_size if cluster.node_size <= LARGEST_HOST else _HOST_SIZE_IN_DOMAIN


def _host_caveats(launch: Launch, cluster: Cluster) -> Iterator[str]:
    """Why more hosts are started than the accelerators need, if so."""
    count, size = launch.num_hosts * launch.ranks_per_host, _host_size(cluster)
    fewest = -(-count // size)
    if launch.num_hosts > fewest:
        yield (
            f"{count} accelerators on {fewest} hosts of {size}, with fewer on the last: it starts the same "
            f"number on each, {launch.ranks_per_host} on {launch.num_hosts} hosts"
        )


def _example_caveats(samples_per_example: int) -> Iterator[str]:
    """What programs that train on single samples lack for examples of several samples."""
    if samples_per_example > 1:
        yield (
            "preference pairs: their loss is code, such as TRL's DPOTrainer; micro-batch and batch are "
            f"written in pairs, {samples_per_example} samples each"
        )


def _with_unsupported(snippet: Snippet, lacks: tuple[str, ...]) -> Snippet:
    return replace(snippet, unsupported=(*snippet.unsupported, *lacks)) if lacks else snippet


def _environment(settings: tuple[Setting, ...]) -> tuple[Snippet, ...]:
    exports = [
        f"export {each.name}={quote(each.value)}{'  # for the first run only' * each.is_for_first_run}\n"
        for each in settings
        if each.is_variable and each.value is not None
    ]
    if not exports:
        return ()
    why = "The settings list the reason for each and how to check it; no other setting is recommended."
    return (
        Snippet(title="Environment", target="shell", code="".join(exports), why=why, file="environment.sh"),
    )


def _timing(strategy: Strategy, name: str) -> Iterator[Snippet]:
    """The command that times the strategy, if `bench` can train a workload of that name."""
    if ":" in name or any(each.name == name for each in ZOO):
        found = bench_command(strategy, name, out="runs")
        if found.code:
            yield found


def _program(program: Program, found: Translation) -> Snippet:
    """A translation as a snippet, whose title says how much of the strategy it expresses."""
    if not found.options:
        title = f"Not possible in {program.name}"
    elif found.unsupported:
        title = f"The closest in {program.name}"
    else:
        title = f"The same strategy in {program.name}"
    return Snippet(
        title=title,
        target=program.name,
        code=program.text(found),
        why=f"{program.use} ({program.source}).",
        language="bash" if program.form == "options" else program.form,
        file=program.file if found.options else "",
        unsupported=found.unsupported,
        checked_with=program.checked_with if found.options else "",
    )
