"""The training of a question, the same for all systems: workload, budget, batch and strategy choices."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration import EvidenceSource
from equipoise.calibration.forecasts import published_growth
from equipoise.calibration.profiles import architecture
from equipoise.decide.question.fine_tuning import (
    QLORA_OFFLOAD,
    examples_words,
    not_validated,
    requested_workload,
    rollout_words,
    samples_of_examples,
    usual_fine_tuning_batch,
    with_sequence_length,
)
from equipoise.decide.question.query import TrainingQuery
from equipoise.errors import EvidenceError, UsageError
from equipoise.intervals import DEVIATE
from equipoise.scaling.convergence import BatchGrowth
from equipoise.scaling.laws import FloatArray
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.mlperf import ScoredEntry, Scores
from equipoise.spec.strategy import FLAGS, LORA_TARGETS, USUAL_LORA_RANK, Value, read_option
from equipoise.spec.workload import Workload
from equipoise.units import TRILLION, format_amount, format_count, format_percent, format_si

_MAX_VALUES = 10_000
_NEXT_PARAMETER: Final = re.compile(r"[,\s]\s*(?=\w+\s*=)")
_GROWTH_CACHE_SIZE: Final = 32
_MAX_EVALUATION_SHARE: Final = 0.9


def parameter_choices(
    fixed: Sequence[str], *, precision: Sequence[str] = ()
) -> Mapping[str, tuple[Value, ...]]:
    """The values allowed for strategy parameters, by field of `Strategy`.

    fixed: texts such as `tp=8`, `zero_stage=2..3`, `recompute=none,full`, or several in one: `tp=8,pp=2`, and
    `dp=8 zero_stage=3` as answers print strategies.
    Raises SpecError for an unknown parameter or value, UsageError for one given twice.
    """
    texts = [(part, "--fix") for text in fixed for part in _NEXT_PARAMETER.split(text.strip())]
    if precision:
        texts.append((f"precision={','.join(precision)}", "--precision"))
    found: dict[str, tuple[Value, ...]] = {}
    for text, option in texts:
        name, values = _values(text, option)
        if name in found and option != "--fix":
            raise UsageError(f"{option} and --fix {name} are both given; keep one")
        if name in found:
            raise UsageError(f"--fix {name} is given twice; list its values with commas")
        if name == "global_batch_samples":
            why = ": a training has one batch" if len(values) > 1 else ""
            raise UsageError(f"--fix {text}{why}", give=[{"global-batch": str(values[0])}])
        found[name] = values
    return found


def _values(text: str, option: str) -> tuple[str, tuple[Value, ...]]:
    """The field and the values in one text. option: that contains it, for error messages."""
    name, equals, listed = text.partition("=")
    values: list[Value] = []
    field = name.strip()
    for item in listed.split(",") if equals else [""]:
        first, dots, last = item.strip().partition("..")
        stated = f"{name.strip()}={first}" if equals else text
        field, value = read_option(stated, where=option)
        values.append(value)
        if dots:
            _, end = read_option(f"{name.strip()}={last}", where=option)
            values.extend(_numbers_up_to(text, field, value, end))
    return field, tuple(dict.fromkeys(values))


def _numbers_up_to(text: str, field: str, first: Value, last: Value) -> range:
    """The whole numbers after the first, up to the last."""
    if isinstance(first, str) or isinstance(last, str) or field in FLAGS or last < first:
        raise UsageError(f"--fix {text!r}: expected two numbers around '..', the smaller first")
    if last - first > _MAX_VALUES:
        raise UsageError(f"--fix {text!r}: expected at most {_MAX_VALUES:,} values")
    return range(int(first) + 1, int(last) + 1)


TRAINING_ALONE = "The time covers training steps only; start-up, which MLPerf counts, comes on top."


class SamplesByBatch(Struct, frozen=True, kw_only=True):
    """Samples that a training needs, by global batch: least * (1 + batch / critical).

    critical: infinite if they do not depend on the batch. spread: pairs (log batch, log standard deviation of
    the samples), interpolated linearly; empty if the samples are stated.
    """

    least: float
    critical: float = math.inf
    spread: tuple[tuple[float, float], ...] = ()

    def __call__(self, batch: FloatArray) -> FloatArray:
        """Samples at each global batch."""
        return np.asarray(self.least * (1 + batch / self.critical))

    def log_sd(self, batch: float) -> float:
        """Log standard deviation of the samples at a global batch."""
        if not self.spread:
            return 0.0
        batches, log_sds = np.array(self.spread).T
        return float(np.interp(math.log(batch), batches, log_sds))


class TrainingBudget(Struct, frozen=True, kw_only=True):
    """The number of samples in a training. work: what the time is for, as in "the time to ...".

    samples: by global batch; None if results state only times, so that only published times apply. batches:
    smallest and largest global batch for which it is known; None if samples do not depend on the batch.
    is_to_target: whether it is the published target. evaluation_share: share of evaluation in published
    times. missing: what would provide unknown samples.
    """

    work: str
    samples: SamplesByBatch | None
    batches: tuple[int, int] | None
    is_to_target: bool
    evaluation_share: float = 0.0
    evidence: tuple[EvidenceSource, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def time_per_step_time(self) -> float:
        """Time of the whole training over that of its steps, from the share of evaluation."""
        return 1.0 / (1.0 - self.evaluation_share)

    def log_sd(self, global_batch_samples: float) -> float:
        """Log standard deviation of the samples at a batch."""
        return 0.0 if self.samples is None else self.samples.log_sd(global_batch_samples)

    def samples_at(self, global_batch_samples: int) -> float | None:
        """Samples of the training at a batch; None if unknown."""
        if self.samples is None:
            return None
        return float(self.samples(np.array([float(global_batch_samples)]))[0])

    @property
    def stated_samples(self) -> float | None:
        """Samples of a training with a stated amount; None for a target, or if unknown."""
        return None if self.is_to_target else self.samples_at(1)


def training_budget(query: TrainingQuery, workload: Workload, scores: Scores | None) -> TrainingBudget:
    """The training budget of a question.

    scores: published results of all rounds; None if there are none to use.
    Raises UsageError if no target, samples or tokens state how much to train.
    """
    notes = not_validated(workload) if query.changes_workload or workload.frozen_share else ()
    if query.counts_examples:
        samples = samples_of_examples(query, workload)
        words = examples_words(query, workload, samples)
        return replace(fixed_budget(workload, samples), work=words, notes=notes)
    stated = _stated_samples(query, workload)
    if stated is not None:
        in_samples = query.training_samples is not None
        return replace(fixed_budget(workload, stated, in_samples=in_samples), notes=notes)
    if scores is None or not scores.of(workload.slug):
        if workload.reference_runs and not query.changes_workload:
            return _budget_by_reference(workload)
        unit = "tokens" if workload.budget_tokens else workload.samples
        of_data = {"examples": "10000", "epochs": "3"}
        ways = [{"tokens": "1e12"}, {"samples": "1e6"}] if workload.budget_tokens else [{"samples": "1e6"}]
        why = "no published result gives a target"
        if query.changes_workload and query.workload is not None:
            why = "published targets apply only to a benchmark's own model and samples"
        raise UsageError(
            f"how many {unit} {workload.title} is trained on is not stated, and {why}",
            give=[of_data, *ways] if query.train or not workload.budget_tokens else ways,
        )
    try:
        growth, evidence = _batch_growth(scores, workload.slug)
    except EvidenceError as err:
        option = "--tokens or --samples" if workload.budget_tokens else "--samples"
        unknown = f"many samples the target takes is not known ({str(err).removesuffix('.')})"
        return TrainingBudget(
            work=target_words(workload),
            samples=None,
            batches=None,
            is_to_target=True,
            notes=(f"How {unknown}: the model compares strategies and sizes, but gives no time.",),
            missing=(f"{option} for another training budget: how {unknown}",),
        )
    return _budget_by_results(workload, growth, evidence, _evaluation_share(scores.of(workload.slug)))


def _evaluation_share(entries: Sequence[ScoredEntry]) -> float:
    """The share of evaluation in published times: the median over entries that state it."""
    shares = [each.eval_s / each.score_s for each in entries if each.eval_s is not None]
    return min(median(shares), _MAX_EVALUATION_SHARE) if shares else 0.0


def fixed_budget(workload: Workload, samples: float, *, in_samples: bool = False) -> TrainingBudget:
    """A budget of this many samples at any batch. in_samples: whether it was stated in samples."""
    tokens = None if in_samples else workload.sequence_tokens
    unit = f"{'token' if tokens else 'sample'}{'s' * (samples * (tokens or 1) != 1)}"
    amount = f"{format_si(samples * (tokens or 1))} {unit}"
    return TrainingBudget(
        work=f"train on {amount}",
        samples=SamplesByBatch(least=samples),
        batches=None,
        is_to_target=False,
    )


def target_words(workload: Workload) -> str:
    """The work of a training to the published target, as in "the time to ..."."""
    return f"reach the MLPerf target{f' ({workload.target})' if workload.target else ''}"


def _stated_samples(query: TrainingQuery, workload: Workload) -> float | None:
    if query.training_tokens is None:
        return query.training_samples
    if workload.sequence_tokens is None:
        unknown = f"--tokens: samples of {workload.title} are not counted in tokens"
        raise UsageError(unknown, give=[{"samples": "1e6"}])
    if query.training_tokens < workload.sequence_tokens:
        raise UsageError(
            f"--tokens {query.training_tokens:g} is less than one sample of {workload.title}, "
            f"{format_count(workload.sequence_tokens)} tokens: give more, or a shorter --sequence"
        )
    return query.training_tokens / workload.sequence_tokens


@lru_cache(maxsize=_GROWTH_CACHE_SIZE)
def _batch_growth(scores: Scores, workload: str) -> tuple[BatchGrowth, tuple[EvidenceSource, ...]]:
    """The growth of a workload's samples with the batch, and the results it is fitted to, with their shares.

    Cached, since it depends only on published results and takes as long as the rest of an answer.
    """
    growth = published_growth(scores.of(workload))
    return growth, _sources_of(growth)


def _budget_by_results(
    workload: Workload, growth: BatchGrowth, evidence: tuple[EvidenceSource, ...], evaluation_share: float
) -> TrainingBudget:
    """The budget by the fitted law of samples against batch, with its spread over the observed batches."""
    least, critical = growth.samples_min.value, growth.batch_critical.value
    curve = growth.curve
    batches = np.log([each.global_batch_samples for each in curve]).tolist()
    spread = tuple(
        zip(batches, np.log([each.high / each.low for each in curve]) / (2 * DEVIATE), strict=True)
    )
    seen = growth.batches
    formula = f"{format_amount(least)} (1 + B / {format_amount(critical)})"
    law = (
        f"Samples to the target grow with the global batch B: {formula}, from "
        f"{len(seen)} results of {growth.num_rounds} rounds at batches of {min(seen):,} to {max(seen):,}."
    )
    return TrainingBudget(
        work=target_words(workload),
        samples=SamplesByBatch(least=least, critical=critical, spread=spread),
        batches=(min(seen), max(seen)),
        is_to_target=True,
        evaluation_share=evaluation_share,
        evidence=evidence,
        notes=(law, *_clock_notes(evaluation_share)),
    )


# Log standard deviation of submissions about the reference runs of their batch: 1.48 times the median
# absolute deviation of 490 submissions of MLPerf Training v1.0 to v5.1 (all whose points are in samples)
# about the reference points of mlperf-logging 4.1.68.
_ABOUT_REFERENCE_LOG_SD: Final = 0.076
_MIN_SAMPLES_FRACTION: Final = 1e-3


def _budget_by_reference(workload: Workload) -> TrainingBudget:
    """The budget by a benchmark's reference runs: a line through their means, of least relative squares.

    Constant if only one batch was run, or larger ones took no more samples.
    Source: McCandlish et al. 2018, arXiv 1812.06162: samples grow linearly with the batch.
    """
    batches, samples = (
        np.array([getattr(each, name) for each in workload.reference_runs], dtype=float)
        for name in ("global_batch_samples", "samples_to_target")
    )
    ends = int(batches.min()), int(batches.max())
    slope, least = np.polyfit(batches, samples, 1, w=1.0 / samples) if ends[0] < ends[1] else (0.0, 0.0)
    if slope <= 0.0:
        least, critical = float(np.exp(np.log(samples).mean())), math.inf
        grown = f"are {format_amount(least)} at every global batch"
    else:
        if least <= 0.0:  # growth faster than proportional to the batch is taken as proportional
            slope, least = np.mean(samples / batches), _MIN_SAMPLES_FRACTION * samples.min()
        least, critical = float(least), float(least / slope)
        grown = f"grow with the global batch B: {format_amount(least)} (1 + B / {format_amount(critical)})"
    law = (
        f"Samples to the target {grown}, by the benchmark's reference runs at batches of {ends[0]:,} to "
        f"{ends[1]:,}; the data have no submitted result."
    )
    return TrainingBudget(
        work=target_words(workload),
        samples=SamplesByBatch(
            least=least, critical=critical, spread=((math.log(ends[0]), _ABOUT_REFERENCE_LOG_SD),)
        ),
        batches=ends,
        is_to_target=True,
        notes=(law, *_clock_notes(0.0)),
    )


def _clock_notes(evaluation_share: float) -> tuple[str, ...]:
    """Notes on what MLPerf's clock counts and the model's time includes or not."""
    rounded = round(evaluation_share, 2)
    if not rounded:
        return (TRAINING_ALONE,)
    of_times = f"Evaluation takes {format_percent(rounded)} of published times (median)"
    return (f"{of_times}; the model's times include the same share.", TRAINING_ALONE)


def _sources_of(growth: BatchGrowth) -> tuple[EvidenceSource, ...]:
    """The results to which the samples are fitted, with their shares of the weight, in descending order."""
    shares = growth.weight / growth.weight.sum()
    heaviest_first = np.argsort(-shares, kind="stable")
    return tuple(
        EvidenceSource(
            kind="published",
            ref=each.entry_id,
            num_accelerators=each.num_accelerators,
            time_s=each.score_s,
            share=float(share),
            source_uri=each.source_uri,
            source_line=each.source_line,
        )
        for each, share in ((growth.entries[place], shares[place]) for place in heaviest_first)
    )


_MI: Final = 2**20
# Usual batches of pretraining runs of language models in tokens, by the smallest number of parameters: 4 Mi
# as for all sizes of LLaMA and Llama 2, the smallest with 6.7 G parameters (Touvron et al. 2023, both
# papers); for smaller models as for GPT-3 of these sizes (Brown et al. 2020, table 2.1).
_USUAL_BATCH_TOKENS: Final = ((6.7e9, 4 * _MI), (1.3e9, _MI), (0.0, _MI // 2))
# Batches of large models grow with the square root of the tokens that they are trained on, nearly as the
# critical batch does (Zhang et al. 2024, arXiv:2410.21676: exponent 0.47). These are (smallest number of
# parameters, batch at 1 T tokens). Published batches in Mi, and in brackets those that result: dense models
# Llama 2 70B 4 (5), Falcon 180B 4 (7), Skywork 16 (7), Olmo 3 32B 8 (9), Nemotron-4 15B 4.5 and 340B 9 (11),
# Phi-4 22 (12), Llama 3.1 405B and Apertus 70B 16 (15), DeepSeek 67B 18 (5); mixtures of experts DeepSeek-V2
# 36 (45), DeepSeek-V3 60 (61), Kimi K2 64 (62), Trinity 128 (65): data/pretrainings.toml,
# spec/workloads.toml.
_LARGE_DENSE: Final = (13e9, 4 * _MI)
_LARGE_MIXTURE: Final = (100e9, 16 * _MI)
_GROWTH_REFERENCE_TOKENS: Final = TRILLION
# Batches of small models grow up to this: of 16 models of 0.1 to 6.7 G on 1 to 11 T tokens in
# data/pretrainings.toml, 7 had 2 Mi and the others 2.25 to 8; those on 0.1 to 0.6 T had 0.1 to 2. In eighths
# of Mi, so that more tokens mean more steps.
_MAX_SMALL_MODEL_TOKENS: Final = 2 * _MI
_SMALL_STEP_TOKENS: Final = _MI // 8
# A default batch leaves a training at least this many steps: no published result has fewer than 86 (MLPerf
# Training, Llama 2 70B with adapters, batches of 128 on 1,024 accelerators).
FEWEST_STEPS: Final = 64
# The largest micro-batch tried for examples of several samples.
_MAX_MICROBATCH: Final = 1024


class Training(Struct, frozen=True, kw_only=True):
    """A training. name: as asked. budget: its amount of work.

    global_batch_samples: stated by the user or by the user's own model, or a default whose reason is in
    batch_words; None if the samples to the target decide. states_batch: whether the user stated it.
    choices: allowed values of strategy parameters. states_offload: whether the question states those of
    `offload`, which are otherwise extended if memory is short.
    chosen_for_you: choices made where the question left them open, in words. counts_examples: whether the
    amount was stated in examples, as for a fine-tuning.
    """

    name: str
    workload: Workload
    budget: TrainingBudget
    global_batch_samples: int | None
    batch_words: str | None
    states_batch: bool
    choices: Mapping[str, tuple[Value, ...]]
    states_offload: bool
    chosen_for_you: tuple[str, ...]
    counts_examples: bool

    @property
    def fixed_batch_samples(self) -> int | None:
        """The global batch stated by the user or the user's own model; None for a default batch."""
        return None if self.batch_words is not None else self.global_batch_samples

    @property
    def stated_flop(self) -> float | None:
        """FLOP of the whole training if its amount is stated; None for a target, or if unknown."""
        per_sample = self.workload.train_flop_per_sample
        samples = self.budget.stated_samples
        return None if per_sample is None or samples is None else per_sample * samples

    @property
    def is_fine_tuning(self) -> bool:
        """Whether adapters are trained, or the amount is stated in examples."""
        return self.counts_examples or self.workload.trained != "full"

    @property
    def is_pretraining(self) -> bool:
        """Whether a language model is trained in full on a stated amount of text, not of examples."""
        return is_pretraining(
            self.workload, is_to_target=self.budget.is_to_target, counts_examples=self.counts_examples
        )


def training(query: TrainingQuery, catalogue: Catalogue, scores: Scores | None) -> Training:
    """The training of a question: of a catalogue workload, or of the model that `module:function` returns.

    The batch of the user's own model is kept at every size (another batch is another training), unless the
    question states one. Raises SpecError with the nearest names or the reason why the model cannot be
    counted, UsageError if the question states no training budget or a batch that exceeds it.
    """
    chosen: list[str] = []
    batch = query.global_batch_samples
    if ":" in query.workload:
        from equipoise.spec.torch_model import count_function  # noqa: PLC0415 - only for the user's own model

        counted = count_function(query.workload)
        known = counted.workload(query.workload, query.workload)
        if batch is None:
            batch = counted.num_samples
    elif query.config is None:
        known = catalogue.workload(query.workload)
    else:
        known = _named_as_in_catalogue(_workload_of_config(query, chosen), catalogue.workloads())
    about = requested_workload(query, known) if query.changes_workload else known
    chosen += _assumed_samples(query, about)
    is_another = about != known or query.config is not None
    budget = training_budget(query, about, None if is_another else scores)
    words = None
    if batch is not None:
        if batch % about.samples_per_example:
            raise UsageError(
                f"--global-batch {batch}: an example has {about.samples_per_example} samples; give a "
                f"multiple of {about.samples_per_example}"
            )
        _refuse_batch_beyond(batch, budget)
    elif not budget.is_to_target:
        # Another image size does not change the number of images in a batch.
        is_of_other_images = query.image_side_pixels is not None and query.config is None
        has_batches = is_of_other_images or not is_another
        batch, words = _chosen_batch(query, about, budget, scores if has_batches else None)
    if query.train and "trained" in parameter_choices(query.fixed):
        raise UsageError("--train and --fix trained both state which weights are trained; keep one")
    # A stated amount counts computed tokens; published trainings are known to skip padding.
    computed = about if budget.is_to_target else replace(about, unpadded_tokens=None)
    return Training(
        name=query.workload or about.title,
        workload=computed,
        budget=budget,
        global_batch_samples=batch,
        batch_words=words,
        states_batch=query.global_batch_samples is not None,
        choices=_choices(query, about),
        states_offload=_states_offload(query),
        chosen_for_you=tuple(chosen),
        counts_examples=query.counts_examples,
    )


def _assumed_samples(query: TrainingQuery, about: Workload) -> Iterator[str]:
    """The size of samples assumed where the question does not state it, in words."""
    if about.rollout is not None:
        yield rollout_words(about.rollout)
    elif query.config is not None:
        return
    elif query.counts_examples and query.sequence_tokens is None and _is_text(about):
        tokens = format_count(about.sequence_tokens or 0)
        yield f"{tokens} tokens per example, the model's own (--sequence for another number)"
    elif query.training_examples is not None and query.image_side_pixels is None and about.image is not None:
        size = f"{about.image.width:,} x {about.image.height:,} pixels"
        yield f"examples of {size}, the workload's own (--image-size for another side)"


# Strategy parameters that state which weights are trained.
OF_ADAPTERS: Final = frozenset({"trained", "lora_rank", "lora_targets"})


def unrestricted(restricted: Training, query: TrainingQuery, *, frees_batch: bool) -> Training | None:
    """The training without the restrictions of `--fix` and `--precision`, as in published results.

    frees_batch: whether to remove a stated batch too. None if nothing is restricted, or if the restriction
    includes the weights trained.
    """
    frees_batch = frees_batch and restricted.states_batch
    if not (query.fixed or query.precision or frees_batch):
        return None
    if OF_ADAPTERS & set(parameter_choices(query.fixed)):
        return None
    choices = _choices(replace(query, fixed=(), precision=()), restricted.workload)
    free = replace(restricted, choices=choices, states_offload=False)
    return replace(free, global_batch_samples=None, states_batch=False) if frees_batch else free


def with_strategy(known: Training, query: TrainingQuery) -> Training:
    """The same training with the strategy restrictions of another question."""
    return replace(known, choices=_choices(query, known.workload), states_offload=_states_offload(query))


def _states_offload(query: TrainingQuery) -> bool:
    """Whether a question states the offload, even if as by default."""
    return "offload" in query.fixed_names


def _choices(query: TrainingQuery, about: Workload) -> Mapping[str, tuple[Value, ...]]:
    """The allowed values of strategy parameters."""
    chosen = dict(parameter_choices(query.fixed, precision=query.precision))
    return _with_schedules(_with_workload_choices(chosen, about), about)


def _workload_of_config(query: TrainingQuery, chosen: list[str]) -> Workload:
    """The workload of a config.json; assumptions and omissions are appended to `chosen`."""
    from equipoise.spec.hub_config import read_config  # noqa: PLC0415 - only where a file is given

    assert query.config is not None
    found = read_config(query.config)
    # Generated samples are as long as prompts and completions.
    if query.sequence_tokens is None and found.workload.area == "language" and "grpo" not in query.train:
        tokens = format_count(found.workload.sequence_tokens or 0)
        chosen.append(f"samples of {tokens} tokens (--sequence for another number)")
    if query.sequence_tokens is None and query.image_side_pixels is None and found.of_samples:
        other = "" if found.workload.image is None else " (--image-size for another side)"
        chosen.append(f"samples are {found.of_samples}{other}")
    if found.left_out:
        left_out = ", ".join(found.left_out)
        chosen.append(f"parts of {query.config.name} that the model does not cover are left out: {left_out}")
    if found.assumed:
        chosen.append(found.assumed)
    return found.workload


def _named_as_in_catalogue(model: Workload, known: Iterable[Workload]) -> Workload:
    """The model of a config.json, with name and published batch of the same model in the catalogue if any.

    Published trainings and the user's runs, which are found by name, then apply to it too.
    Assumes that models with equal dimensions are the same.
    """
    shape, length = model.transformer, model.sequence_tokens
    same = (
        each
        for each in known
        if each.trained == "full" and (each.area, each.transformer) == (model.area, shape)
    )
    found = next(same, None)
    if found is None or shape is None or length is None:
        return model
    alike = with_sequence_length(found, length)
    if alike.usual_batch_samples is None or model.usual_batch_samples is not None:
        return replace(model, slug=found.slug)
    batch, source = alike.usual_batch_samples, alike.usual_batch_source
    return replace(model, slug=found.slug, usual_batch_samples=batch, usual_batch_source=source)


def _chosen_batch(
    query: TrainingQuery, about: Workload, budget: TrainingBudget, scores: Scores | None
) -> tuple[int | None, str | None]:
    """The default global batch for a stated training budget, and its reason; (None, None) if there is none.

    For a fine-tuning, the usual one; else the median of published ones, or that of the model's paper or size.
    Lowered if needed to leave at least FEWEST_STEPS steps, then to a power of two of examples or groups,
    which many sizes can divide.
    """
    usual, words = usual_fine_tuning_batch(query, about), "usual for fine-tuning"
    is_own = usual is not None and (query.changes_workload or about.trained == "full")
    published = None if is_own else _published_batch(about, budget, scores)
    if published is not None:
        usual, words = published
    elif usual is None and (known := _usual_batch(about, budget.stated_samples)) is not None:
        usual, words = known
    samples = None if usual is None else budget.samples_at(usual)
    if usual is None or samples is None:
        return None, None
    together = about.samples_per_example if about.rollout is None else about.rollout.group_size
    most = int(samples / FEWEST_STEPS) // together
    if usual <= max(1, most) * together:
        return usual, words
    if not most:
        return together, f"the smallest, for a training of fewer than {FEWEST_STEPS} steps"
    return (1 << (most.bit_length() - 1)) * together, f"small enough for at least {FEWEST_STEPS} steps"


def batch_words(
    asked: Training,
    global_batch_samples: int | None,
    *,
    is_published: bool = False,
    is_of_runs: bool = False,
) -> Iterator[str]:
    """Words on why a candidate's batch was chosen; for a stated one, that it may have been meant in tokens.

    is_published: whether it is that of the best published result of the candidate's system and size.
    is_of_runs: whether it is that of the user's runs at this size, which then decide.
    """
    if global_batch_samples is None:
        return
    if asked.states_batch:
        yield from _maybe_tokens(asked, global_batch_samples)
        return
    usual, words = asked.global_batch_samples, asked.batch_words
    if usual is None and asked.budget.batches is None and not is_published:
        usual, words = _usual_batch(asked.workload) or (None, None)
    if is_of_runs:
        words = "that of the fastest of your runs"
    elif usual is not None and words is None:
        words = f"the batch that {asked.name} returns, kept at every size"
    elif usual is None:
        words = "that of the best published result" if is_published else "fastest, extra samples included"
    elif usual != global_batch_samples:
        way = "raised" if global_batch_samples > usual else "lowered"
        words = f"{way} from {format_count(usual)}, {words}, to train faster"
    yield f"global batch {format_count(global_batch_samples)}: {words} (--global-batch for another)"


# Papers state batches in tokens: a batch this many times the usual one was probably meant in tokens.
_LIKELY_TOKENS_RATIO = 64


def _maybe_tokens(asked: Training, stated: int) -> Iterator[str]:
    """Words with the tokens in a stated batch of text, if it is so large that tokens may have been meant."""
    about = asked.workload
    known = _usual_batch(about, asked.budget.stated_samples)
    if known is None or about.sequence_tokens is None or stated < _LIKELY_TOKENS_RATIO * known[0]:
        return
    yield (
        f"global batch {format_count(stated)}: samples of {about.sequence_tokens:,} tokens, "
        f"{format_si(stated * about.sequence_tokens)} tokens a step (usual: {format_count(known[0])})"
    )


def _is_text(about: Workload) -> bool:
    """Whether a sample is a sequence of known length through a language model."""
    is_model = about.area == "language" and about.transformer is not None
    return is_model and about.sequence_tokens is not None


def is_pretraining(about: Workload, *, is_to_target: bool, counts_examples: bool) -> bool:
    """Whether a language model is trained in full on a stated amount of text, not of examples."""
    return not is_to_target and not counts_examples and has_usual_batch(about)


def has_usual_batch(about: Workload) -> bool:
    """Whether a language model is trained in full, for which usual global batches are known."""
    return _is_text(about) and about.trained == "full"


def usual_batch(about: Workload, trained_samples: float | None = None) -> int:
    """The usual global batch of a training without published samples to target.

    That of the model's paper, or of language models of its size trained on as many tokens.
    trained_samples: of the whole training, if known.

    Raises EvidenceError if there is no usual batch.
    """
    known = _usual_batch(about, trained_samples)
    if known is None:
        raise EvidenceError(
            f"no published result of {about.title} states a global batch",
            missing=("the global batch: --global-batch N",),
        )
    return known[0]


def _usual_batch(about: Workload, trained_samples: float | None = None) -> tuple[int, str] | None:
    """The usual batch and its origin in words; None if there is none."""
    if about.usual_batch_samples is not None:
        return about.usual_batch_samples, f"as published ({about.usual_batch_source})"
    if not has_usual_batch(about) or about.sequence_tokens is None:
        return None
    params = about.params or 0.0
    tokens = next(each for least, each in _USUAL_BATCH_TOKENS if params >= least)
    has_experts = architecture(about) == "mixture of experts"
    least, grown_tokens = _LARGE_MIXTURE if has_experts else _LARGE_DENSE
    growth = math.sqrt((trained_samples or 0.0) * about.sequence_tokens / _GROWTH_REFERENCE_TOKENS)
    if params >= least:
        tokens = max(tokens, int(grown_tokens * growth) // _MI * _MI)
    elif params < _USUAL_BATCH_TOKENS[0][0]:
        grown = int(_MAX_SMALL_MODEL_TOKENS * min(1.0, growth))
        tokens = max(tokens, grown // _SMALL_STEP_TOKENS * _SMALL_STEP_TOKENS)
    return max(1, tokens // about.sequence_tokens), f"the usual {tokens / _MI:.3g} Mi tokens"


def _published_batch(
    about: Workload, budget: TrainingBudget, scores: Scores | None
) -> tuple[int, str] | None:
    """The median global batch of the workload's published results, and its reason; None if none states one.

    For a training longer than the longest published one, the batch grows in proportion, at a constant number
    of steps, up to the usual batch: longer trainings tolerate larger batches, and without a jump in the batch
    more samples never take less time. Beyond that None, since the usual batch is the better guess.
    """
    if scores is None:
        return None
    known = scores.of(about.slug)
    batches = [each.global_batch_samples for each in known if each.global_batch_samples is not None]
    if not batches:
        return None
    middle, words = round(median(batches)), "the median of published batches"
    longest = max((each.samples_to_target or 0 for each in known), default=0)
    if not longest or not has_usual_batch(about) or budget.stated_samples is None:
        return middle, words
    times = budget.stated_samples / longest
    usual = usual_batch(about, budget.stated_samples)
    if times <= 1.0 or usual <= middle:
        return middle, words
    grown = _round_down(middle * times)
    if grown >= usual:
        return None
    return max(middle, grown), f"{words}, scaled up for the longer training"


def _round_down(batch: float) -> int:
    """The largest number up to a batch with at most three significant bits: 32, 40, 48, 56, 64, 80.

    Such a number divides among many numbers of accelerators, and is at least four fifths of the batch.
    """
    whole = int(batch)
    step = 1 << max(0, whole.bit_length() - 3)
    return whole // step * step


def _refuse_batch_beyond(batch: int, budget: TrainingBudget) -> None:
    """Refuse a global batch that exceeds the samples of the whole training."""
    samples = budget.samples_at(batch)
    if samples is not None and batch > samples:
        raise UsageError(
            f"--global-batch {batch:,} exceeds the {math.floor(samples):,} samples of the whole training: "
            "give at most that"
        )


def _with_workload_choices(
    choices: dict[str, tuple[Value, ...]], about: Workload
) -> dict[str, tuple[Value, ...]]:
    """The allowed values, with those that the workload implies for trained part, rank and micro-batches."""
    choices.setdefault("trained", (about.trained,))
    if choices["trained"] != ("full",):
        ranks: tuple[Value, ...] = (about.lora_rank or USUAL_LORA_RANK,)
        if "full" in choices["trained"]:
            ranks = (0, *ranks)
        choices.setdefault("lora_rank", ranks)
        choices.setdefault("lora_targets", (about.lora_targets,))
    _check_targets(choices, about)
    if (each := about.samples_per_example) > 1:  # a micro-batch consists of whole examples
        choices.setdefault("microbatch_samples", tuple(range(each, _MAX_MICROBATCH + 1, each)))
        whole = tuple(size for size in choices["microbatch_samples"] if int(size) % each == 0)
        if not whole:
            raise UsageError(
                f"--fix microbatch={','.join(map(str, choices['microbatch_samples']))}: an example has "
                f"{each} samples, which stay in one micro-batch: give a multiple of {each}"
            )
        choices["microbatch_samples"] = whole
    if choices["trained"] == ("qlora",):
        choices.setdefault("offload", QLORA_OFFLOAD)
    if "powersgd" in choices.get("compression", ()) or "topk" in choices.get("compression", ()):
        choices.setdefault("compression_rank", (0, 1, 2, 4, 8, 16, 32, 100, 1000))
    return choices


def _check_targets(choices: Mapping[str, tuple[Value, ...]], about: Workload) -> None:
    """Refuse several sets of adapted layers, and sets whose adapters are unknown or do not exist."""
    targets, parts = choices.get("lora_targets", ("usual",)), choices["trained"]
    if targets == ("usual",):
        return
    fixed = f"--fix lora_targets={','.join(map(str, targets))}"
    if len(targets) > 1:
        raise UsageError(f"{fixed}: the set with the fewest adapters would always be chosen; state one set")
    if parts not in {("lora",), ("qlora",)}:
        raise UsageError(f"{fixed}: only adapters have target layers; add --train lora or --train qlora")
    (asked,) = (each for each in LORA_TARGETS if each in targets)
    adapted = replace(about, trained="lora", lora_rank=1, lora_targets=asked).trained_params
    if adapted is None:
        raise UsageError(
            f"{fixed}: the widths of these layers are not known for {about.title}, which is described by "
            "figures per sample; leave it out"
        )
    if adapted == 0:
        raise UsageError(f"{fixed}: {about.title} has no such layers; give lora_targets=all_linear")


def _with_schedules(choices: dict[str, tuple[Value, ...]], about: Workload) -> dict[str, tuple[Value, ...]]:
    """The allowed values with the pipeline schedules that overlap expert traffic; the search drops those that
    the software lacks.

    DualPipe itself needs `--fix schedule=dualpipe`: its V variant hides as much with half the weights per
    rank. Not for adapters: software that trains them (Megatron Bridge, torchtune, Hugging Face) has neither.
    """
    has_experts = about.transformer is not None and about.transformer.experts > 1
    if has_experts and choices["trained"] == ("full",):
        choices.setdefault("schedule", ("1f1b", "1f1b_overlap", "dualpipe_v"))
    return choices
