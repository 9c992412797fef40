"""The workload of a question: its model, the weights trained, and the length of its samples."""

from typing import Final

from msgspec.structs import replace

from equipoise.decide.question.query import TrainingQuery
from equipoise.errors import UsageError
from equipoise.spec.strategy import METHODS, TRAINED, USUAL_LORA_RANK, Method, Trained
from equipoise.spec.workload import Rollout, Workload
from equipoise.units import format_count, format_si

# QLoRA pages optimizer states to the host if memory is short (Dettmers et al. 2023, section 3).
QLORA_OFFLOAD: Final = ("none", "optimizer")
# Default global batch of a fine-tuning, in samples, by the workload's area. Language: sequences of Stanford
# Alpaca (Taori et al. 2023, table of hyperparameters of its repository); direct preference optimisation has
# 64 pairs of two (Rafailov et al. 2023, appendix B), the same number. Vision: images of the Vision
# Transformer (Dosovitskiy et al. 2021, section 4.1). Speech: clips of Whisper's usual recipe (Gandhi 2022,
# "Fine-Tune Whisper for Multilingual ASR with Transformers"; recalled). Generation: images in the examples of
# diffusers, with adapters (examples/dreambooth/README_flux.md, README_sdxl.md: 4 micro-batches of 1) and with
# all weights (examples/text_to_image/README.md: the same).
_LANGUAGE: Final = "language"
_GENERATION: Final = "generation"
USUAL_FINE_TUNING_BATCH: Final = {_LANGUAGE: 128, "vision": 512, "speech": 16, _GENERATION: 4}
# Default completions per step of reinforcement learning: 32 prompts of 16 (DeepSeek-R1, arXiv:2501.12948,
# 2025; as NeMo RL's examples/configs/grpo_math_1B.yaml).
USUAL_ROLLOUT_BATCH: Final = 512
USUAL_PROMPT_TOKENS: Final = 256
# Time of a step of reinforcement learning over the modelled time of its generation and training, and the log
# standard deviation: median and spread of ten published steps (tests/truth/rollouts.toml,
# docs/experiments/0031).
ROLLOUT_TIME_PER_STEP_TIME: Final = 2.49
ROLLOUT_LOG_SD: Final = 0.43
_PER_PAIR: Final = 2
_WIDENED_WORDS: Final = "the interval is widened by an assumed factor of two"


def requested_workload(query: TrainingQuery, about: Workload) -> Workload:
    """The workload with the samples, trained weights and training method stated by a question.

    For preference optimisation, each sequence also runs forward through the original model (Rafailov et al.
    2023, equation 7). With adapters that is the frozen model itself; with all weights trained, a second copy.
    Raises UsageError if the workload's model cannot be trained so.
    """
    about = _on_images(query.image_side_pixels, about)
    trained, method = trained_part(query), next((each for each in METHODS if each in query.train), None)
    # Training all weights is the unchanged workload if it trains them anyway, transformer or not.
    is_as_it_is = trained is None or trained == about.trained == "full"
    if query.sequence_tokens is None and is_as_it_is and method is None:
        return about
    is_of_figures = about.transformer is None or about.sequence_tokens is None
    if is_of_figures and query.sequence_tokens is None and method is None and trained is not None:
        return _with_adapters_on_figures(about, trained)
    if about.transformer is None or is_of_figures:
        has_length = query.sequence_tokens is not None
        option = f"--sequence {query.sequence_tokens}" if has_length else f"--train {','.join(query.train)}"
        left = "its samples keep their size" if has_length else "all weights are trained"
        raise UsageError(
            f"{option}: {about.title} is described by figures per sample, not as a transformer; leave it "
            f"out, and {left}"
        )
    positions, is_causal = about.transformer.position_embeddings, about.transformer.causal
    if query.sequence_tokens is not None:
        if 0 < positions < query.sequence_tokens:
            raise UsageError(
                f"--sequence {query.sequence_tokens}: {about.title} has {positions:,} position embeddings; "
                "give at most that"
            )
        about = with_sequence_length(about, query.sequence_tokens)
    if trained is not None:
        about = _with_trained_part(about, trained)
    if method is not None:
        if about.area != "language":
            raise UsageError(
                f"--train {method}: {about.title} is not a language model; {method} needs answers in text"
            )
        if not is_causal:
            raise UsageError(
                f"--train {method}: {about.title} has an encoder, in which tokens attend to later ones; "
                f"{method} is described for decoders alone"
            )
        about = replace(
            about,
            frozen_share=_FORWARD_PASSES[method],
            frozen_params=about.params if about.trained == "full" else None,
            samples_per_example=_PER_PAIR if method == "dpo" else 1,
        )
    return _with_rollout(query, about) if method == "grpo" else about


def _on_images(side_pixels: int | None, about: Workload) -> Workload:
    """The workload on images of another side length. Raises UsageError if no scaling with pixels is known."""
    if side_pixels is None:
        return about
    if about.image is None:
        raise UsageError(
            f"--image-size {side_pixels}: how the work per sample of {about.title} grows with pixels is not "
            "known; leave it out"
        )
    return about.on_images(about.image.of_side(side_pixels))


def with_sequence_length(about: Workload, sequence_tokens: int) -> Workload:
    """The workload on samples of another length; for text, its published batch keeps its number of tokens.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, sections 4.2 and 4.3: 15,360 sequences of 4,096 tokens, then
    1,920 of 32,768 and 480 of 131,072.
    """
    batch = about.usual_batch_samples
    if batch is not None and about.sequence_tokens is not None and about.area == _LANGUAGE:
        batch = max(1, round(batch * about.sequence_tokens / sequence_tokens))
    return replace(about, sequence_tokens=sequence_tokens, usual_batch_samples=batch)


def _with_trained_part(about: Workload, trained: Trained) -> Workload:
    """The workload of a transformer with all weights or adapters trained; adapters are placed on all linear
    layers if there is no attention.

    Raises UsageError if it has no layers for adapters.
    """
    rank = None if trained == "full" else about.lora_rank or USUAL_LORA_RANK
    found = replace(_without_benchmark(about, trained), trained=trained, lora_rank=rank)
    if found.trained_params == 0:
        found = replace(found, lora_targets="all_linear")
    if found.trained_params == 0:
        raise UsageError(
            f"--train {trained}: {about.title} has no layers that adapters can be placed on",
            give=[{"train": "full"}],
        )
    return found


def _without_benchmark(about: Workload, trained: Trained) -> Workload:
    """The workload without its benchmark rounds, if the benchmark trains other weights."""
    return about if trained == about.trained else replace(about, first_round=None, last_round=None)


def _with_adapters_on_figures(about: Workload, trained: Trained) -> Workload:
    """The workload of a model known only by figures per sample, with another trained part.

    Raises UsageError if its attention, or for 4 bits its linear layers, is not known.
    """
    other = _without_benchmark(about, trained)
    if trained == "full":
        return replace(other, trained=trained, lora_rank=None)
    found = replace(other, trained=trained, lora_rank=about.lora_rank or USUAL_LORA_RANK)
    if found.trained_params is not None:
        return found
    if about.adapter_width is None:
        raise UsageError(
            f"--train {trained}: adapters are placed on attention layers, and {about.title} states none; "
            "leave it out to train all weights, or state adapter_width with --workloads"
        )
    raise UsageError(
        f"--train {trained}: only linear layers can have 4-bit weights, and {about.title} has other layers",
        give=[{"train": "lora"}],
    )


# Additional forward passes of a sequence: through the reference model and, for GRPO, through the policy that
# generated the completions (Shao et al. 2024, arXiv:2402.03300, algorithm 1).
_FORWARD_PASSES: Final[dict[Method, float]] = {"dpo": 1.0, "grpo": 2.0}


def _with_rollout(query: TrainingQuery, about: Workload) -> Workload:
    """The workload on generated completions: samples have the mean length; --sequence limits the longest."""
    assert query.completion_tokens is not None
    prompt, completion = query.prompt_tokens or USUAL_PROMPT_TOKENS, query.completion_tokens
    most = prompt + 2 * completion if query.sequence_tokens is None else query.sequence_tokens
    if most < prompt + completion:
        raise UsageError(
            f"--sequence {most}: a prompt of {prompt} and a completion of {completion} tokens are longer; "
            "state the length at which prompt and completion together are cut"
        )
    return replace(
        about,
        sequence_tokens=prompt + completion,
        rollout=Rollout(
            group_size=query.num_in_group,
            prompt_tokens=prompt,
            completion_tokens=completion,
            most_completion_tokens=most - prompt,
        ),
    )


def rollout_words(made: Rollout) -> str:
    """Words for what a step generates: lengths and groups, as stated or by default."""
    longest = format_count(made.prompt_tokens + made.most_completion_tokens)
    lengths = (
        f"{format_count(made.completion_tokens)} tokens per {format_count(made.prompt_tokens)}-token prompt"
    )
    options = "--group, --completion, --prompt, --sequence"
    return f"{made.group_size} completions of {lengths}, cut at {longest} in all ({options})"


def trained_part(query: TrainingQuery) -> Trained | None:
    """The weights that a question trains; None if it leaves that to the workload."""
    return next((each for each in TRAINED if each in query.train), None)


def not_validated(about: Workload) -> tuple[str, ...]:
    """Words for the parts of a training that were not validated against published or measured times."""
    found = []
    if about.rollout is not None:
        found.append(
            "A step of reinforcement learning is modelled as generation, two forward passes and training in "
            f"sequence, times {ROLLOUT_TIME_PER_STEP_TIME}: ten published steps (NeMo RL 0.4, H100) took "
            "that many times as long (1.5 to 5.5), because weights are transferred, samples padded and "
            "rewards awaited. The strategy is for verl, OpenRLHF, NeMo RL or TRL; no script is written for "
            "them."
        )
    elif about.transformer is None and about.trained != "full":
        found.append(
            "No published times of adapters on image models are in the data: the backward pass through "
            f"frozen weights is counted without weight gradients, and {_WIDENED_WORDS}."
        )
    elif about.frozen_share:
        found.append(
            "No published times of training with a frozen model alongside are in the data: its forward pass "
            f"is counted as {about.frozen_share:.2g} times that of the trained one, and {_WIDENED_WORDS}."
        )
    return tuple(found)


def samples_of_examples(query: TrainingQuery, about: Workload) -> float:
    """The samples in the stated passes over a data set.

    Raises UsageError for epochs over a data set of unknown size, or over less than one example.
    """
    examples = query.training_examples or about.dataset_samples
    if examples is None:
        raise UsageError(
            f"--epochs: the size of a data set for {about.title} is not known; give --examples N"
        )
    epochs = query.num_epochs or 1.0
    if examples * epochs < 1.0:
        few = f"{format_count(examples)} example{'s' * (examples != 1)}"
        raise UsageError(f"--epochs {epochs:g} over {few} trains on less than 1 example: give more of either")
    each = about.rollout.group_size if about.rollout else about.samples_per_example
    return examples * epochs * each


def examples_words(query: TrainingQuery, about: Workload, samples: float) -> str:
    """Words for passes over a data set, as in "the time to ..."."""
    count = samples * (about.budget_tokens or 1)
    unit = "tokens" if about.budget_tokens else about.samples
    amount = f"{format_si(count)} {unit.removesuffix('s') if count == 1 else unit}"
    epochs = query.num_epochs or 1.0
    what = "preference pair" if "dpo" in query.train else "prompt" if about.rollout else "example"
    examples = query.training_examples or about.dataset_samples or 0
    passes = f"{epochs:g} epoch{'' if epochs == 1 else 's'}"
    return f"train {passes} on {format_count(examples)} {what}{'s' * (examples != 1)} ({amount})"


def usual_fine_tuning_batch(query: TrainingQuery, about: Workload) -> int | None:
    """The default global batch of a fine-tuning; None for any other training.

    Passes over examples mean a fine-tuning for a language model. For other models they usually state a
    training from scratch, so a fine-tuning has to be asked for by `--train`.
    """
    if about.rollout is not None:
        group = about.rollout.group_size
        return max(1, USUAL_ROLLOUT_BATCH // group) * group
    if about.area == _LANGUAGE:
        is_fine_tuning = about.trained != "full" or "dpo" in query.train or query.counts_examples
    elif about.area == _GENERATION:
        is_fine_tuning = about.trained != "full" or bool(query.train and query.counts_examples)
    else:
        is_fine_tuning = bool(query.train)
    return USUAL_FINE_TUNING_BATCH.get(about.area) if is_fine_tuning else None
