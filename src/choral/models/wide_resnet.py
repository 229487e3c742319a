"""Wide residual networks, which normalize before they convolve."""

from collections import OrderedDict

from torch import Tensor, nn

from choral.models.spec import blocks, count, he, rate, zoo


class WideBlock(nn.Module):
    """BN, ReLU, 3x3 convolution, twice; the shortcut is the identity or a 1x1 convolution of the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
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
    """Return a wide ResNet for small images.

    Args:
        depth: 6n+4 layers with n blocks in each of the three stages: 16, 22, 28, 40.
        width: factor on the 16, 32 and 64 channels of the stages, the paper's k.
        classes: number of classes.
        channels: channels of the images.
        dropout: rate between the two convolutions of a block.

    Shapes: (batch, channels, height, width) -> (batch, classes), any height and width.

    Reference: Zagoruyko & Komodakis, "Wide Residual Networks", 2016, arXiv:1605.07146, Table 1.
    """
    length = blocks("depth", depth, layers=6, extra=4)
    count("width", width)
    rate("dropout", dropout)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(count("channels", channels), 16, 3, padding=1, bias=False)
    )
    inputs = 16
    for i, base in enumerate((16, 32, 64), start=1):
        stage = nn.Sequential()
        for j in range(length):
            stage.append(WideBlock(inputs, base * width, 2 if i > 1 and j == 0 else 1, dropout))
            inputs = base * width
        layers[f"layer{i}"] = stage
    layers["bn_final"] = nn.BatchNorm2d(inputs)
    layers["relu_final"] = nn.ReLU()
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(inputs, count("classes", classes))
    network = nn.Sequential(layers)
    he(network)
    return network
