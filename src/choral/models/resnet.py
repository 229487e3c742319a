"""Residual networks: the CIFAR family, its batch-free FRN variant, and the ImageNet family with ResNeXt.

Every network is one `nn.Sequential` of named stages. The ImageNet family uses torchvision's parameter names, so its
trained weights load with `load_state_dict`.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from choral.layers.frn import FilterResponseNorm
from choral.models.spec import activation_named, blocks, choice, count, he, zoo

STEMS = ("imagenet", "cifar")


@dataclass(frozen=True)
class _Parts:
    """What a family puts around its convolutions."""

    norm: Callable[[int], nn.Module] = nn.BatchNorm2d
    activation: Callable[[], nn.Module] = nn.ReLU
    bias: bool = False


def _shortcut(inputs: int, outputs: int, stride: int, parts: _Parts) -> nn.Module:
    """Return the identity, or a normalized 1x1 projection where the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=parts.bias), parts.norm(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, parts: _Parts):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=parts.bias)
        self.bn1 = parts.norm(outputs)
        self.act1 = parts.activation()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=parts.bias)
        self.bn2 = parts.norm(outputs)
        self.downsample = _shortcut(inputs, outputs, stride, parts)
        self.act2 = parts.activation()

    def forward(self, x: Tensor) -> Tensor:
        """Return activation(F(x) + shortcut(x))."""
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.act2(y + self.downsample(x))


class Bottleneck(nn.Module):
    """A 1x1, a (grouped) 3x3 and a 1x1 convolution with a shortcut around them; the 3x3 one has the stride."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int, parts: _Parts):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=parts.bias)
        self.bn1 = parts.norm(inner)
        self.act1 = parts.activation()
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=parts.bias)
        self.bn2 = parts.norm(inner)
        self.act2 = parts.activation()
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=parts.bias)
        self.bn3 = parts.norm(outputs)
        self.downsample = _shortcut(inputs, outputs, stride, parts)
        self.act3 = parts.activation()

    def forward(self, x: Tensor) -> Tensor:
        """Return activation(F(x) + shortcut(x))."""
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.act2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.act3(y + self.downsample(x))


def _resnet(
    stages: Sequence[int],
    *,
    block: Callable[[int, int, int], nn.Module],
    widths: Sequence[int],
    stem_width: int,
    stem: str,
    classes: int,
    channels: int,
    parts: _Parts,
) -> nn.Sequential:
    """Chain a stem, the stages (the first of stride 1, the others of stride 2), pooling and a linear layer."""
    large = stem == "imagenet"
    count("channels", channels)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if large:
        layers["conv1"] = nn.Conv2d(channels, stem_width, 7, stride=2, padding=3, bias=parts.bias)
    else:
        layers["conv1"] = nn.Conv2d(channels, stem_width, 3, padding=1, bias=parts.bias)
    layers["bn1"] = parts.norm(stem_width)
    layers["act1"] = parts.activation()
    if large:
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    inputs = stem_width
    for i, (length, width) in enumerate(zip(stages, widths), start=1):
        stage = nn.Sequential()
        for j in range(length):
            stage.append(block(inputs, width, 2 if i > 1 and j == 0 else 1))
            inputs = width
        layers[f"layer{i}"] = stage
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(inputs, count("classes", classes))
    return nn.Sequential(layers)


def _cifar(depth: int, *, classes: int, channels: int, width: int, parts: _Parts) -> nn.Sequential:
    length = blocks("depth", depth, layers=6, extra=2)
    count("width", width)
    return _resnet(
        [length] * 3,
        block=lambda inputs, outputs, stride: BasicBlock(inputs, outputs, stride, parts),
        widths=[width, 2 * width, 4 * width],
        stem_width=width,
        stem="cifar",
        classes=classes,
        channels=channels,
        parts=parts,
    )


@zoo
def resnet_cifar(
    depth: int = 20, *, classes: int = 10, channels: int = 3, width: int = 16, activation: str = "relu"
) -> nn.Module:
    """Return a ResNet for small images: three stages of basic blocks with 1x1 projection shortcuts.

    Args:
        depth: 6n+2 layers with n blocks in each stage: 20, 32, 44, 56, 110.
        classes: number of classes.
        channels: channels of the images.
        width: channels of the first stage; the others have twice and four times as many.
        activation: as in `mlp`; "silu" is that of the SeBayS authors' networks.

    Shapes: (batch, channels, height, width) -> (batch, classes), any height and width.

    Reference: He et al., "Deep Residual Learning for Image Recognition", 2016, arXiv:1512.03385, section 4.2.

    Differs from the paper: projection (option B) instead of zero-padded shortcuts (option A).

    >>> sum(p.numel() for p in resnet_cifar(20).parameters())
    272474
    """
    parts = _Parts(activation=activation_named(activation))
    network = _cifar(depth, classes=classes, channels=channels, width=width, parts=parts)
    he(network)
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
    network = _cifar(20, classes=classes, channels=channels, width=width, parts=parts)
    he(network, fan="fan_in", linear=True)
    return network


@zoo
def resnet18(
    *, classes: int = 1000, channels: int = 3, stem: str = "imagenet", width: int = 64, activation: str = "relu"
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
    choice("stem", stem, STEMS)
    parts = _Parts(activation=activation_named(activation))
    network = _resnet(
        [2, 2, 2, 2],
        block=lambda inputs, outputs, stride: BasicBlock(inputs, outputs, stride, parts),
        widths=[count("width", width) * 2**i for i in range(4)],
        stem_width=width,
        stem=stem,
        classes=classes,
        channels=channels,
        parts=parts,
    )
    he(network)
    return network


def _bottlenecks(
    *, classes: int, channels: int, stem: str, width: int, expansion: int, groups: int, activation: str
) -> nn.Module:
    """Return 50 layers of bottlenecks: inner convolutions `width` wide at first, outputs `expansion` times that."""
    choice("stem", stem, STEMS)
    parts = _Parts(activation=activation_named(activation))
    network = _resnet(
        [3, 4, 6, 3],
        block=lambda inputs, outputs, stride: Bottleneck(inputs, outputs // expansion, outputs, stride, groups, parts),
        widths=[width * expansion * 2**i for i in range(4)],
        stem_width=width * expansion // 4,
        stem=stem,
        classes=classes,
        channels=channels,
        parts=parts,
    )
    he(network)
    return network


@zoo
def resnet50(
    *, classes: int = 1000, channels: int = 3, stem: str = "imagenet", width: int = 64, activation: str = "relu"
) -> nn.Module:
    """Return ResNet-50: bottleneck blocks that give four times the width of their 3x3 convolution.

    The arguments are those of `resnet18`.

    Reference: He et al., "Deep Residual Learning for Image Recognition", 2016, arXiv:1512.03385, Table 1.

    Differs from the paper: the stride is on the 3x3 convolution of a block, as in common implementations.
    """
    count("width", width)
    return _bottlenecks(
        classes=classes, channels=channels, stem=stem, width=width, expansion=4, groups=1, activation=activation
    )


@zoo
def resnext50(
    *,
    classes: int = 1000,
    channels: int = 3,
    stem: str = "imagenet",
    groups: int = 32,
    group_width: int = 4,
    activation: str = "relu",
) -> nn.Module:
    """Return ResNeXt-50 (32x4d): ResNet-50 with grouped 3x3 convolutions.

    Args:
        classes: number of classes.
        channels: channels of the images.
        stem: as in `resnet18`.
        groups: groups of the 3x3 convolutions, the paper's cardinality C.
        group_width: channels of one group in the first stage, the paper's d.
        activation: as in `mlp`.

    Shapes: (batch, channels, height, width) -> (batch, classes), any height and width.

    Reference: Xie et al., "Aggregated Residual Transformations for Deep Neural Networks", 2017, arXiv:1611.05431,
    Table 1.
    """
    width = count("groups", groups) * count("group_width", group_width)
    return _bottlenecks(
        classes=classes, channels=channels, stem=stem, width=width, expansion=2, groups=groups, activation=activation
    )
