"""The pyramidal network of the EMP paper, whose numbers of parameters are published."""

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn


class PadChannels(nn.Module):
    """Append `extra` channels of zeros: (batch, channel, ...) -> (batch, channel + extra, ...)."""

    def __init__(self, extra: int):
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """Return the padded maps of height and width."""
        return F.pad(x, (0, 0, 0, 0, 0, self.extra))

    def extra_repr(self) -> str:
        """Show the number of channels added."""
        return f"{self.extra}"


class PyramidBlock(nn.Module):
    """BN, convolution, BN, ReLU, convolution, BN, and a shortcut without parameters that pads missing channels."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut.append(nn.AvgPool2d(stride, ceil_mode=True))
        if outputs > inputs:
            self.shortcut.append(PadChannels(outputs - inputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return F(x) + shortcut(x)."""
        y = self.bn2(self.conv1(self.bn1(x)))
        y = self.bn3(self.conv2(self.relu(y)))
        return y + self.shortcut(x)


def pyramidnet(depth: int = 110, widening: int = 270, *, classes: int = 100, channels: int = 3) -> nn.Module:
    """Return a pyramidal network of basic blocks, each a little wider than the one before.

    Block k of N has 16 + k * widening / N channels, rounded. The defaults are the network of the EMP paper.

    Args:
        depth: 6n+2 layers with n blocks in each of the three stages: 110, 164, 236.
        widening: channels added from the first to the last block, the paper's alpha.
        classes: number of classes.
        channels: channels of the images.

    Shapes: (batch, channels, height, width) -> (batch, classes), any height and width.

    Reference: Han et al., "Deep Pyramidal Residual Networks", 2017, arXiv:1610.02915, section 2 (additive widening).
    """
    length = (depth - 2) // 6
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 16, 3, padding=1, bias=False), bn1=nn.BatchNorm2d(16)
    )
    inputs = 16
    for i in range(3):
        stage = nn.Sequential()
        for j in range(length):
            outputs = round(16 + (i * length + j + 1) * widening / (3 * length))
            stage.append(PyramidBlock(inputs, outputs, 2 if i > 0 and j == 0 else 1))
            inputs = outputs
        layers[f"layer{i + 1}"] = stage
    layers["bn_final"] = nn.BatchNorm2d(inputs)
    layers["relu_final"] = nn.ReLU()
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(inputs, classes)
    return nn.Sequential(layers)
