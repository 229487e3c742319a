"""Networks as their authors publish them, under ten methods: works, refused in one sentence, or an error.

    pip install transformers pytorchcv vit-pytorch einops monai x-transformers loguru einx rtdl_revisiting_models
    python benchmarks/networks.py [--networks bert vit] [--methods packed bnn] [--more]

Packages that depend on torchvision are installed with `--no-deps`. Networks are small configurations with random weights, trained for one or
two epochs on 24 rows: images of 32 pixels, sequences of 12 tokens, tables of 10 columns. A pair works if training gives
finite outputs, every member taken out of the ensemble computes what it computes inside, and rows asked alone are
answered as in a batch. `--more` runs networks that were not looked at while choral was changed. Writes benchmarks/results/networks.json.
"""

import argparse
import contextlib
import importlib.util
import io
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import choral
from choral.base import batches
from choral.recipes import make
from choral.recipes.training import Training
from machine import measured, write

METHODS: dict[str, dict[str, Any]] = {
    "single": {"epochs": 1},
    "deep_ensemble": {"epochs": 2, "members": 2},
    "packed": {"epochs": 1, "members": 4},
    "batch_ensemble": {"epochs": 1, "members": 2},
    "treenet": {"epochs": 1, "members": 2},
    "masksembles": {"epochs": 1, "members": 2},
    "prune_and_tune": {"epochs": 3, "members": 2},
    "mc_dropout": {"epochs": 1, "draws": 2},
    "bnn": {"epochs": 1, "draws": 2},
    "sequential_anchored": {"epochs": 2, "members": 2},
}
ROWS, CLASSES = 24, 10
TRAINING = Training(lr=0.005, batch_size=12)


def images(channels: int = 3, size: int = 32) -> Any:
    """Return random images and classes."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, channels, size, size, generator=g), torch.arange(ROWS) % CLASSES


def tokens() -> Any:
    """Return random sequences of tokens and classes."""
    g = torch.Generator().manual_seed(0)
    return torch.randint(3, 40, (ROWS, 12), generator=g), torch.arange(ROWS) % CLASSES


def sentences() -> Any:
    """Return tokens with the mask of their lengths, as transformers reads them."""
    x, y = tokens()
    lengths = torch.arange(ROWS) % 5 + 8
    return {"input_ids": x, "attention_mask": (torch.arange(12) < lengths[:, None]).long()}, y


def pixels() -> Any:
    """Return images by the name transformers gives them."""
    x, y = images()
    return {"pixel_values": x}, y


def table() -> Any:
    """Return random rows and classes."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 10, generator=g), torch.arange(ROWS) % CLASSES


SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def bert() -> nn.Module:
    """BERT of transformers."""
    import transformers

    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=16, num_labels=CLASSES, **SMALL)
    return transformers.BertForSequenceClassification(config)


def distilbert() -> nn.Module:
    """DistilBERT of transformers."""
    import transformers

    config = transformers.DistilBertConfig(
        vocab_size=40, max_position_embeddings=16, dim=32, n_layers=2, n_heads=4, hidden_dim=48, num_labels=CLASSES
    )
    return transformers.DistilBertForSequenceClassification(config)


def gpt2() -> nn.Module:
    """GPT-2 of transformers, whose linear maps are Conv1D."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=4, num_labels=CLASSES, pad_token_id=0
    )
    return transformers.GPT2ForSequenceClassification(config)


def vit() -> nn.Module:
    """ViT of transformers."""
    import transformers

    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=CLASSES, **SMALL)
    return transformers.ViTForImageClassification(config)


def convnext() -> nn.Module:
    """ConvNeXt of transformers."""
    import transformers

    config = transformers.ConvNextConfig(
        hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], patch_size=2, num_labels=CLASSES
    )
    return transformers.ConvNextForImageClassification(config)


class T5Classifier(nn.Module):
    """The encoder of T5, a mean over time and a linear map."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.T5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
        self.encoder = transformers.T5EncoderModel(config)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1)
        result: Tensor = self.head((hidden * weight).sum(1) / weight.sum(1))
        return result


class TutorialCNN(nn.Module):
    """The network of torch's CIFAR-10 tutorial, with the `view` of its earlier editions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        result: Tensor = self.fc3(x)
        return result


class TutorialLSTM(nn.Module):
    """An embedding, a bidirectional LSTM with the batch first and a linear map on its last states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.fc = nn.Linear(48, CLASSES)
        self.dropout = nn.Dropout(0.2)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits."""
        _, (hidden, _) = self.lstm(self.dropout(self.embedding(text)))
        result: Tensor = self.fc(self.dropout(torch.cat((hidden[-2], hidden[-1]), dim=1)))
        return result


class CharRNN(nn.Module):
    """The network of torch's tutorial on names: linear maps called step by step over one-hot letters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_size = 32
        self.i2h = nn.Linear(40 + 32, 32)
        self.i2o = nn.Linear(40 + 32, CLASSES)

    def forward(self, line: Tensor) -> Tensor:
        """Return log-probabilities after the last letter."""
        letters = F.one_hot(line, 40).float()
        hidden = torch.zeros(line.shape[0], self.hidden_size)
        for t in range(letters.shape[1]):
            combined = torch.cat((letters[:, t], hidden), 1)
            hidden = torch.tanh(self.i2h(combined))
            output = self.i2o(combined)
        return F.log_softmax(output, dim=1)


class PositionalEncoding(nn.Module):
    """Sines and cosines of the position, as in torch's tutorial: (time, 1, feature)."""

    pe: Tensor

    def __init__(self, d_model: int, dropout: float = 0.1, max_len: int = 64):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        rate = torch.exp(torch.arange(0, d_model, 2) * (-torch.log(torch.tensor(10000.0)) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * rate)
        pe[:, 0, 1::2] = torch.cos(position * rate)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (time, batch, feature) with positions."""
        result: Tensor = self.dropout(x + self.pe[: x.size(0)])
        return result


class TutorialTransformer(nn.Module):
    """The encoder of torch's language-model tutorial, which computes (time, batch, feature), with a class for each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_encoder = PositionalEncoding(32)
        self.transformer_encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, 0.1), 2)
        self.embedding = nn.Embedding(40, 32)
        self.linear = nn.Linear(32, CLASSES)

    def forward(self, src: Tensor) -> Tensor:
        """Return logits."""
        x = self.pos_encoder(self.embedding(src.t()) * 32**0.5)
        result: Tensor = self.linear(self.transformer_encoder(x).mean(0))
        return result


def resnet20() -> nn.Module:
    """ResNet-20 of pytorchcv."""
    from pytorchcv.models.resnet_cifar import resnet20_cifar10

    return resnet20_cifar10(num_classes=CLASSES)


def mobilenetv2() -> nn.Module:
    """MobileNetV2 of transformers at a quarter of its width."""
    import transformers

    config = transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=32, num_labels=CLASSES)
    return transformers.MobileNetV2ForImageClassification(config)


def nin() -> nn.Module:
    """Network in network of pytorchcv."""
    from pytorchcv.models.nin_cifar import nin_cifar10

    return nin_cifar10(num_classes=CLASSES)


def densenet40() -> nn.Module:
    """DenseNet-40 (growth 12, bottlenecks) of pytorchcv."""
    from pytorchcv.models.densenet_cifar import densenet40_k12_bc_cifar10

    return densenet40_k12_bc_cifar10(num_classes=CLASSES)


def seresnet20() -> nn.Module:
    """SE-ResNet-20 of pytorchcv."""
    from pytorchcv.models.seresnet_cifar import seresnet20_cifar10

    return seresnet20_cifar10(num_classes=CLASSES)


def without_package(package: str, module: str) -> Any:
    """Return a module of a package whose `__init__` needs torchvision."""
    found = importlib.util.find_spec(package)
    places = (found and found.submodule_search_locations) or []
    code = (Path(places[0]) / f"{module}.py").read_text()
    made: dict[str, Any] = {"__name__": f"{package}_{module}"}
    exec(compile(code, module, "exec"), made)
    return SimpleNamespace(**made)


def simple_vit() -> nn.Module:
    """SimpleViT of vit-pytorch."""
    return without_package("vit_pytorch", "simple_vit").SimpleViT(
        image_size=32, patch_size=8, num_classes=CLASSES, dim=32, depth=2, heads=4, mlp_dim=48
    )


def cct() -> nn.Module:
    """Compact convolutional transformer of vit-pytorch."""
    return without_package("vit_pytorch", "cct").CCT(
        img_size=32, embedding_dim=32, n_conv_layers=1, kernel_size=7, stride=2, padding=3, pooling_kernel_size=3,
        pooling_stride=2, pooling_padding=1, num_layers=2, num_heads=4, mlp_ratio=2.0, num_classes=CLASSES,
        positional_embedding="learnable",
    )  # fmt: skip


def monai_densenet() -> nn.Module:
    """DenseNet of monai for images of two dimensions."""
    from monai.networks.nets import DenseNet

    return DenseNet(2, 3, CLASSES, init_features=16, growth_rate=8, block_config=(2, 2))


def ft_transformer() -> nn.Module:
    """FT-Transformer of rtdl, for tables."""
    from rtdl_revisiting_models import FTTransformer

    class Table(FTTransformer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x, None)

    return Table(
        n_cont_features=10, cat_cardinalities=[], d_out=CLASSES, n_blocks=2, d_block=32, attention_n_heads=4,
        attention_dropout=0.1, ffn_d_hidden=48, ffn_d_hidden_multiplier=None, ffn_dropout=0.1, residual_dropout=0.0,
    )  # fmt: skip


def x_transformer() -> nn.Module:
    """Encoder of x-transformers with a class token."""
    from x_transformers import Encoder, ViTransformerWrapper

    return ViTransformerWrapper(
        image_size=32, patch_size=8, num_classes=CLASSES, attn_layers=Encoder(dim=32, depth=2, heads=4)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "transformers BERT": (bert, sentences),
    "transformers DistilBERT": (distilbert, sentences),
    "transformers GPT-2": (gpt2, sentences),
    "transformers ViT": (vit, pixels),
    "transformers ConvNeXt": (convnext, pixels),
    "transformers T5 encoder": (T5Classifier, sentences),
    "torch tutorial CNN": (TutorialCNN, images),
    "torch LSTM": (TutorialLSTM, tokens),
    "torch tutorial char-RNN": (CharRNN, tokens),
    "torch tutorial transformer": (TutorialTransformer, tokens),
    "pytorchcv ResNet-20": (resnet20, images),
    "pytorchcv SE-ResNet-20": (seresnet20, images),
    "transformers MobileNetV2": (mobilenetv2, pixels),
    "pytorchcv NIN": (nin, images),
    "pytorchcv DenseNet-40": (densenet40, images),
    "vit-pytorch SimpleViT": (simple_vit, images),
    "vit-pytorch CCT": (cct, images),
    "monai DenseNet": (monai_densenet, images),
    "rtdl FT-Transformer": (ft_transformer, table),
    "x-transformers ViT": (x_transformer, images),
}


def roberta() -> nn.Module:
    """RoBERTa of transformers."""
    import transformers

    config = transformers.RobertaConfig(vocab_size=40, max_position_embeddings=20, num_labels=CLASSES, **SMALL)
    return transformers.RobertaForSequenceClassification(config)


def albert() -> nn.Module:
    """ALBERT of transformers, whose layers share their weights."""
    import transformers

    config = transformers.AlbertConfig(
        vocab_size=40, max_position_embeddings=16, embedding_size=16, num_labels=CLASSES, **SMALL
    )
    return transformers.AlbertForSequenceClassification(config)


def electra() -> nn.Module:
    """ELECTRA of transformers."""
    import transformers

    config = transformers.ElectraConfig(
        vocab_size=40, max_position_embeddings=16, embedding_size=16, num_labels=CLASSES, **SMALL
    )
    return transformers.ElectraForSequenceClassification(config)


def resnet_hf() -> nn.Module:
    """ResNet of transformers."""
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=CLASSES
    )
    return transformers.ResNetForImageClassification(config)


def ror() -> nn.Module:
    """RoR-3-56 of pytorchcv."""
    from pytorchcv.models.ror_cifar import ror3_56_cifar10

    return ror3_56_cifar10(num_classes=CLASSES)


def preresnet() -> nn.Module:
    """Pre-activation ResNet-20 of pytorchcv."""
    from pytorchcv.models.preresnet_cifar import preresnet20_cifar10

    return preresnet20_cifar10(num_classes=CLASSES)


def cait() -> nn.Module:
    """CaiT of vit-pytorch."""
    return without_package("vit_pytorch", "cait").CaiT(
        image_size=32, patch_size=8, num_classes=CLASSES, dim=32, depth=2, cls_depth=1, heads=4, mlp_dim=48
    )


def monai_senet() -> nn.Module:
    """SE-ResNet-50 of monai."""
    from monai.networks.nets import SEResNet50

    return SEResNet50(spatial_dims=2, in_channels=3, num_classes=CLASSES, layers=(1, 1, 1, 1))


class GRUFirst(nn.Module):
    """A GRU with time first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru, self.out = nn.Embedding(40, 16), nn.GRU(16, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        result: Tensor = self.out(self.gru(self.embedding(x.t()))[0][-1])
        return result


MORE: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "transformers RoBERTa": (roberta, sentences),
    "transformers ALBERT": (albert, sentences),
    "transformers ELECTRA": (electra, sentences),
    "transformers ResNet": (resnet_hf, pixels),
    "pytorchcv RoR-3-56": (ror, images),
    "pytorchcv PreResNet-20": (preresnet, images),
    "vit-pytorch CaiT": (cait, images),
    "monai SE-ResNet-50": (monai_senet, images),
    "torch GRU, time first": (GRUFirst, tokens),
}


def tried(build: Callable[[], nn.Module], data: Any, method: str) -> str:
    """Return what becomes of a pair: 'works', or what is wrong in one sentence."""
    x, y = data
    recipe = make(method, training=TRAINING, **METHODS[method])
    with torch.no_grad():
        network = build().eval()
        plain = network(**x) if isinstance(x, dict) else network(x)
    output = None if isinstance(plain, Tensor) else "logits"
    try:
        ensemble = choral.fit(build, (x, y), recipe, output=output, compute=choral.Compute(executor="sequential"))
    except choral.ChoralError as error:
        return f"refused: {error}"
    except Exception as error:  # the finding
        return f"error: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    outputs = ensemble.outputs(x)
    if not bool(outputs.isfinite().all()):
        return "wrong: outputs are not finite"
    some = batches.part(x, slice(5, 7))
    if not torch.allclose(ensemble.outputs(some), outputs[:, 5:7], rtol=1e-3, atol=1e-4):
        gap = float((ensemble.outputs(some) - outputs[:, 5:7]).abs().max())
        return f"wrong: rows alone are not those in the batch ({gap:.1e})"
    if ensemble.recipe.structure.draws > 1:
        return "works"
    for i in range(ensemble.members):
        member = ensemble.member(i)
        with torch.no_grad():
            found = member(**x) if isinstance(x, dict) else member(x)
        found = found if isinstance(found, Tensor) else found.logits
        if not torch.allclose(found, outputs[i], rtol=1e-3, atol=1e-4):
            return f"wrong: member {i} alone is not the one in the ensemble ({float((found - outputs[i]).abs().max()):.1e})"
    return "works"


def main() -> None:
    """Try every network with every method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", help="parts of names")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--more", action="store_true", help="other networks, which are not written down")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = MORE if options.more else NETWORKS
    chosen = [n for n in known if not options.networks or any(part.lower() in n.lower() for part in options.networks)]
    found: dict[str, Any] = measured("networks").get("pairs", {})
    for name in chosen:
        build, data = known[name]
        row = {} if options.more else found.setdefault(name, {})
        for method in options.methods:
            start = time.perf_counter()
            with contextlib.redirect_stderr(io.StringIO()):
                row[method] = tried(build, data(), method)
            print(f"{name:28} {method:20} {time.perf_counter() - start:5.1f} s  {row[method][:400]}", flush=True)
    if not options.more:
        works = {m: sum(row.get(m) == "works" for row in found.values()) for m in METHODS}
        print(works, sum(works.values()), "of", len(NETWORKS) * len(METHODS))
        write("networks", {"pairs": found, "works": works, "rows": ROWS})


if __name__ == "__main__":
    main()
