"""Reference posteriors by NUTS: predictive samples of small MLPs, to measure cheap ensembles against.

The network is `choral.models.mlp` (flat inputs, ReLU) with an independent N(0, prior_std^2) prior on every parameter,
and the likelihood one of choral's, so that an anchored ensemble with the same prior aims at the same posterior. The
sampler is numpyro's NUTS on all the data at once.

    python benchmarks/reference_posterior.py uci --name yacht --split 0 --cache ~/reference
    python benchmarks/reference_posterior.py digits --cache ~/reference
    python benchmarks/reference_posterior.py check --cache ~/reference     (a linear model, against its exact posterior)

UCI needs CHORAL_DATA (see datasets.py). Each problem has a folder in the cache, named after its settings; every chain
writes its state there after each chunk of samples, so the same command goes on where it was stopped, and asking for
more samples later only draws the missing ones. `reference.npz` in it holds, for all chains together:

    regression: mean, variance (sample, test) in standardized units, y_mean, y_std to undo them, x_test, y_test
    digits:     probs (test, class) the predictive, logits (sample, test, class), x_test, y_test
    both:       settings (JSON), r_hat and ess of the function values (test, output), accepted, divergences
"""

import argparse
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

Weights = dict[str, jax.Array]


@dataclass(frozen=True)
class Settings:
    """What decides the posterior and the sampler; a change of any gives another folder."""

    problem: str
    hidden: tuple[int, ...]
    prior_std: float
    likelihood: str  # 'fixed' or 'learned' variance, or 'categorical'
    noise_std: float
    warmup: int
    max_tree_depth: int
    seed: int

    @property
    def folder(self) -> str:
        """Return a readable name that ends in a hash of all settings."""
        return f"{self.problem}-{hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:10]}"


@dataclass(frozen=True)
class Data:
    """Training and test data as the network reads them."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    y_mean: float = 0.0
    y_std: float = 1.0


def standardized(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> Data:
    """Return the data with features and target centered and scaled by the training set."""
    center, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    y_mean, y_std = float(y.mean()), float(y.std())
    return Data((x - center) / scale, (y - y_mean) / y_std, (x_test - center) / scale, y_test, y_mean, y_std)


def uci(name: str, split: int) -> Data:
    """Return one gap split of a UCI set."""
    from datasets import loaders

    return standardized(*loaders().uci_split(name, "gap", split))


def digits() -> Data:
    """Return scikit-learn's digits, scaled to 0..1: 1,437 to train on and 360 to test on, in a fixed shuffle."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(x))
    train, test = order[:1437], order[1437:]
    return Data(x[train] / 16, y[train], x[test] / 16, y[test])


def linear(points: int = 30, features: int = 4) -> Data:
    """Return a linear problem, not standardized, whose posterior is known exactly."""
    draw = np.random.RandomState(1)
    x, x_test = draw.randn(points, features), draw.randn(20, features)
    y = x @ np.linspace(-1, 1, features) + 0.3 * draw.randn(points)
    return Data(x, y, x_test, np.zeros(20))


def network(weights: Weights, x: jax.Array) -> jax.Array:
    """Return the outputs of a ReLU perceptron, (batch, output)."""
    layers = len(weights) // 2
    for i in range(layers):
        x = x @ weights[f"weight{i}"] + weights[f"bias{i}"]
        if i < layers - 1:
            x = jax.nn.relu(x)
    return x


def first_weights(key: jax.Array, sizes: tuple[int, ...]) -> Weights:
    """Return weights at a usual scale, to start a chain from."""
    weights = {}
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        key, part = jax.random.split(key)
        weights[f"weight{i}"] = jax.random.normal(part, (inputs, outputs)) / inputs**0.5
        weights[f"bias{i}"] = jnp.zeros(outputs)
    return weights


def moments(outputs: jax.Array, settings: Settings) -> tuple[jax.Array, jax.Array]:
    """Return predictive mean and variance, as `FixedGaussian` and `LearnedGaussian` read network outputs."""
    mean = outputs[..., 0]
    if settings.likelihood == "fixed":
        return mean, jnp.full_like(mean, settings.noise_std**2)
    return mean, jax.nn.softplus(outputs[..., 1]) + 1e-6


def energy(weights: Weights, x: jax.Array, y: jax.Array, settings: Settings) -> jax.Array:
    """Return the negative log posterior up to a constant, summed over all points."""
    outputs = network(weights, x)
    if settings.likelihood == "categorical":
        fit = -jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1).sum()
    else:
        mean, variance = moments(outputs, settings)
        fit = 0.5 * ((y - mean) ** 2 / variance + jnp.log(variance)).sum()
    flat, _ = ravel_pytree(weights)
    return fit + 0.5 * (flat**2).sum() / settings.prior_std**2


class Chain:
    """One NUTS chain with a file of its own: warm up once, then draw chunks and go on from the last."""

    def __init__(self, settings: Settings, data: Data, index: int, folder: Path):
        self.settings, self.data, self.index = settings, data, index
        self.path = folder / f"chain{index}.npz"
        self.x, self.y = jnp.asarray(data.x, jnp.float32), jnp.asarray(data.y)
        self.y = self.y if settings.likelihood == "categorical" else self.y.astype(jnp.float32)
        self.x_test = jnp.asarray(data.x_test, jnp.float32)
        outputs = {"categorical": int(np.max(data.y)) + 1, "fixed": 1, "learned": 2}[settings.likelihood]
        self.key = jax.random.PRNGKey(settings.seed * 1000 + index)
        self.first = first_weights(self.key, (data.x.shape[1], *settings.hidden, outputs))
        _, self.unravel = ravel_pytree(self.first)
        self.outputs = outputs
        self.samplers: dict[tuple[int, int], MCMC] = {}
        self.potential = partial(energy, x=self.x, y=self.y, settings=settings)
        self.state: dict[str, np.ndarray] = dict(np.load(self.path)) if self.path.exists() else {}

    def warm_up(self) -> None:
        """Tune step size and a diagonal mass matrix, and keep the last point."""
        kernel = NUTS(potential_fn=self.potential, max_tree_depth=self.settings.max_tree_depth)
        mcmc = MCMC(kernel, num_warmup=self.settings.warmup, num_samples=1, progress_bar=False)
        mcmc.warmup(self.key, init_params=self.first)
        last = mcmc.post_warmup_state
        self.state = {
            "z": np.asarray(ravel_pytree(last.z)[0]),
            "step_size": np.asarray(last.adapt_state.step_size),
            "inverse_mass": np.asarray(last.adapt_state.inverse_mass_matrix),
            "outputs": np.zeros((0, len(self.x_test), self.outputs), np.float32),
            "accepted": np.zeros(0, np.float32),
            "divergences": np.zeros(0, np.int32),
            "steps": np.zeros(0, np.int32),
        }
        self._save()

    def draw(self, count: int, thin: int) -> None:
        """Draw `count` more samples, each `thin` steps of the sampler apart, with the tuned settings."""
        done = len(self.state["outputs"])
        if (count, thin) not in self.samplers:  # one object for all chunks of a size: it compiles once
            kernel = NUTS(
                potential_fn=self.potential,
                step_size=float(self.state["step_size"]),
                inverse_mass_matrix=jnp.asarray(self.state["inverse_mass"]),
                adapt_step_size=False,
                adapt_mass_matrix=False,
                max_tree_depth=self.settings.max_tree_depth,
            )
            options = {"num_samples": count * thin, "thinning": thin, "progress_bar": False}
            self.samplers[count, thin] = MCMC(kernel, num_warmup=0, **options)
        mcmc = self.samplers[count, thin]
        mcmc.run(
            jax.random.fold_in(self.key, 1 + done),
            init_params=self.unravel(jnp.asarray(self.state["z"])),
            extra_fields=("accept_prob", "diverging", "num_steps"),
        )
        outputs = jax.vmap(lambda w: network(w, self.x_test))(mcmc.get_samples())
        extra = mcmc.get_extra_fields()
        self.state["z"] = np.asarray(ravel_pytree(mcmc.last_state.z)[0])
        for name, new in (
            ("outputs", outputs),
            ("accepted", extra["accept_prob"]),
            ("divergences", extra["diverging"].astype(jnp.int32)),
            ("steps", extra["num_steps"]),
        ):
            self.state[name] = np.concatenate([self.state[name], np.asarray(new, self.state[name].dtype)])
        self._save()

    def _save(self) -> None:
        part = self.path.with_suffix(".part.npz")
        np.savez(part, **self.state)  # type: ignore[arg-type]  # numpy's stub takes a dict for its flag
        os.replace(part, self.path)


def run(settings: Settings, data: Data, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Bring every chain to the wanted number of samples and return all of them together with diagnostics."""
    folder = Path(options.cache).expanduser() / settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(asdict(settings), indent=1) + "\n")
    chains = [Chain(settings, data, index, folder) for index in range(options.chains)]
    for chain in chains:
        if not chain.state:
            start = time.perf_counter()
            chain.warm_up()
            print(
                f"chain {chain.index}: warm-up {time.perf_counter() - start:.1f} s, "
                f"step size {float(chain.state['step_size']):.2e}"
            )
        while (missing := options.samples - len(chain.state["outputs"])) > 0:
            start = time.perf_counter()
            count = min(options.chunk, missing)
            chain.draw(count, options.thin)
            seconds = time.perf_counter() - start
            print(
                f"chain {chain.index}: {len(chain.state['outputs'])}/{options.samples} samples, "
                f"{seconds / count:.3f} s a sample, {chain.state['steps'][-count:].mean():.0f} leapfrog steps, "
                f"accepted {chain.state['accepted'][-count:].mean():.2f}, "
                f"diverged {int(chain.state['divergences'][-count:].sum())}",
                flush=True,
            )
    outputs = np.stack([chain.state["outputs"][: options.samples] for chain in chains])  # (chain, sample, test, output)
    result: dict[str, Any] = {
        "settings": np.array(json.dumps(asdict(settings))),
        "r_hat": split_gelman_rubin(outputs),
        "ess": effective_sample_size(outputs),
        "accepted": np.array([chain.state["accepted"].mean() for chain in chains]),
        "divergences": np.array([chain.state["divergences"].sum() for chain in chains]),
        "x_test": data.x_test,
        "y_test": data.y_test,
    }
    samples = outputs.reshape(-1, *outputs.shape[2:])
    if settings.likelihood == "categorical":
        result["logits"] = samples
        result["probs"] = np.asarray(jax.nn.softmax(jnp.asarray(samples)).mean(0))
    else:
        mean, variance = moments(jnp.asarray(samples), settings)
        result |= {"mean": np.asarray(mean), "variance": np.asarray(variance)}
        result |= {"y_mean": np.array(data.y_mean), "y_std": np.array(data.y_std)}
    np.savez_compressed(folder / "reference.npz", **result)
    print(
        f"{len(samples)} samples, split R-hat median {np.median(result['r_hat']):.3f}, "
        f"largest {result['r_hat'].max():.3f}; effective samples median {np.median(result['ess']):.0f}, "
        f"smallest {result['ess'].min():.0f}"
    )
    print(folder / "reference.npz")
    return result


def summarize(result: dict[str, np.ndarray], data: Data, settings: Settings) -> None:
    """Print how well the reference predicts, as a check of sanity."""
    if settings.likelihood == "categorical":
        probs = result["probs"]
        accuracy = (probs.argmax(1) == data.y_test).mean()
        nll = -np.log(probs[np.arange(len(probs)), data.y_test]).mean()
        print(f"test accuracy {accuracy:.4f}, NLL {nll:.4f}")
    else:
        rmse = np.sqrt(((result["mean"].mean(0) * data.y_std + data.y_mean - data.y_test) ** 2).mean())
        print(f"test RMSE {rmse:.3f} in raw units; std of the function {result['mean'].std(0).mean():.3f} standardized")


def compare_with_exact(result: dict[str, np.ndarray], data: Data, settings: Settings) -> None:
    """Print how far the sampled function values are from the exact posterior of a linear model."""
    ones = np.ones((len(data.x), 1))
    design, test = np.hstack([data.x, ones]), np.hstack([data.x_test, np.ones((len(data.x_test), 1))])
    precision = design.T @ design / settings.noise_std**2 + np.eye(design.shape[1]) / settings.prior_std**2
    covariance = np.linalg.inv(precision)
    mean = test @ covariance @ design.T @ data.y / settings.noise_std**2
    std = np.sqrt(np.einsum("ti,ij,tj->t", test, covariance, test))
    deviation = np.abs(result["mean"].mean(0) - mean) / (std / np.sqrt(result["ess"][:, 0]))
    ratio = result["mean"].std(0) / std
    print(f"means: largest deviation {deviation.max():.2f} standard errors")
    print(f"standard deviations: {ratio.min():.3f} to {ratio.max():.3f} of the exact ones")


def main() -> None:
    parser = argparse.ArgumentParser(description="Sample a reference posterior with NUTS.")
    parser.add_argument("problem", choices=("uci", "digits", "check"))
    parser.add_argument("--cache", required=True, help="folder for chains and references, outside the repository")
    parser.add_argument("--name", default="yacht", help="UCI set")
    parser.add_argument("--split", type=int, default=0, help="gap split")
    parser.add_argument("--hidden", type=int, nargs="*", default=[50, 50])
    parser.add_argument(
        "--prior-std", type=float, help="default: sqrt(1/30) for UCI, sqrt(0.2) for digits, 1 for check"
    )
    parser.add_argument("--likelihood", choices=("fixed", "learned"), default="fixed", help="of a regression")
    parser.add_argument("--noise-std", type=float, default=0.1, help="of 'fixed', in standardized units")
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--samples", type=int, default=500, help="kept samples of each chain")
    parser.add_argument("--thin", type=int, default=1, help="sampler steps for each kept sample")
    parser.add_argument("--chunk", type=int, default=50, help="samples between two savings")
    parser.add_argument("--max-tree-depth", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    hidden, likelihood, noise = tuple(options.hidden), options.likelihood, options.noise_std
    if options.problem == "uci":
        name, data, prior = f"uci-{options.name}-gap{options.split}", uci(options.name, options.split), (1 / 30) ** 0.5
    elif options.problem == "digits":
        name, data, prior, likelihood, noise = "digits", digits(), 0.2**0.5, "categorical", 0.0
    else:
        name, data, prior, hidden, likelihood, noise = "linear", linear(), 1.0, (), "fixed", 0.3
    settings = Settings(
        problem=name,
        hidden=hidden,
        prior_std=prior if options.prior_std is None else options.prior_std,
        likelihood=likelihood,
        noise_std=noise,
        warmup=options.warmup,
        max_tree_depth=options.max_tree_depth,
        seed=options.seed,
    )
    result = run(settings, data, options)
    if options.problem == "check":
        compare_with_exact(result, data, settings)
    else:
        summarize(result, data, settings)


if __name__ == "__main__":
    main()
