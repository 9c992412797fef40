"""A transformer described by its published sizes, with the resulting parameters and FLOP. No durations."""

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.spec import FactBlock


class CompressedKeys(Struct, frozen=True, kw_only=True):
    """Attention over a short window and, beyond it, over compressed keys (DeepSeek-V4 2026).

    sparse_layers, sparse_ratio, top_k: blocks with one compressed key per `sparse_ratio` tokens, which attend
    to `top_k` of them, selected by an index with `index_heads` heads of size `index_head_size`.
    heavy_layers, heavy_ratio: blocks that attend to one compressed key per `heavy_ratio` tokens.
    """

    sparse_layers: int
    sparse_ratio: int
    top_k: int
    index_heads: int
    index_head_size: int
    heavy_layers: int
    heavy_ratio: int

    def params(self, *, hidden: int, head_size: int, query_rank: int) -> int:
        """Return the weights of all indices and compressors, which have matrices for values and weights.

        Assumes that sparse blocks compress overlapping groups, so that both matrices are twice as wide.
        """
        index = hidden * 4 * self.index_head_size + self.index_heads * (
            query_rank * self.index_head_size + hidden
        )
        sparse = self.sparse_layers * (hidden * 4 * head_size + index)
        return sparse + self.heavy_layers * hidden * 2 * head_size

    def keys(self, sequence: int) -> float:
        """Return the mean number of compressed keys per query, summed over the blocks."""
        groups = sequence / self.sparse_ratio
        seen = min(float(self.top_k), groups)
        sparse = seen * (1 - seen / (2 * groups))
        return self.sparse_layers * sparse + self.heavy_layers * sequence / self.heavy_ratio / 2

    def index_flop_per_token(self, sequence: int) -> float:
        """Return the FLOP per token of scoring compressed keys for selection, over all blocks."""
        return (
            self.sparse_layers
            * 2
            * self.index_heads
            * self.index_head_size
            * sequence
            / self.sparse_ratio
            / 2
        )


class Tower(Struct, frozen=True, kw_only=True):
    """A further stack that each sample passes, with another width or length than the main stack.

    Examples are the encoder of a speech model, the other model of a pair, an earlier stage of an image
    pyramid, or layers of other sizes in the same stack. tokens: per sample; 0 for those of the main stack.
    """

    model: "Transformer"
    tokens: int

    def tokens_of(self, sequence: int) -> int:
        """Return the tokens of a sample in this stack. sequence: its tokens in the main stack."""
        return self.tokens or sequence


class Transformer(Struct, frozen=True, kw_only=True):
    """A stack of layers described by published sizes; experts, state layers or ranks of zero mean none.

    layers: the units that are divided among pipeline stages. In a plain model each has an attention and a
    feed-forward block; in a hybrid the four `*_layers` counts state the number of layers with each kind of
    block, and a layer may have a single block.
    ffn_hidden: width of a dense feed-forward block; gated ones (SwiGLU) have three matrices, others two.
    dense_layers: the layers of a mixture of experts whose feed-forward block is dense.
    predicted_fraction: fraction of tokens whose logits are computed (below 1 in masked language models).
    query_rank, kv_rank, rope_head_size, value_head_size: latent attention (DeepSeek-V2 2024).
    kv_shared: one projection computes both keys and values. output_rank, output_groups: a two-step output
    projection, from groups of heads to output_rank values each, and from those to the hidden size.
    expert_groups, top_groups: the experts of one token are in at most `top_groups` of `expert_groups` groups
    (node-limited routing: DeepSeek-V3 2024, section 2.1.2); 0 for unrestricted routing.
    gated_output: attention's output is multiplied by a gate as wide as all queries, projected from the input.
    expert_latent: width to which tokens are projected down for experts; 0 if experts use the hidden size.
    windowed_layers, window: attention layers restricted to the last `window` tokens.
    state_*: Mamba-2 blocks (Dao and Gu 2024): heads, their size, the state size, groups. A gated
    delta net (Yang et al. 2024, arXiv:2412.06464) has the same projections: value heads, their size, the key
    size, key heads. state_rank: of the step sizes of Mamba-1 blocks (Gu and Dao 2023), whose channels are
    heads of size 1; 0 in Mamba-2. state_width: total rows, each of the hidden size, of the matrices in a
    block of another linear recurrence; 0 for Mamba.
    cross_layers, cross_tokens: cross-attention blocks and the number of tokens of another stack that are
    their keys; cross_width: the width of these tokens, 0 for the hidden size.
    repeats: number of layers that share the same weights, which are stored once (ALBERT).
    embedding_width: of the tables, if a matrix projects them to the hidden size; 0 for the hidden size.
    towers: further stacks, included in `params`. Figures per token are per token of the main stack.
    prediction_layers: further layers that predict later tokens (multi-token prediction), each with an
    attention and a feed-forward block, a projection before and logits after. prediction_shared: whether they
    share weights.
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    kv_heads: int
    head_size: int
    ffn_hidden: int
    gated: bool = False
    tied_embeddings: bool = False
    causal: bool = True
    position_embeddings: int = 0
    predicted_fraction: float = 1.0
    attention_layers: int | None = None
    dense_layers: int | None = None
    expert_layers: int | None = None
    state_layers: int = 0
    window: int = 0
    windowed_layers: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    rope_head_size: int = 0
    value_head_size: int = 0
    kv_shared: bool = False
    output_rank: int = 0
    output_groups: int = 0
    gated_output: bool = False
    compressed: CompressedKeys | None = None
    experts: int = 0
    top_k: int = 0
    expert_groups: int = 0
    top_groups: int = 0
    expert_ffn_hidden: int = 0
    shared_expert_ffn_hidden: int = 0
    expert_latent: int = 0
    state_heads: int = 0
    state_head_size: int = 0
    state_size: int = 0
    state_groups: int = 0
    state_rank: int = 0
    state_width: int = 0
    cross_layers: int = 0
    cross_tokens: int = 0
    cross_width: int = 0
    repeats: float = 1.0
    embedding_width: int = 0
    prediction_layers: int = 0
    prediction_shared: bool = False
    towers: tuple[Tower, ...] = ()

    def __post_init__(self) -> None:
        """Raise SpecError for sizes that are not those of a model."""
        for name in ("layers", "hidden", "heads", "vocabulary", "kv_heads", "head_size", "repeats"):
            if getattr(self, name) < 1:
                raise SpecError(f"transformer: {name}={getattr(self, name)}; expected at least 1")
        if self.heads % self.kv_heads:
            raise SpecError(
                f"transformer: heads={self.heads} is not a multiple of kv_heads={self.kv_heads}; "
                "each group of queries shares one key"
            )
        if bool(self.experts) != bool(self.top_k) or self.top_k > self.experts:
            raise SpecError(
                f"transformer: experts={self.experts}, top_k={self.top_k}; "
                "expected both, and top_k at most experts"
            )
        if self.expert_groups and (
            self.experts % self.expert_groups or not 0 < self.top_groups <= self.expert_groups
        ):
            raise SpecError(
                f"transformer: expert_groups={self.expert_groups}, top_groups={self.top_groups}; expected "
                f"groups that divide experts={self.experts}, and of these as many as a token may use"
            )
        if not 0 <= self.predicted_fraction <= 1:
            raise SpecError(
                f"transformer: predicted_fraction={self.predicted_fraction}; expected from 0 to 1"
            )
        if self.windowed_layers > self.num_attention_blocks:
            raise SpecError(
                f"transformer: windowed_layers={self.windowed_layers}; expected at most the "
                f"{self.num_attention_blocks} layers with attention"
            )
        if bool(self.cross_layers) != bool(self.cross_tokens):
            raise SpecError(
                f"transformer: cross_layers={self.cross_layers}, cross_tokens={self.cross_tokens}; "
                "expected both or neither"
            )

    @property
    def num_attention_blocks(self) -> int:
        """Number of attention blocks, excluding prediction layers."""
        return self.layers if self.attention_layers is None else self.attention_layers

    @property
    def num_expert_blocks(self) -> int:
        """Number of feed-forward blocks with experts."""
        if not self.experts:
            return 0
        if self.expert_layers is not None:
            return self.expert_layers
        return self.layers - (self.dense_layers or 0)

    @property
    def num_dense_blocks(self) -> int:
        """Number of dense feed-forward blocks."""
        if self.dense_layers is not None:
            return self.dense_layers
        return 0 if self.experts else self.layers

    @property
    def attention_params(self) -> int:
        """Weights of the projections of one attention block, with its share of those of compressed keys."""
        value = self.value_head_size or self.head_size
        key = self.head_size + (self.rope_head_size if self.kv_rank else 0)
        query = (self.query_rank or self.hidden) * self.heads * key + self.hidden * self.query_rank
        query += self.hidden * self.heads * value if self.gated_output else 0
        output = self.heads * value * (self.output_rank or self.hidden)
        output += self.output_groups * self.output_rank * self.hidden
        if self.compressed is not None:
            extra = self.compressed.params(
                hidden=self.hidden, head_size=self.head_size, query_rank=self.query_rank
            )
            output += round(extra / self.num_attention_blocks)
        return query + self.kv_params + output

    @property
    def kv_params(self) -> int:
        """Weights of the key and value projections of one attention block."""
        value = self.value_head_size or self.head_size
        if self.kv_rank:
            up = self.kv_rank * self.heads * (self.head_size + value)
            return self.hidden * (self.kv_rank + self.rope_head_size) + up
        return self.hidden * self.kv_heads * (self.head_size if self.kv_shared else self.head_size + value)

    @property
    def cross_kv_params(self) -> int:
        """Weights of the key and value projections of one cross-attention block."""
        return self.kv_params * (self.cross_width or self.hidden) // self.hidden

    @property
    def cross_params(self) -> int:
        """Weights of the projections of one cross-attention block."""
        return self.attention_params - self.kv_params + self.cross_kv_params

    @property
    def dense_params(self) -> int:
        """Weights of one dense feed-forward block."""
        return (3 if self.gated else 2) * self.hidden * self.ffn_hidden

    @property
    def expert_params(self) -> int:
        """Weights of one routed expert."""
        return (3 if self.gated else 2) * (self.expert_latent or self.hidden) * self.expert_ffn_hidden

    @property
    def shared_params(self) -> int:
        """Weights that every token uses in one expert block: shared experts, router, latent projections."""
        shared = (3 if self.gated else 2) * self.hidden * self.shared_expert_ffn_hidden
        return shared + self.hidden * self.experts + 2 * self.hidden * self.expert_latent

    @property
    def state_params(self) -> int:
        """Weights of one state-space block: input and output projections, and the step sizes of Mamba-1."""
        if self.state_width:
            return self.state_width * self.hidden
        inner = self.state_heads * self.state_head_size
        if self.state_rank:
            return inner * (3 * self.hidden + 2 * self.state_rank + 3 * self.state_size)
        return self.hidden * (3 * inner + 2 * self.state_groups * self.state_size + self.state_heads)

    @property
    def embedding_params(self) -> int:
        """Weights of the token and position tables, and of the output matrix unless it is tied."""
        tables = 1 if self.tied_embeddings else 2
        widening = self.hidden if self.embedding_width else 0
        rows = tables * self.vocabulary + self.position_embeddings + widening
        return rows * (self.embedding_width or self.hidden)

    @property
    def logits_flop_per_token(self) -> float:
        """FLOP of one token's logits."""
        width = self.embedding_width or self.hidden
        return 2 * self.predicted_fraction * self.vocabulary * width

    @property
    def query_value_adapter_width(self) -> int:
        """Weights per unit of rank of adapters on one attention block's queries and values."""
        return 2 * self.hidden + (self.heads + self.kv_heads) * self.head_size

    @property
    def attention_adapter_width(self) -> int:
        """Weights per unit of rank of adapters on one attention block: on its input projection and output."""
        queries, keys = self.heads * self.head_size, 2 * self.kv_heads * self.head_size
        return 2 * self.hidden + (3 if self.gated_output else 2) * queries + keys

    @property
    def dense_adapter_width(self) -> int:
        """Weights per unit of rank of adapters on one dense feed-forward block: one on each matrix."""
        return (3 if self.gated else 2) * (self.hidden + self.ffn_hidden)

    @property
    def state_inputs(self) -> tuple[int, ...]:
        """Input widths of the matrices of a state-space block that have adapters.

        The output projection has none, because kernels read its weights directly. Blocks of another linear
        recurrence are treated as square matrices.
        Source: huggingface/peft#2562, which refuses adapters on it; state-spaces/mamba, `Mamba` and `Mamba2`.
        """
        if self.state_width:
            return (self.hidden,) * max(1, self.state_width // self.hidden)
        if self.state_rank:
            return self.hidden, self.state_heads * self.state_head_size, self.state_rank
        return (self.hidden,)

    @property
    def state_adapter_width(self) -> int:
        """Weights per unit of rank of adapters on one state-space block: on each matrix before its scan."""
        inner, groups = self.state_heads * self.state_head_size, self.state_groups * self.state_size
        if self.state_width:
            outputs = self.state_width
        elif (
            self.state_rank
        ):  # twice the channels; steps and what reads and writes states; the channels again
            outputs = 2 * inner + self.state_rank + 2 * self.state_size + inner
        else:
            outputs = 2 * inner + 2 * groups + self.state_heads
        return sum(self.state_inputs) + outputs

    def adapter_width(self, targets: str) -> int:
        """Return the weights of all adapters per unit of rank.

        targets: layers named as by `strategy.adapted_layers`; `all_linear` excludes experts. With
        `attention`, queries, keys and values share one adapter (NeMo); otherwise each has its own (PEFT).
        Source: Hu et al. 2021, section 4.2; Dettmers et al. 2023, section 4.
        """
        blocks = self.num_attention_blocks + self.cross_layers
        is_narrow = targets == "query_value"
        width = blocks * (self.query_value_adapter_width if is_narrow else self.attention_adapter_width)
        if targets == "all_linear":
            width += blocks * 2 * self.hidden
            width += self.num_dense_blocks * self.dense_adapter_width
            width += self.state_layers * self.state_adapter_width
        towers = sum(each.model.adapter_width(targets) for each in self.towers)
        return round(width / self.repeats) + towers

    @property
    def stack_params(self) -> int:
        """Weights of all layers including all experts; norms and biases, below 0.1 %, are omitted."""
        passed = (
            self.num_attention_blocks * self.attention_params
            + self.cross_layers * self.cross_params
            + self.num_dense_blocks * self.dense_params
            + self.num_expert_blocks * (self.experts * self.expert_params + self.shared_params)
            + self.state_layers * self.state_params
        )
        return round(passed / self.repeats)

    @property
    def params(self) -> int:
        """Number of all weights, excluding prediction layers."""
        return self.stack_params + self.embedding_params + self.tower_params

    @property
    def tower_params(self) -> int:
        """Weights of the further stacks."""
        return sum(each.model.params for each in self.towers)

    @property
    def prediction_params(self) -> int:
        """Weights of the prediction layers, which `params` excludes like published counts."""
        feed_forward = (
            self.experts * self.expert_params + self.shared_params if self.experts else self.dense_params
        )
        layer = self.attention_params + feed_forward + 2 * self.hidden * self.hidden
        return (min(1, self.prediction_layers) if self.prediction_shared else self.prediction_layers) * layer

    @property
    def active_params(self) -> int:
        """Weights used by one token, including those of its `top_k` experts."""
        return self.params - self.idle_params - sum(each.model.idle_params for each in self.towers)

    @property
    def idle_params(self) -> int:
        """Weights of the stack's experts that a token does not use."""
        idle = self.num_expert_blocks * (self.experts - self.top_k) * self.expert_params
        return round(idle / self.repeats)

    def attention_context(self, sequence: int) -> float:
        """Return the mean number of keys per query of a sequence, over the attention blocks."""
        whole = (sequence + 1) / 2 if self.causal else float(sequence)
        if not self.windowed_layers or self.window >= sequence:
            return whole
        windowed = (
            self.window * (1 - (self.window - 1) / (2 * sequence)) if self.causal else float(self.window)
        )
        blocks = max(self.num_attention_blocks, 1)
        share = self.windowed_layers / blocks
        further = 0.0 if self.compressed is None else self.compressed.keys(sequence) / blocks
        return share * windowed + (1 - share) * whole + further

    def score_flop_per_token(self, sequence: int) -> float:
        """Return the forward FLOP per token of attention scores and weighted values, over all blocks."""
        value = self.value_head_size or self.head_size
        key = self.head_size + (self.rope_head_size if self.kv_rank else 0)
        scores = 2 * self.num_attention_blocks * self.heads * (key + value) * self.attention_context(sequence)
        scores += 2 * self.cross_layers * self.heads * (key + value) * self.cross_tokens
        return scores + (0.0 if self.compressed is None else self.compressed.index_flop_per_token(sequence))

    def prediction_flop_per_token(self, sequence: int) -> float:
        """Return the forward FLOP per token of the prediction layers, including the logits after each."""
        feed_forward = (
            self.top_k * self.expert_params + self.shared_params if self.experts else self.dense_params
        )
        weights = self.attention_params + feed_forward + 2 * self.hidden * self.hidden
        scores = self.score_flop_per_token(sequence) / max(self.num_attention_blocks, 1)
        return self.prediction_layers * (2 * (weights + self.vocabulary * self.hidden) + scores)

    def forward_flop_per_token(self, sequence: int) -> float:
        """Return the forward FLOP per token: 2 per weight, mean-context attention, prediction layers.

        Assumes that a state space takes 4 FLOP per channel and state, as in its recurrence.
        Source: Narayanan et al. 2021, appendix; with grouped and windowed attention and experts.
        """
        inner = self.state_heads * self.state_head_size
        states = self.state_layers * 4 * inner * self.state_size
        weights: float = self.repeats * (self.stack_params - self.idle_params)
        weights += self.cross_layers * self.cross_kv_params * (self.cross_tokens / sequence - 1)
        lengths = [(each.model, each.tokens_of(sequence)) for each in self.towers]
        towers = sum(tokens * model.forward_flop_per_token(tokens) for model, tokens in lengths)
        return (
            2 * weights
            + self.logits_flop_per_token
            + towers / sequence
            + self.score_flop_per_token(sequence)
            + states
            + self.prediction_flop_per_token(sequence)
        )


def feed_forward_stack(layers: int, hidden: int, *, ffn_hidden: int) -> Transformer:
    """Return a stack of feed-forward blocks of two matrices."""
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=1,
        kv_heads=1,
        head_size=1,
        ffn_hidden=ffn_hidden,
        vocabulary=1,
        tied_embeddings=True,
        causal=False,
        attention_layers=0,
        predicted_fraction=0.0,
    )


def matrix_tower(columns: int, channels: int, tokens: int) -> Tower:
    """Return a matrix or a convolution as a feed-forward layer with the same number of weights.

    columns: inputs per output channel; for a convolution, input channels times kernel size.
    """
    stack = feed_forward_stack(1, channels, ffn_hidden=max(1, round(columns / 2)))
    return Tower(model=stack, tokens=tokens)


def read_transformer(block: FactBlock, known: Transformer | None) -> Transformer:
    """Return the transformer that a table of sizes describes; missing sizes are taken from `known`.

    Without `known`, the defaults are kv_heads = heads, head_size = hidden / heads and ffn_hidden = 4 x
    hidden.
    Raises SpecError with file and line.
    """
    if known is None:
        block = replace(block, fields=_assumed(block) | block.fields)
    try:
        return block.read(
            Transformer, known, zero=True, given={"towers": () if known is None else known.towers}
        )
    except SpecError as err:
        where = "" if str(err).startswith(f"{block.path}:") else f"{block.where}: "
        raise SpecError(f"{where}{err}") from err


def _assumed(block: FactBlock) -> dict[str, object]:
    """Return the default sizes of a plain model; empty if the sizes they are derived from are missing."""
    hidden, heads = block.count("hidden"), block.count("heads")
    if not hidden or not heads:
        return {}
    if hidden % heads and "head_size" not in block.fields:
        raise block.refuse(
            "head_size", f"the size of a head, since hidden={hidden} is no multiple of heads={heads}"
        )
    return {"kv_heads": heads, "head_size": hidden // heads, "ffn_hidden": 4 * hidden}
