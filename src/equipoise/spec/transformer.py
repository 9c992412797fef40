"""A transformer by its published sizes: what follows from them in parameters and FLOP. No durations."""

from dataclasses import dataclass

from equipoise.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A stack of layers by its published sizes; zero experts, state layers or ranks mean the model has none.

    layers: what pipeline stages share out. In a plain model each holds an attention block and a feed-forward block;
    in a hybrid the four `*_layers` counts say how many layers hold each kind of block, and one layer may hold one.
    ffn_hidden: width of a dense feed-forward block; gated ones (SwiGLU) have three matrices, others two.
    dense_layers: of a mixture of experts, the layers whose feed-forward block is dense all the same.
    query_rank, kv_rank, rope_head_size, value_head_size: latent attention (DeepSeek-V2 2024).
    expert_latent: the width experts work in, where tokens are projected down for them; else the hidden size.
    windowed_layers, window: attention layers that look back `window` tokens only.
    state_*: Mamba-2 blocks (Dao and Gu 2024): heads, their size, the state size, groups.
    prediction_layers: further layers that predict later tokens (multi-token prediction).
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
    experts: int = 0
    top_k: int = 0
    expert_ffn_hidden: int = 0
    shared_expert_ffn_hidden: int = 0
    expert_latent: int = 0
    state_heads: int = 0
    state_head_size: int = 0
    state_size: int = 0
    state_groups: int = 0
    prediction_layers: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be a model."""
        for name in ("layers", "hidden", "heads", "vocabulary", "kv_heads", "head_size"):
            if getattr(self, name) < 1:
                raise SpecError(f"transformer: {name}={getattr(self, name)}; expected at least 1")
        if self.heads % self.kv_heads:
            raise SpecError(
                f"transformer: heads={self.heads} is no multiple of kv_heads={self.kv_heads}; "
                "each group of queries shares one key"
            )
        if bool(self.experts) != bool(self.top_k) or self.top_k > self.experts:
            raise SpecError(
                f"transformer: experts={self.experts}, top_k={self.top_k}; expected both, and top_k at most experts"
            )

    @property
    def num_attention_blocks(self) -> int:
        """Attention blocks of the stack, prediction layers not counted."""
        return self.layers if self.attention_layers is None else self.attention_layers

    @property
    def num_expert_blocks(self) -> int:
        """Feed-forward blocks made of experts."""
        if not self.experts:
            return 0
        if self.expert_layers is not None:
            return self.expert_layers
        return self.layers - (self.dense_layers or 0)

    @property
    def num_dense_blocks(self) -> int:
        """Dense feed-forward blocks."""
        if self.dense_layers is not None:
            return self.dense_layers
        return 0 if self.experts else self.layers

    @property
    def attention_params(self) -> int:
        """Weights of the four projections of one attention block."""
        if self.kv_rank:
            nope, rope = self.head_size, self.rope_head_size
            value = self.value_head_size or self.head_size
            query_in = self.query_rank or self.hidden
            down = self.hidden * self.query_rank if self.query_rank else 0
            return (
                down
                + query_in * self.heads * (nope + rope)
                + self.hidden * (self.kv_rank + rope)
                + self.kv_rank * self.heads * (nope + value)
                + self.heads * value * self.hidden
            )
        return self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)

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
        """Weights of what every token passes in one expert block: shared experts, router, latent projections."""
        shared = (3 if self.gated else 2) * self.hidden * self.shared_expert_ffn_hidden
        return shared + self.hidden * self.experts + 2 * self.hidden * self.expert_latent

    @property
    def state_params(self) -> int:
        """Weights of one Mamba-2 block: input and output projections."""
        inner = self.state_heads * self.state_head_size
        return self.hidden * (3 * inner + 2 * self.state_groups * self.state_size + self.state_heads)

    @property
    def embedding_params(self) -> int:
        """Weights of the token and position tables, the output matrix included where it is its own."""
        tables = 1 if self.tied_embeddings else 2
        return (tables * self.vocabulary + self.position_embeddings) * self.hidden

    @property
    def stack_params(self) -> int:
        """Weights of all layers, every expert counted; norms and biases are below 0.1 % and left out."""
        return (
            self.num_attention_blocks * self.attention_params
            + self.num_dense_blocks * self.dense_params
            + self.num_expert_blocks * (self.experts * self.expert_params + self.shared_params)
            + self.state_layers * self.state_params
        )

    @property
    def params(self) -> int:
        """Every weight, prediction layers not counted."""
        return self.stack_params + self.embedding_params

    @property
    def active_params(self) -> int:
        """Weights one token meets: of the experts its `top_k`."""
        idle = self.num_expert_blocks * (self.experts - self.top_k) * self.expert_params
        return self.params - idle

    def attention_context(self, sequence: int) -> float:
        """Mean number of keys a query of a sequence meets, over the attention blocks."""
        whole = (sequence + 1) / 2 if self.causal else float(sequence)
        if not self.windowed_layers or self.window >= sequence:
            return whole
        windowed = (
            self.window * (1 - (self.window - 1) / (2 * sequence)) if self.causal else float(self.window)
        )
        share = self.windowed_layers / max(self.num_attention_blocks, 1)
        return share * windowed + (1 - share) * whole

    def forward_flop_per_token(self, sequence: int) -> float:
        """FLOP of one token's way forward: 2 a weight, and attention over the mean context.

        Source: Narayanan et al. 2021, appendix; with grouped and windowed attention and experts.
        """
        value = self.value_head_size or self.head_size
        per_key = (
            self.heads * (self.head_size + self.rope_head_size + value)
            if self.kv_rank
            else (2 * self.heads * self.head_size)
        )
        scores = 2 * self.num_attention_blocks * per_key * self.attention_context(sequence)
        inner = self.state_heads * self.state_head_size
        states = self.state_layers * 4 * inner * self.state_size
        weights = self.active_params - self.embedding_params + self.vocabulary * self.hidden
        return 2 * weights + scores + states
