"""Small transformers: a vision transformer for images from 8x8 and an encoder for texts."""

import torch
from torch import Tensor, nn

from choral.base.errors import InputError
from choral.models.spec import zoo


class EncoderBlock(nn.Module):
    """Self-attention and a two-layer MLP, each after a LayerNorm and with a residual connection."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.dropout1 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.gelu = nn.GELU()
        self.dropout2 = nn.Dropout(dropout)
        self.linear2 = nn.Linear(hidden, width)
        self.dropout3 = nn.Dropout(dropout)

    def forward(self, x: Tensor, absent: Tensor | None = None) -> Tensor:
        """Return x (batch, token, width) after one block; no token attends to those marked absent (batch, token)."""
        y = self.norm1(x)
        # torch's fused kernels have no rule for vmap, and in evaluation no gradient; a query that is another object
        # and asking for the weights lead around both
        attended, _ = self.attention(
            y.view_as(y), y, y, key_padding_mask=absent, need_weights=True, average_attn_weights=False
        )
        x = x + self.dropout1(attended)
        y = self.dropout2(self.gelu(self.linear1(self.norm2(x))))
        return x + self.dropout3(self.linear2(y))


def _positions(tokens: Tensor) -> Tensor:
    """Return 0, 1, 2, ... along the last axis of (batch, token), as (1, token), without naming the length."""
    return torch.ones_like(tokens[:1], dtype=torch.long).cumsum(1) - 1


def _initialized(network: nn.Module) -> nn.Module:
    """Draw linear layers by Xavier's rule with zero biases, embeddings from N(0, 0.02^2), and return the network."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Embedding):
            nn.init.normal_(layer.weight, std=0.02)
    return network


class VisionTransformer(nn.Module):
    """Patches as tokens with learned positions, encoder blocks, the mean over tokens, a linear layer."""

    def __init__(self, blocks: list[EncoderBlock], tokens: int, patch: int, channels: int, width: int, classes: int):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, class) of images (batch, channel, height, width)."""
        x = self.patches(x).flatten(2).transpose(1, 2)  # (batch, token, width)
        x = self.blocks(x + self.positions(_positions(x[:, :, 0])))
        return self.classifier(self.norm(x).mean(1))


@zoo
def vit(
    side: int = 32,
    *,
    patch: int = 4,
    classes: int = 10,
    channels: int = 3,
    width: int = 64,
    depth: int = 4,
    heads: int = 4,
    hidden: int = 128,
    dropout: float = 0.0,
) -> nn.Module:
    """Return a small vision transformer.

    Args:
        side: height and width of the images, a multiple of patch.
        patch: height and width of the patches that become tokens.
        classes: number of classes.
        channels: channels of the images.
        width: length of a token's vector, a multiple of heads.
        depth: number of encoder blocks.
        heads: attention heads of each block.
        hidden: units between the two linear layers of a block.
        dropout: rate on hidden units and on the output of each half of a block; not on attention weights.

    Shapes: (batch, channels, side, side) -> (batch, classes).

    Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, arXiv:2010.11929.

    Differs from the paper: the mean over tokens instead of a class token, as in Beyer et al., 2022, arXiv:2205.01580.
    """
    if side % patch:
        raise InputError(f"patch={patch} does not divide side={side}; give a divisor of {side}.")
    blocks = [EncoderBlock(width, heads, hidden, dropout) for _ in range(depth)]
    return _initialized(VisionTransformer(blocks, (side // patch) ** 2, patch, channels, width, classes))


class TextTransformer(nn.Module):
    """Token and position embeddings, encoder blocks, the mean over tokens without padding, a linear layer."""

    def __init__(self, blocks: list[EncoderBlock], vocabulary: int, length: int, width: int, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, class) of tokens (batch, token), 0 where there is none."""
        positions = _positions(tokens)
        absent = (tokens == 0) & (positions > 0)  # a text without tokens keeps its first place, so no mean is empty
        x = self.embedding(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x, absent)
        there = (~absent).to(x.dtype).unsqueeze(-1)  # (batch, token, 1)
        return self.classifier((self.norm(x) * there).sum(1) / there.sum(1))


@zoo
def transformer(
    vocabulary: int = 20000,
    *,
    classes: int = 2,
    length: int = 256,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
    hidden: int = 128,
    dropout: float = 0.1,
) -> nn.Module:
    """Return a small transformer encoder that classifies texts.

    Token 0 is padding and is not attended to; the first token of a row must not be padding.

    Args:
        vocabulary: number of tokens with the padding; inputs are integers from 0 to vocabulary - 1.
        classes: number of classes.
        length: largest number of tokens of a text.
        width, depth, heads, hidden, dropout: as in `vit`.

    Shapes: (batch, token) integers -> (batch, classes).

    Reference: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762, section 3.

    Differs from the paper: LayerNorm before each half of a block, learned positions, GELU.
    """
    blocks = [EncoderBlock(width, heads, hidden, dropout) for _ in range(depth)]
    return _initialized(TextTransformer(blocks, vocabulary, length, width, classes))
