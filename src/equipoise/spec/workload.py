"""Workloads: models with their data, names, MLPerf scoring rules and logged sample counts.

Facts: workloads.toml.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.files import kept_record
from equipoise.spec import (
    MAX_NAME_CHARS,
    FactBlock,
    PlausibleRange,
    canonical,
    close_names,
    compact,
    is_number,
    read_blocks,
    shown,
    unknown_name,
)
from equipoise.spec.strategy import LoraTargets, Trained, adapted_layers
from equipoise.spec.transformer import Transformer, read_transformer


class MlperfRules(Struct, frozen=True, kw_only=True):
    """MLPerf's scoring rules of a workload; `known` is False if they are not stated and defaults are used."""

    num_runs_required: int
    num_dropped_each_end: int = 1
    max_failed: int = 1
    num_counted: int | None = None
    known: bool = True


UNKNOWN_RULES = MlperfRules(num_runs_required=10, known=False)
_RULES = tuple(name for name in MlperfRules.__struct_fields__ if name != "known")


def _read_rules(block: FactBlock, known: MlperfRules) -> MlperfRules | None:
    """Return the scoring rules in a block, which override an earlier file's; None if it states none."""
    stated = {key: value for key, value in block.fields.items() if key in _RULES}
    if not stated:
        return None
    only = replace(block, fields=stated)
    rules = only.read(MlperfRules, known if known.known else None, given={"known": True}, zero=True)
    counted = rules.num_runs_required if rules.num_counted is None else rules.num_counted
    if counted > rules.num_runs_required or 2 * rules.num_dropped_each_end >= counted:
        raise SpecError(
            f"{block.where}: {rules.num_runs_required} runs, {counted} counted, "
            f"{rules.num_dropped_each_end} dropped at each end; expected at least one run to remain"
        )
    return rules


Per: TypeAlias = Literal["sample", "epoch", "token", "step"]


class Converged(Struct, frozen=True, kw_only=True):
    """One way in which logs state samples to target: a key, its unit, and the conditions of its use.

    counts_from_zero: whether the value is the index of the last unit, counted from 0. starts_at_one: whether
    the value is a position that is 1 at the start of training.
    """

    key: str
    per: Per
    counts_from_zero: bool = False
    starts_at_one: bool = False
    above: float = -math.inf
    below: float = math.inf
    first_round: float = 0.0
    last_round: float = math.inf


class ReferenceRuns(Struct, frozen=True, kw_only=True):
    """Runs of a benchmark's reference code at one global batch, with their mean samples to target."""

    global_batch_samples: int
    samples_to_target: float
    num_runs: int


# Every benchmark since v4.0 must log this; it is used for workloads that are not in the table.
UNKNOWN_CONVERGED = (Converged(key="samples_count", per="sample"),)


def samples_stated(
    ways: Sequence[Converged],
    stated: Mapping[str, object],
    *,
    round_number: float,
    samples_each: Mapping[Per, float],
) -> float | None:
    """Return samples to target by the first way that applies to the values in a log; None if none does.

    samples_each: samples per unit that logs count in, without unknown units.
    """
    for way in ways:
        value, each = stated.get(way.key), samples_each.get(way.per)
        if each is None or not is_number(value):
            continue
        if not (way.first_round <= round_number <= way.last_round and way.above <= value < way.below):
            continue
        try:
            samples = (float(value) + way.counts_from_zero - way.starts_at_one) * each
        except OverflowError:
            continue
        if math.isfinite(samples) and samples > 0:
            return samples
    return None


WORKLOADS_FILE = Path(__file__).with_name("workloads.toml")
EDIT = "a file for --workloads FILE (`equipoise list workloads --example` prints one)"

# The largest batch so far has 262,144 samples (DLRM); the limit fits easily into 64-bit integers.
MAX_BATCH_SAMPLES = 10**15
Area: TypeAlias = Literal[
    "language", "vision", "generation", "recommendation", "graph", "speech", "games", "forecasting", "other"
]


class Rollout(Struct, frozen=True, kw_only=True):
    """The generation before each step of reinforcement learning: completions of prompts, in groups.

    group_size: completions per prompt. prompt_tokens, completion_tokens: averages.
    most_completion_tokens: length at which a completion is truncated.
    """

    group_size: int
    prompt_tokens: int
    completion_tokens: int
    most_completion_tokens: int


# Plausible ranges for models, from toy models to a thousand times the largest.
Params: TypeAlias = Annotated[float, PlausibleRange(100, 1e15, "weights")]
Flop: TypeAlias = Annotated[float, PlausibleRange(1e3, 1e18, "FLOP per sample")]
SampleBytes: TypeAlias = Annotated[float, PlausibleRange(4, 1e13, "bytes per sample")]
Tokens: TypeAlias = Annotated[int, PlausibleRange(1, 1e8, "tokens")]


LEAST_SIDE: Final = 8
Side: TypeAlias = Annotated[int, PlausibleRange(LEAST_SIDE, 1e5, "pixels")]


class Image(Struct, frozen=True, kw_only=True):
    """The image size to which a workload's figures apply, and how the figures scale with the image size.

    width, height: in pixels, of the data set's images, even if the model processes their latents. patch: side
    of the patch per token in pixels; None if figures scale with pixels, as for convolutions.
    frames: of a video, patch layers in time. other_tokens: tokens of a sample other than patches: a class
    token, words.
    squared_share: share of FLOP that scale with the square of tokens or pixels: attention scores over the
    whole image. text_share: FLOP of forward-only encoders that do not scale, relative to the model's forward
    pass.
    """

    width: Side
    height: Side
    patch: int | None = None
    frames: int = 1
    other_tokens: int = 0
    squared_share: float = 0.0
    text_share: float = 0.0

    @property
    def pixels(self) -> int:
        """Number of pixels of the image, or of one frame.

        >>> Image(width=224, height=224, patch=16, other_tokens=1).pixels
        50176
        """
        return self.width * self.height

    @property
    def tokens(self) -> int:
        """Tokens of a sample, or its pixels if there are no patches.

        >>> Image(width=224, height=224, patch=16, other_tokens=1).tokens
        197
        """
        if self.patch is None:
            return self.pixels
        patches = math.ceil(self.width / self.patch) * math.ceil(self.height / self.patch)
        return self.frames * patches + self.other_tokens

    def of_side(self, pixels: int) -> "Image":
        """Return an image of the same aspect ratio whose shorter side has this number of pixels.

        >>> Image(width=1333, height=800).of_side(400).width
        666
        """
        shorter = min(self.width, self.height)
        width, height = (round(each * pixels / shorter) for each in (self.width, self.height))
        return replace(self, width=max(1, width), height=max(1, height))


class Workload(Struct, frozen=True, kw_only=True):
    """One workload: facts that apply to all its runs; None is unknown.

    unpadded_tokens: mean length of the data set without padding, which published trainings skip; None if all
    samples have sequence_tokens.
    params: weights that every data-parallel rank holds. embedding_params: further weights of a recommender's
    tables, which are sharded over the ranks; embedding_tables, embedding_width (values per row) and
    embedding_lookups_per_sample (rows in all tables) describe them.
    Models other than transformers are described per sample: forward_flop_per_sample, backward_flop_per_sample
    (None: twice forward), activation_bytes_per_sample (stored for the backward pass, 2 bytes per value),
    boundary_bytes_per_sample (of the widest cut between layers, likewise), layers (those that launch kernels:
    convolutions, matrix products, recurrent layers), and products_per_layer (sequential ones in a forward
    pass; in a recurrent layer one per time step).
    trained, lora_rank, lora_targets: adapters of that rank if not all weights are trained, and their layers
    (`adapted_layers`). adapter_width, linear_adapter_width: adapter weights per unit of rank, on attention
    and on all linear layers, for a model other than a transformer; None if it has none.
    frozen_share: FLOP of parts that only run forward (encoders, a reference model), relative to the model's
    forward pass. frozen_params: their weights, except shared ones. rollout: generation of training data.
    samples_per_example: samples that one term of the loss needs together: 2 for preference pairs.
    image: the image size to which the figures apply; None if samples are not images or do not scale.
    usual_batch_samples: the global batch of a published training, whose source is usual_batch_source.
    reference_runs: of a benchmark whose results are not embedded, by global batch.
    """

    slug: str
    title: str
    area: Area
    source: str
    task: str | None = None
    dataset: str | None = None
    target: str | None = None
    sample: str = "sample"
    sequence_tokens: Tokens | None = None
    unpadded_tokens: Tokens | None = None
    image: Image | None = None
    dataset_samples: int | None = None
    global_batch_below: float | None = None
    usual_batch_samples: int | None = None
    usual_batch_source: str | None = None
    params: Params | None = None
    embedding_params: Params | None = None
    embedding_tables: int | None = None
    embedding_width: int | None = None
    embedding_lookups_per_sample: int | None = None
    transformer: Transformer | None = None
    forward_flop_per_sample: Flop | None = None
    backward_flop_per_sample: Flop | None = None
    activation_bytes_per_sample: SampleBytes | None = None
    boundary_bytes_per_sample: SampleBytes | None = None
    layers: int | None = None
    products_per_layer: float = 1.0
    adapter_width: int | None = None
    linear_adapter_width: int | None = None
    trained: Trained = "full"
    lora_rank: int | None = None
    lora_targets: LoraTargets = "usual"
    frozen_share: float = 0.0
    frozen_params: Params | None = None
    samples_per_example: int = 1
    rollout: Rollout | None = None
    first_round: float | None = None
    last_round: float | None = None
    rules: MlperfRules = UNKNOWN_RULES
    converged: tuple[Converged, ...] = UNKNOWN_CONVERGED
    reference_runs: tuple[ReferenceRuns, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def computed_tokens(self) -> int | None:
        """Tokens computed per sample, as if every sample had the mean length."""
        return self.unpadded_tokens or self.sequence_tokens

    @property
    def budget_tokens(self) -> int | None:
        """Tokens per sample if trainings are measured in tokens (language); None if samples are counted."""
        return self.sequence_tokens if self.area == "language" else None

    @property
    def samples(self) -> str:
        """The plural word for samples.

        >>> shipped_workloads().workload("vit_large").samples
        'images'
        """
        is_plain = " and " not in self.sample and not self.sample.endswith("s")
        return f"{self.sample}s" if is_plain else "samples"

    @property
    def train_flop_per_sample(self) -> float | None:
        """FLOP of one sample's forward and backward pass without recomputation; None if unknown.

        Forward-only parts are included.

        Assumes that the backward pass takes twice the FLOP of the forward pass, or once if weights are
        frozen, because gradients of activations are still needed. Counted on diffusers 0.42 with frozen
        weights, it is 1.10 times the forward pass for SDXL and 1.20 for FLUX.1 at 1,024 pixels, because
        attention takes two.
        """
        forward = self.forward_flop_per_sample
        if forward is None and self.transformer is not None and self.computed_tokens is not None:
            forward = self.computed_tokens * self.transformer.forward_flop_per_token(self.computed_tokens)
        if forward is None:
            return None
        if self.backward_flop_per_sample is not None and self.trained == "full":
            return (1 + self.frozen_share) * forward + self.backward_flop_per_sample
        return ((3 if self.trained == "full" else 2) + self.frozen_share) * forward

    def on_images(self, other: Image) -> "Workload":
        """Return the workload with images of another size, for which no results are published.

        Weights are unchanged; tokens are those of the other image, and figures per sample scale with tokens
        or pixels. Assumes that figures of fully connected layers are small, and that forward-only encoders
        scale with pixels, except for text.
        """
        known = self.image
        if known is None or (known.width, known.height) == (other.width, other.height):
            return self
        growth, pixel_growth = other.tokens / known.tokens, other.pixels / known.pixels
        flop_growth = growth * (1.0 + known.squared_share * (growth - 1.0))
        found = replace(
            self,
            image=other,
            forward_flop_per_sample=_times(self.forward_flop_per_sample, flop_growth),
            backward_flop_per_sample=_times(self.backward_flop_per_sample, flop_growth),
            activation_bytes_per_sample=_times(self.activation_bytes_per_sample, growth),
            boundary_bytes_per_sample=_times(self.boundary_bytes_per_sample, growth),
            first_round=None,
            last_round=None,
        )
        if self.transformer is not None and self.sequence_tokens is not None:
            # Position embeddings are interpolated to the patches of another image.
            positions = other.tokens if self.transformer.position_embeddings else 0
            found = replace(
                found,
                sequence_tokens=other.tokens,
                transformer=replace(self.transformer, position_embeddings=positions),
            )
            flop_growth = _ratio(found, self)
        share = (self.frozen_share - known.text_share) * pixel_growth + known.text_share
        return replace(found, frozen_share=share / flop_growth)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Facts that the performance model lacks to plan the workload; empty if none."""
        if self.transformer is not None and self.sequence_tokens is not None:
            return ()
        needed: tuple[str, ...] = ("params", "forward_flop_per_sample", "activation_bytes_per_sample")
        if self.embedding_params:
            needed += ("embedding_tables", "embedding_width", "embedding_lookups_per_sample")
        return tuple(name for name in needed if getattr(self, name) is None)

    @property
    def trained_params(self) -> float | None:
        """Number of weights with gradients: all, or those of adapters."""
        if self.trained == "full":
            return self.params
        targets = adapted_layers(self.trained, self.lora_targets)
        if self.transformer is not None:
            width: int | None = self.transformer.adapter_width(targets)
        else:
            known = {"attention": self.adapter_width, "all_linear": self.linear_adapter_width}
            width = known.get(targets)
        return None if width is None or self.lora_rank is None else float(self.lora_rank * width)

    def is_unlike_published(self, trained: Trained) -> bool:
        """Return whether no published times exist for such training: with frozen parts, or adapters here."""
        return bool(self.frozen_share) or (self.transformer is None and trained != "full")


def _times(figure: float | None, growth: float) -> float | None:
    return None if figure is None else figure * growth


def _ratio(one: Workload, other: Workload) -> float:
    """Return the ratio of FLOP per sample of two transformers, without frozen parts."""
    flop, of_other = (
        replace(each, frozen_share=0.0, frozen_params=None).train_flop_per_sample for each in (one, other)
    )
    return 1.0 if not flop or not of_other else flop / of_other


class _Named(Struct, frozen=True, kw_only=True):
    """The meaning of a spelling: a workload's slug and the rounds in which it applies."""

    slug: str
    first_round: float = 0.0
    last_round: float = math.inf


# Prefixes and suffixes of model names on a hub that do not change the model's architecture.
_SAME_SIZE = re.compile(
    r"^meta-(?=llama)|(?<=\d[bm])(?:[-_](?:hf|base|instruct|chat|it|v0\.1))+$", re.IGNORECASE
)


class WorkloadTable(Struct, frozen=True, kw_only=True):
    """A set of workloads with all their spellings. Built by `load_workloads`; read-only."""

    workloads: Mapping[str, Workload]
    names: Mapping[str, tuple[_Named, ...]]

    def slug(self, raw: str, round_number: float | None = None) -> str | None:
        """Return the slug of a raw name; None if unknown, or if it depends on a round that is not given.

        >>> shipped_workloads().slug("ssd", 1.1), shipped_workloads().slug("ssd", 4.1)
        ('ssd_r34', 'retinanet')
        """
        candidates = self.names.get(canonical(raw), ())
        if not candidates and "/" in raw:
            return self._slug_on_hub(raw)
        if round_number is not None:
            candidates = tuple(n for n in candidates if n.first_round <= round_number <= n.last_round)
        slugs = {candidate.slug for candidate in candidates}
        return slugs.pop() if len(slugs) == 1 else None

    def workload(self, name: str) -> Workload:
        """Return the workload of a slug, title or alias, or of a model's name on a hub.

        Raises SpecError with similar names and the file to edit.

        >>> shipped_workloads().workload("meta-llama/Llama-2-7b-hf").slug
        'llama2_7b'
        """
        slug = self.slug(name) or self._slug_on_hub(name)
        if slug is not None:
            return self.workloads[slug]
        complaint = f"workload {shown(name)} is not known"
        raise unknown_name(complaint, self.near(name), kind="workloads", edit=EDIT)

    def near(self, name: str) -> list[str]:
        """Return the slugs of workloads with similar names."""
        close = close_names(name, self.names)
        return list(dict.fromkeys(named.slug for match in close for named in self.names[match]))

    def _slug_on_hub(self, name: str) -> str | None:
        """Return the unique slug of a typed name, ignoring owner and spaces; None otherwise.

        After a size, suffixes for further training (`-Instruct`) or storage (`-hf`) are ignored.
        """
        last = name[:MAX_NAME_CHARS].rpartition("/")[2]
        spelled = (last, _SAME_SIZE.sub("", last))
        # Exact spellings come first, because the compact forms of 1.3B and 13B are equal.
        exact = next(filter(None, map(self.slug, spelled)), None)
        if exact is not None:
            return exact
        wanted = {compact(each) for each in spelled} - {""}
        owners = (owners for each, owners in self.names.items() if compact(each) in wanted)
        slugs = {named.slug for each in owners for named in each}
        return slugs.pop() if len(slugs) == 1 else None

    def rules(self, slug: str) -> MlperfRules:
        """Return the scoring rules of a workload; for an unknown one, defaults with `known` False."""
        found = self.workloads.get(slug)
        return UNKNOWN_RULES if found is None else found.rules

    def samples_to_target(
        self,
        slug: str,
        stated: Mapping[str, object],
        *,
        round_number: float,
        global_batch_samples: float | None,
    ) -> float | None:
        """Return the training samples consumed until the target, from values in a log; None if not stated.

        slug: of a known or unknown workload. stated: metadata of the last eval_accuracy before run_stop, with
        `train_samples` of the log.
        """
        found = self.workloads.get(slug)
        return samples_stated(
            UNKNOWN_CONVERGED if found is None else found.converged,
            stated,
            round_number=round_number,
            samples_each=_samples_each(found, global_batch_samples),
        )

    def global_batch_samples(self, slug: str, logged: float | None) -> int | None:
        """Return the global batch in samples from a log of a known or unknown workload.

        None if not stated, or if it exceeds the workload's limit, because it then counts tokens.
        """
        found = self.workloads.get(slug)
        below = None if found is None else found.global_batch_below
        if logged is None or not 1 <= logged < (MAX_BATCH_SAMPLES if below is None else below):
            return None
        return int(logged)


def workload(name: str) -> Workload:
    """Return the workload of a slug, title or alias.

    Raises SpecError with similar names and the file to edit.

    >>> workload("ResNet-50").dataset_samples
    1281167
    """
    return shipped_workloads().workload(name)


def workload_title(slug: str) -> str:
    """Return the title of a workload; the slug itself if it is not in the shipped table.

    >>> workload_title("bert"), workload_title("warp")
    ('BERT', 'warp')
    """
    try:
        return workload(slug).title
    except SpecError:
        return slug


@cache
def shipped_workloads() -> WorkloadTable:
    """Return the shipped table."""
    return kept_record("workloads", WorkloadTable, load_workloads)


def load_workloads(extra: Sequence[Path] = ()) -> WorkloadTable:
    """Return the shipped table combined with the given files, which override fields and names.

    Raises SpecError with file and line if a file is invalid.
    """
    table: dict[str, Workload] = {}
    names: dict[str, tuple[_Named, ...]] = {}
    for path in (WORKLOADS_FILE, *extra):
        of_file: dict[str, tuple[_Named, ...]] = {}
        for block in read_blocks(path, frozenset({"workload"})):
            found = _workload(block, table.get(block.slug))
            table[found.slug] = found
            for spelling, named in _spellings(block, found):
                _claim(block, spelling, named, of_file)
        names |= of_file
    return WorkloadTable(workloads=table, names=names)


def _workload(block: FactBlock, known: Workload | None) -> Workload:
    """Return the workload that a block describes; missing fields are taken from an earlier file."""
    model = block.block("transformer")
    rules = _read_rules(block, UNKNOWN_RULES if known is None else known.rules)
    converged = tuple(each.read(Converged) for each in block.blocks("converged"))
    reference_runs = tuple(each.read(ReferenceRuns) for each in block.blocks("reference_runs"))
    keeps_ways = not converged and (known is not None or rules is None)
    found = block.read(
        Workload,
        known,
        also=(*_RULES, "transformer", "converged", "reference_runs", "named"),
        given={
            "slug": block.slug,
            "transformer": None
            if model is None
            else read_transformer(model, None if known is None else known.transformer),
            "rules": rules,
            "converged": None if keeps_ways else converged,
            "reference_runs": reference_runs or None,
        },
    )
    if model is not None and "params" not in block.fields and found.transformer is not None:
        found = replace(found, params=float(found.transformer.params))
    _check_activations(block, found)
    _check_counted(block, found)
    _check_params(block, found)
    if (found.unpadded_tokens or 0) > (found.sequence_tokens or 0):
        raise block.refuse("unpadded_tokens", "at most sequence_tokens")
    if found.image is not None and not _is_scaled_so(found.image, found):
        raise block.refuse(
            "image",
            "squared_share below 1, text_share within frozen_share, and as many tokens as sequence_tokens",
        )
    if found.usual_batch_samples is not None and found.usual_batch_source is None:
        raise block.refuse("usual_batch_source", "where usual_batch_samples was read")
    if found.lora_targets != "usual" and replace(found, trained="lora", lora_rank=1).trained_params is None:
        raise block.refuse("lora_targets", "layers of which the model's adapters are known; or leave it out")
    if found.trained != "full" and found.trained_params is None:
        raise block.refuse(
            "lora_rank",
            "this rank, and the sizes of a transformer or adapter_width, where adapters are trained",
        )
    return found


def _is_scaled_so(image: Image, found: Workload) -> bool:
    """Return whether a workload's image is consistent with its tokens and shares."""
    is_cut_so = found.sequence_tokens is None or image.tokens == found.sequence_tokens
    return is_cut_so and 0 <= image.squared_share < 1 and image.text_share <= found.frozen_share


def _check_counted(block: FactBlock, found: Workload) -> None:
    """Raise SpecError if a way of stating samples lacks the fact by which its unit is converted."""
    for way in found.converged:
        needed = {"epoch": "dataset_samples", "token": "sequence_tokens"}.get(way.per)
        if needed is not None and getattr(found, needed) is None:
            raise block.refuse(needed, f"this field, since {way.key} counts {way.per}s")


# Maximum of stored activation bytes per forward FLOP: a value of 2 bytes takes more than one product.
# MobileNet v2, whose convolutions have the fewest FLOP per value, stores 0.065.
_MOST_BYTES_PER_FLOP: Final = 1.0


def _check_activations(block: FactBlock, found: Workload) -> None:
    """Raise SpecError for implausible activations per FLOP, where one of the numbers is in another unit."""
    flop, kept = found.forward_flop_per_sample, found.activation_bytes_per_sample
    if flop is None or kept is None or kept <= _MOST_BYTES_PER_FLOP * flop:
        return
    raise SpecError(
        f"{block.where}: activation_bytes_per_sample={kept:g} with forward_flop_per_sample={flop:g}; "
        "expected at most a byte per FLOP (of shipped models up to 0.065): give both per sample, not in "
        "giga or mega"
    )


# Relative tolerance between stated parameters and those computed from sizes, which omit less than 1 %; an
# error in either is larger.
_NEAR_PARAMS: Final = 0.2


def _check_params(block: FactBlock, found: Workload) -> None:
    """Raise SpecError if a block's parameters contradict its transformer's sizes."""
    if not {"params", "transformer"} <= block.fields.keys():
        return
    assert found.params is not None
    assert found.transformer is not None
    made = float(found.transformer.params)
    if abs(found.params / made - 1.0) > _NEAR_PARAMS:
        raise SpecError(
            f"{block.where}: params={found.params:.4g}; expected about {made:.3g}, which the sizes of the "
            "transformer make"
        )


def _spellings(block: FactBlock, found: Workload) -> Iterator[tuple[str, _Named]]:
    """Yield every spelling of a block's workload, with the rounds in which it applies."""
    for spelling in (found.slug, found.title, *found.aliases):
        yield spelling, _Named(slug=found.slug)
    for item in block.blocks("named"):
        raw = item.text("raw")
        if raw is None:
            raise item.lacks(["raw"])
        yield raw, item.read(_Named, also=("raw",), given={"slug": found.slug})


def _claim(block: FactBlock, spelling: str, named: _Named, of_file: dict[str, tuple[_Named, ...]]) -> None:
    """Add a spelling. Raises SpecError if it means two workloads in one round of the same file."""
    name = canonical(spelling)
    if not name:
        raise SpecError(f"{block.where}: an alias without a letter or digit; expected the name of a workload")
    held = of_file.get(name, ())
    for other in held:
        overlap = named.first_round <= other.last_round and other.first_round <= named.last_round
        if other.slug != named.slug and overlap:
            raise SpecError(
                f"{block.where}: the name {name!r} already belongs to {other.slug}; keep it in one place"
            )
    of_file[name] = (*held, named)


def _samples_each(found: Workload | None, global_batch_samples: float | None) -> dict[Per, float]:
    """Return samples per unit that logs count in, for known units."""
    known: dict[Per, float | None] = {"sample": 1.0, "step": global_batch_samples}
    if found is not None:
        known["epoch"] = found.dataset_samples
        known["token"] = 1 / found.sequence_tokens if found.sequence_tokens else None
    return {per: samples for per, samples in known.items() if samples is not None}
