"""Residual networks: the CIFAR family, its batch-free FRN variant, wide ones, and the ImageNet family with ResNeXt.

Every network is one `nn.Sequential` of named stages. The ImageNet family uses torchvision's parameter names, so its
trained weights load with `load_state_dict`.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from choral.layers.bayesian.dropout import StochasticDepth
from choral.layers.convert import layers_of
from choral.layers.frn import FilterResponseNorm
from choral.models.spec import ACTIVATIONS, Activation, blocks, he, zoo

Stem = Literal["imagenet", "cifar"]
Layers = OrderedDict[str, nn.Module]


@dataclass(frozen=True)
class _Parts:
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d
    activation: Callable[[], nn.Module] = nn.ReLU
    bias: bool = False

    def block(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """Return a basic block: two 3x3 convolutions."""
        return Block(inputs, [(outputs, 3, stride, 1), (outputs, 3, 1, 1)], self)


class Block(nn.Module):
    """Convolutions, each with its normalization, and a shortcut: the identity, or a normalized 1x1 projection if the shape changes.

    Args:
        inputs: number of input channels.
        convolutions: outputs, kernel, stride and groups of each convolution.
        parts: see `_Parts`.
    """

    def __init__(self, inputs: int, convolutions: Sequence[tuple[int, int, int, int]], parts: _Parts):
        super().__init__()
        self.length, width = len(convolutions), inputs
        for i, (outputs, kernel, stride, groups) in enumerate(convolutions, start=1):
            conv = nn.Conv2d(width, outputs, kernel, stride, kernel // 2, groups=groups, bias=parts.bias)
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", parts.norm(outputs))
            if i < self.length:
                self.add_module(f"act{i}", parts.activation())
            width = outputs
        stride = max(stride for _, _, stride, _ in convolutions)
        same = stride == 1 and inputs == width
        project = nn.Identity() if same else nn.Conv2d(inputs, width, 1, stride, bias=parts.bias)
        self.downsample = project if same else nn.Sequential(project, parts.norm(width))
        self.add_module(f"act{self.length}", parts.activation())
        self.drop: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return activation(F(x) + shortcut(x))."""
        y = x
        for i in range(1, self.length + 1):
            y = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(y))
            if i == self.length:
                y = (y if self.drop is None else self.drop(y)) + self.downsample(x)
            y = self.get_submodule(f"act{i}")(y)
        return y


def _stages(
    block: Callable[[int, int, int], nn.Module], inputs: int, lengths: Sequence[int], widths: Sequence[int]
) -> Layers:
    layers: Layers = OrderedDict()
    for i, (length, width) in enumerate(zip(lengths, widths), start=1):
        stage = nn.Sequential()
        for j in range(length):
            stage.append(block(inputs, width, 2 if i > 1 and j == 0 else 1))
            inputs = width
        layers[f"layer{i}"] = stage
    return layers


def _ending(inputs: int, classes: int) -> Layers:
    return OrderedDict(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(inputs, classes))


def _resnet(
    lengths: Sequence[int],
    block: Callable[[int, int, int], nn.Module],
    *,
    width: int,
    classes: int,
    channels: int,
    parts: _Parts,
    stem: Stem = "cifar",
    stem_width: int | None = None,
) -> nn.Sequential:
    large, first = stem == "imagenet", stem_width or width
    kernel, stride = (7, 2) if large else (3, 1)
    conv = nn.Conv2d(channels, first, kernel, stride, kernel // 2, bias=parts.bias)
    layers: Layers = OrderedDict(conv1=conv, bn1=parts.norm(first), act1=parts.activation())
    if large:
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    widths = [width * 2**i for i in range(len(lengths))]
    layers |= _stages(block, first, lengths, widths)
    return nn.Sequential(layers | _ending(widths[-1], classes))


@zoo
def resnet_cifar(
    depth: int = 20,
    *,
    classes: int = 10,
    channels: int = 3,
    width: int = 16,
    activation: Activation = "relu",
    stochastic_depth: float = 0.0,
) -> nn.Module:
    """Return a ResNet for small images: three stages of basic blocks with 1x1 projection shortcuts.

    Args:
        depth: 6n+2 layers with n blocks in each stage: 20, 32, 44, 56, 110.
        classes: number of classes.
        channels: channels of the images.
        width: channels of the first stage; the others have twice and four times as many.
        activation: as in `mlp`; "silu" is that of the SeBayS authors' networks.
        stochastic_depth: probability of dropping the last block (`choral.layers.bayesian.dropout.StochasticDepth`); those of
            the blocks before rise to it in equal steps. With `mc_dropout(rate=None)` passes at prediction drop blocks too.

    Shapes: (batch, channels, height, width) -> (batch, classes), any height and width.

    Reference: He et al., "Deep Residual Learning for Image Recognition", 2016, arXiv:1512.03385, section 4.2.

    Differs from the paper: projection (option B) instead of zero-padded shortcuts (option A).

    >>> sum(p.numel() for p in resnet_cifar(20).parameters())
    272474
    """
    parts = _Parts(activation=ACTIVATIONS[activation])
    lengths = [blocks(depth, layers=6, extra=2)] * 3
    network = he(_resnet(lengths, parts.block, width=width, classes=classes, channels=channels, parts=parts))
    found: list[Any] = [block for _, block in layers_of(network, (Block,))] if stochastic_depth else []
    for number, block in enumerate(found, start=1):
        block.drop = StochasticDepth(stochastic_depth * number / len(found))
    return network


@zoo
def resnet20_frn(*, classes: int = 10, channels: int = 3, width: int = 16) -> nn.Module:
    """Return the ResNet-20 of the reference posteriors: FilterResponseNorm and Swish, and biased convolutions.

    Without BatchNorm the likelihood of an example does not depend on the rest of its batch, so the posterior is well
    defined. The arguments are those of `resnet_cifar`, without an activation.

    Reference: Izmailov et al., "What Are Bayesian Neural Network Posteriors Really Like?", 2021, arXiv:2104.14421.

    Differs from the paper: He's normal initialization is not truncated.

    >>> sum(p.numel() for p in resnet20_frn().parameters())
    274042
    """
    parts = _Parts(norm=FilterResponseNorm, activation=nn.SiLU, bias=True)
    network = _resnet([3] * 3, parts.block, width=width, classes=classes, channels=channels, parts=parts)
    return he(network, fan="fan_in", linear=True)


@zoo
def resnet18(
    *, classes: int = 1000, channels: int = 3, stem: Stem = "imagenet", width: int = 64, activation: Activation = "relu"
) -> nn.Module:
    """Return ResNet-18: four stages of two basic blocks.

    Args:
        classes: number of classes.
        channels: channels of the images.
        stem: "imagenet" (7x7 convolution of stride 2 and max-pooling) or "cifar" (3x3 of stride 1, no pooling).
        width: channels of the first stage; each further stage doubles them.
        activation: as in `mlp`.

    Shapes: (batch, channels, height, width) -> (batch, classes), any height and width.

    Reference: He et al., "Deep Residual Learning for Image Recognition", 2016, arXiv:1512.03385, Table 1.

    >>> sum(p.numel() for p in resnet18().parameters())
    11689512
    """
    parts = _Parts(activation=ACTIVATIONS[activation])
    lengths = [2, 2, 2, 2]
    return he(_resnet(lengths, parts.block, width=width, classes=classes, channels=channels, parts=parts, stem=stem))


def _bottlenecks(
    *, classes: int, channels: int, stem: Stem, width: int, expansion: int, groups: int, activation: Activation
) -> nn.Module:
    """Return 50 layers of bottlenecks: inner convolutions `width` wide at first, outputs `expansion` times that."""
    parts, wide = _Parts(activation=ACTIVATIONS[activation]), width * expansion

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        inner = outputs // expansion
        return Block(inputs, [(inner, 1, 1, 1), (inner, 3, stride, groups), (outputs, 1, 1, 1)], parts)

    sizes = {"width": wide, "stem_width": wide // 4, "classes": classes, "channels": channels}
    return he(_resnet([3, 4, 6, 3], block, **sizes, parts=parts, stem=stem))


@zoo
def resnet50(
    *, classes: int = 1000, channels: int = 3, stem: Stem = "imagenet", width: int = 64, activation: Activation = "relu"
) -> nn.Module:
    """Return ResNet-50: bottleneck blocks that give four times the width of their 3x3 convolution.

    The arguments are those of `resnet18`.

    Reference: He et al., "Deep Residual Learning for Image Recognition", 2016, arXiv:1512.03385, Table 1.

    Differs from the paper: the stride is on the 3x3 convolution of a block, as in common implementations.
    """
    return _bottlenecks(expansion=4, groups=1, **locals())


@zoo
def resnext50(
    *,
    classes: int = 1000,
    channels: int = 3,
    stem: Stem = "imagenet",
    groups: int = 32,
    group_width: int = 4,
    activation: Activation = "relu",
) -> nn.Module:
    """Return ResNeXt-50 (32x4d): ResNet-50 with grouped 3x3 convolutions.

    Args not listed are those of `resnet18`.

    Args:
        groups: groups of the 3x3 convolutions, the paper's cardinality C.
        group_width: channels of one group in the first stage, the paper's d.

    Reference: Xie et al., "Aggregated Residual Transformations for Deep Neural Networks", 2017, arXiv:1611.05431,
    Table 1.
    """
    width = groups * group_width
    return _bottlenecks(
        classes=classes, channels=channels, stem=stem, width=width, expansion=2, groups=groups, activation=activation
    )


class WideBlock(nn.Module):
    """BN, ReLU, 3x3 convolution, twice; the shortcut is the identity or a 1x1 convolution of the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = None if stride == 1 and inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return F(x) + x, or F(x) + projection(ReLU(BN(x)))."""
        activated = self.relu1(self.bn1(x))
        y = self.conv1(activated)
        y = self.conv2(self.dropout(self.relu2(self.bn2(y))))
        return y + (x if self.shortcut is None else self.shortcut(activated))


@zoo
def wide_resnet(
    depth: int = 28, width: int = 10, *, classes: int = 10, channels: int = 3, dropout: float = 0.0
) -> nn.Module:
    """Return a wide ResNet for small images; classes, channels and shapes as in `resnet_cifar`.

    Args:
        depth: 6n+4 layers with n blocks in each of the three stages: 16, 22, 28, 40.
        width: factor on the 16, 32 and 64 channels of the stages, the paper's k.
        dropout: rate between the two convolutions of a block.

    Reference: Zagoruyko & Komodakis, "Wide Residual Networks", 2016, arXiv:1605.07146, Table 1.
    """
    length, widths = blocks(depth, layers=6, extra=4), [16 * width, 32 * width, 64 * width]
    layers: Layers = OrderedDict(conv1=nn.Conv2d(channels, 16, 3, padding=1, bias=False))
    layers |= _stages(
        lambda inputs, outputs, stride: WideBlock(inputs, outputs, stride, dropout), 16, [length] * 3, widths
    )
    layers |= {"bn_final": nn.BatchNorm2d(widths[-1]), "relu_final": nn.ReLU()}
    return he(nn.Sequential(layers | _ending(widths[-1], classes)))
