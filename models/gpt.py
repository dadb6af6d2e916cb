"""A GPT: the pre-norm transformer that predicts the next token (Radford et al. 2019, "Language Models are
Unsupervised Multitask Learners").

The embedding is the head's weight, too. Attention is PyTorch's own. Weights are drawn as GPT-2's are: normal with a
standard deviation of 0.02, those that write into the residual stream with 0.02 / sqrt(2 depth). GPT-2 is 768 wide; a
matrix of a narrow model multiplies as much where the deviation is 0.02 sqrt(768 / width). With 256 tokens, depth
4 and width 192 there are 1.9 million parameters; with 50,257 tokens, depth 12, width 768 and 12 heads 124 million.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wirebench.errors import UserError

STD = 0.02
"""GPT-2's."""


class _Block(nn.Module):
    """Attention, then two layers four times as wide, each beside a residual stream (N, length, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        """The stream after this block."""
        stream = stream + self.attended(self._attention(self.norm1(stream)))
        return stream + self.narrow(F.gelu(self.wide(self.norm2(stream))))

    def _attention(self, stream: Tensor) -> Tensor:
        count, length, width = stream.shape
        parts = self.qkv(stream).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return seen.transpose(1, 2).reshape(count, length, width)


class GPT(nn.Module):
    """Tokens (N, length) -> logits (N, length, num_classes) of each token's successor.

    depth    blocks
    width    of the residual stream; a multiple of heads
    heads    of the attention
    context  tokens that the model can look back on: the longest sequence it takes
    std      standard deviation of the weights before training
    """

    def __init__(
        self, num_classes: int, depth: int = 4, width: int = 192, heads: int = 4, context: int = 128, std: float = STD
    ) -> None:
        for name, value in (("depth", depth), ("width", width), ("heads", heads), ("context", context)):
            if value < 1:
                raise UserError(f"model.{name}: needs at least 1, got {value}")
        if not 0 < std < math.inf:
            raise UserError(f"model.std: is above 0 and finite, got {std:g}")
        if width % heads:
            raise UserError(f"model.heads: {heads} do not divide model.width = {width}")
        super().__init__()
        self.context = context
        self.tokens, self.places = nn.Embedding(num_classes, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes, bias=False)
        self.head.weight = self.tokens.weight
        self._draw(depth, std)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the successors; UserError for what is no sequence of tokens, or longer than the context."""
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise UserError(
                f"model.name: 'gpt' takes tokens, whole numbers of shape (N, length), got {tokens.dtype} "
                f"{tuple(tokens.shape)}; data.name=python_sources has such samples"
            )
        length = tokens.shape[1]
        if length > self.context:
            raise UserError(
                f"model.context: is {self.context}, and the samples have {length} tokens; raise it or lower data.length"
            )
        stream = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))

    def _draw(self, depth: int, std: float) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = name.endswith(("attended.weight", "narrow.weight"))
                nn.init.normal_(parameter, std=std / math.sqrt(2 * depth) if writes else std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
