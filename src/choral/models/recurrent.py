"""The convolutional LSTM of the reference-posterior literature, for sequences of tokens."""

import torch
from torch import Tensor, nn

from choral.models.spec import zoo

_GATES = ("input", "forget", "cell", "output")


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


@zoo
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
