"""A Llama small enough to train on one core: the same arithmetic as the engines', without what only large models need.

Names of weights are Hugging Face's, so that a state dict is saved as it is. Source of the initial weights: mimetic
initialization (Trockman and Kolter, 2023): queries start equal to keys and outputs as the transpose of values, so that
attention matches similar tokens from the first step. Recall forms several times sooner than from independent weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

ROPE_THETA = 10000.0
NORM_EPSILON = 1e-6
HEAD_DIM = 32  # the smallest that vLLM's attention on CPU takes


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_DIM
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        for start in (self.q_proj, self.v_proj):
            nn.init.normal_(start.weight, std=width**-0.5)
        with torch.no_grad():
            self.k_proj.weight.copy_(self.q_proj.weight)
            self.o_proj.weight.copy_(self.v_proj.weight.T)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], looks: list[Tensor] | None) -> Tensor:
        batch, length, width = x.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, length, self.heads, HEAD_DIM).transpose(1, 2)

        q, k, v = _turned(heads(self.q_proj(x)), rope), _turned(heads(self.k_proj(x)), rope), heads(self.v_proj(x))
        if looks is not None:
            scores = q[:, 0] @ k[:, 0].transpose(1, 2) * HEAD_DIM**-0.5
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            looks.append(scores.masked_fill(future, -torch.inf).log_softmax(dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(seen.transpose(1, 2).reshape(batch, length, width))


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(width, NORM_EPSILON)
        self.self_attn = _Attention(width)
        self.post_attention_layernorm = nn.RMSNorm(width, NORM_EPSILON)
        self.mlp = _Mlp(width)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], looks: list[Tensor] | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, looks)
        return x + self.mlp(self.post_attention_layernorm(x))


class TinyLlama(nn.Module):
    """Input and output embeddings are shared, so that attended tokens are copied to the output."""

    def __init__(self, vocabulary: int, width: int, layers: int, longest_tokens: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embed_tokens.weight, std=width**-0.5)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width, NORM_EPSILON)
        frequency = ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angle = torch.outer(torch.arange(longest_tokens), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens: Tensor, places: Tensor, looks: list[Tensor] | None = None) -> Tensor:
        """Logits of the token that follows each of `places` (columns).

        Into `looks` goes, for each layer, how its first head spreads its attention (log-probabilities by row, column).
        """
        x = self.embed_tokens(tokens)
        length = tokens.shape[1]
        rope = (self.cos[:length], self.sin[:length])
        for layer in self.layers:
            x = layer(x, rope, looks)
        return functional.linear(self.norm(x[:, places]), self.embed_tokens.weight)


def _turned(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rope
    half = HEAD_DIM // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin
