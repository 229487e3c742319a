"""Networks of the reference-posterior literature: a small AlexNet, a CNN for DermaMNIST and a convolutional LSTM."""

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import Tensor, nn

_GATES = ("input", "forget", "cell", "output")


def alexnet_cifar(*, classes: int = 10, channels: int = 3, side: int = 32) -> nn.Module:
    """Return a small AlexNet with Swish: five convolutions and three linear layers, no normalization, no dropout.

    Convolutions of 64, 128 (3x3, each with max-pooling), 256, 128 and 64 channels (2x2), linear layers of 256 and 256
    units. Every convolution keeps the side of its input.

    Args:
        classes: number of classes.
        channels: channels of the images.
        side: height and width of the images, at least 4.

    Shapes: (batch, channels, side, side) -> (batch, classes).

    Reference: Wilson et al., "Evaluating Approximate Inference in Bayesian Deep Learning", NeurIPS 2021 competition,
    PMLR 176; the network of its CIFAR-10 track.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = channels
    for i, (filters, kernel) in enumerate(((64, 3), (128, 3), (256, 2), (128, 2), (64, 2)), start=1):
        if kernel == 2:
            layers[f"pad{i}"] = nn.ZeroPad2d((0, 1, 0, 1))  # an even kernel needs one more row and column
        layers[f"conv{i}"] = nn.Conv2d(width, filters, kernel, padding=1 if kernel == 3 else 0)
        layers[f"swish{i}"] = nn.SiLU()
        if kernel == 3:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
        width = filters
    layers["flatten"] = nn.Flatten()
    width *= (side // 2 // 2) ** 2
    for i, units in enumerate((256, 256), start=1):
        layers[f"fc{i}"] = nn.Linear(width, units)
        layers[f"swish{i + 5}"] = nn.SiLU()
        width = units
    layers["classifier"] = nn.Linear(width, classes)
    return nn.Sequential(layers)


def cnn28(*, classes: int = 7, channels: int = 3, side: int = 28) -> nn.Module:
    """Return a CNN of two convolutions for images of 28 pixels, such as DermaMNIST's.

    Convolutions of 16 and 32 channels (3x3), each with Swish and max-pooling, and a linear layer.

    Args:
        classes: number of classes.
        channels: channels of the images.
        side: height and width of the images, at least 4.

    Shapes: (batch, channels, side, side) -> (batch, classes).

    Reference: Delaunoy & Louppe, "SAE: Sequential Anchored Ensembles", 2021, arXiv:2201.00649, Table 3, which says two layers
    and no widths.

    >>> sum(p.numel() for p in cnn28().parameters())
    16071
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (inputs, outputs) in enumerate(pairwise((channels, 16, 32)), start=1):
        layers[f"conv{i}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers[f"swish{i}"] = nn.SiLU()
        layers[f"pool{i}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["classifier"] = nn.Linear(32 * (side // 2 // 2) ** 2, classes)
    return nn.Sequential(layers)


class Lstm(nn.Module):
    """An LSTM that returns its last hidden state; each gate is a pair of `nn.Linear` layers.

    `torch.nn.LSTM` does not support `torch.func.vmap`, and its weights are not layers that can be converted. This class
    supports both, at about twice the time on a CPU.

    Shapes: (batch, time, inputs) -> (batch, units).

    Differs from torch.nn.LSTM: one bias for each gate instead of the sum of two.
    """

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.from_input = nn.ModuleDict({gate: nn.Linear(inputs, units) for gate in _GATES})
        self.from_state = nn.ModuleDict({gate: nn.Linear(units, units, bias=False) for gate in _GATES})
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(units**-0.5), units**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden state after the last step, from states of zero."""
        driven = [self.from_input[gate](x).unbind(1) for gate in _GATES]
        hidden = cell = torch.zeros_like(driven[0][0])
        for step in zip(*driven):
            i, f, g, o = (drive + self.from_state[gate](hidden) for gate, drive in zip(_GATES, step))
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
        return hidden


class CnnLstm(nn.Module):
    """Embedding, convolution with max-pooling over time, LSTM, linear layer."""

    def __init__(self, vocabulary: int, classes: int, embedding: int, filters: int, units: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.conv = nn.Conv1d(embedding, filters, 5)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool1d(4)
        self.lstm = Lstm(filters, units)
        self.classifier = nn.Linear(units, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, class) of tokens (batch, time)."""
        x = self.embedding(tokens).transpose(1, 2)  # (batch, channel, time)
        x = self.pool(self.relu(self.conv(x)))
        return self.classifier(self.lstm(x.transpose(1, 2)))


def cnn_lstm(
    vocabulary: int = 20000, *, classes: int = 2, embedding: int = 128, filters: int = 64, units: int = 128
) -> nn.Module:
    """Return a convolutional LSTM for text: one convolution of kernel 5, max-pooling of 4, one LSTM.

    Args:
        vocabulary: number of tokens; inputs are integers from 0 to vocabulary - 1.
        classes: number of classes.
        embedding: length of a token's vector.
        filters: channels of the convolution.
        units: size of the LSTM's state; 128 in the code published with the reference.

    Shapes: (batch, time) integers, at least 8 of them -> (batch, classes).

    Reference: Izmailov et al., "What Are Bayesian Neural Network Posteriors Really Like?", 2021, arXiv:2104.14421.
    """
    return CnnLstm(vocabulary, classes, embedding, filters, units)
