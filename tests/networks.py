"""Small networks with every kind of forward code a structure must cope with."""

import torch
import torch.nn.functional as F
from torch import nn

from choral import models
from choral.layers.frn import FilterResponseNorm


class Lenet(nn.Module):
    """Convolutions, pooling and a view, with layers registered one by one."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 2)
        self.fc1 = nn.Linear(16 * 4, 12)
        self.fc2 = nn.Linear(12, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        x = x.view(x.shape[0], -1)
        return self.fc2(F.relu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class Resnet(nn.Module):
    """Residual blocks with BatchNorm and a mean over pixels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.layer1 = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        return self.fc(self.layer1(self.stem(x)).mean([2, 3]))


class Vit(nn.Module):
    """Patches, a class token, positions, attention and LayerNorm."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(2, 16, 3, stride=3)
        self.token = nn.Parameter(torch.randn(1, 1, 16) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 5, 16) * 0.1)
        self.norm1 = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        y = self.norm1(x)
        x = x + self.attention(y.view_as(y), y, y)[0]  # around fused kernels, which vmap cannot map
        return self.head((x + self.mlp(self.norm2(x)))[:, 0])


class Concatenating(nn.Module):
    """Nested containers, concatenation and splitting of channels, group and instance norms, a depthwise convolution."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(4, 8)), nn.ReLU())
        self.left = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.PReLU(8))
        self.right = nn.ModuleDict({"a-b": nn.Conv2d(8, 16, 1)})
        self.join = nn.Conv2d(32, 16, 3, stride=2)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.norm = nn.InstanceNorm2d(8, affine=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        x = torch.cat([x, self.left(x), self.right["a-b"](x)], 1)
        x = self.norm(self.up(self.join(x)))
        a, b = x.chunk(2, 1)
        return self.last((a * torch.sigmoid(b)).mean((2, 3)))


class Text(nn.Module):
    """Embeddings, an LSTM and a linear head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


def chain():
    """Nested Sequentials of layers that treat channels apart, from convolutions to linear maps."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.PReLU(8)),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 2, groups=2, bias=False),
        nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU(), FilterResponseNorm(8)),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.LayerNorm(16),
        nn.Tanh(),
        nn.Linear(16, 3),
    )


def _images():
    return torch.randn(5, 2, 7, 7, generator=torch.Generator().manual_seed(5))


def _rows():
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(6))


NETWORKS = {
    "mlp": (lambda: models.mlp(6, 3, hidden=(16, 8)), _rows),
    "mlp_batch_norm": (lambda: models.mlp(6, 3, hidden=(16, 8), norm="batch"), _rows),
    "mlp_layer_norm": (lambda: models.mlp(6, 3, hidden=(16, 8), norm="layer", activation="tanh"), _rows),
    "regression": (lambda: models.mlp(6, 2, hidden=(10,)), _rows),
    "lenet": (Lenet, _images),
    "chain": (chain, _images),
    "resnet": (Resnet, _images),
    "vit": (Vit, _images),
    "concatenating": (Concatenating, _images),
}


def make(name):
    """Return the network in double precision, with norms away from their start, and a batch for it."""
    build, data = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = build().double()
        for module in network.modules():
            if hasattr(module, "running_mean") and module.running_mean is not None:
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2.0)
    return network, data().double()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)
