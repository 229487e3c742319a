"""A run folder and a saved file know the network, the data and the settings they were made with."""

import importlib
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import choral
from choral.base.errors import RunError
from choral.engine.identity import changes, fingerprint, initial
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=G)
Y = (X[:, 0] > 0).long()
QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=8)
ONE = make("single", budget=1, training=QUICK)


class Own(nn.Module):
    """A network of the user's own: what it does stands in its forward method."""

    def __init__(self, act=torch.relu, power=1.0, zeros=False):
        super().__init__()
        self.first, self.last, self.act, self.power = nn.Linear(3, 4), nn.Linear(4, 2), act, power
        if zeros:
            nn.init.zeros_(self.first.weight)

    def forward(self, x):
        return self.last(self.act(self.first(x)) ** self.power)


class Same(Own):
    def forward(self, x):
        return self.last(F.relu(self.first(x)))


Same.__qualname__ = "Edited"


class Edited(Own):
    def forward(self, x):
        return self.last(F.gelu(self.first(x)))


def sequential(act, rate=0.0):
    return lambda: nn.Sequential(nn.Linear(3, 4), act, nn.Dropout(rate), nn.Linear(4, 2))


def numpy_drawn(scale):
    def build():
        net = nn.Linear(3, 2)
        with torch.no_grad():
            net.weight.copy_(torch.as_tensor(np.random.normal(0, scale, (2, 3))))
        return net

    return build


def large(last):
    net = nn.Sequential(nn.Linear(3, 2000), nn.Linear(2000, 2))
    net[0].weight.data[-1, -1] = last
    return net


def shifted(by):
    net = Shifted(3, 2)
    net.shift.fill_(by)
    return net


def frozen(net):
    net.first.requires_grad_(False)
    return net


class Shifted(nn.Linear):
    def __init__(self, reads, gives):
        super().__init__(reads, gives)
        self.register_buffer("shift", torch.ones(2), persistent=False)

    def forward(self, x):
        return super().forward(x) + self.shift


PAIRS = {
    "activation": (sequential(nn.ReLU()), sequential(nn.Sigmoid()), "layer '1' was ReLU, inplace=False, now Sigmoid"),
    "dropout": (sequential(nn.ReLU()), sequential(nn.ReLU(), 0.9), "layer '2' was p=0.0, now p=0.9"),
    "function": (Own, lambda: Own(act=torch.sigmoid), "outermost module was .*relu.*now.*sigmoid"),
    "lambda": (
        lambda: Own(act=lambda x: x.relu()),
        lambda: Own(act=lambda x: x.sigmoid()),
        "outermost module was .*lambda",
    ),
    "numpy number": (
        lambda: Own(power=np.float32(1)),
        lambda: Own(power=np.float32(9)),
        r"float32\(1.0\).*float32\(9.0\)",
    ),
    "number": (Own, lambda: Own(power=2.0), "power=1.0.*power=2.0"),
    "forward": (Same, Edited, "the code of the network's forward methods was changed"),
    "initialization": (Own, lambda: Own(zeros=True), "initialization was changed"),
    "numpy": (numpy_drawn(0.1), numpy_drawn(0.2), "initialization was changed"),
    "last value": (lambda: large(0.0), lambda: large(1.0), "'0.weight' are others"),
    "buffer": (lambda: shifted(1.0), lambda: shifted(2.0), "'shift' are others"),
    "frozen": (Own, lambda: frozen(Own()), "parameter 'first.weight' was trained, now frozen"),
}


VALUES = ("initialization", "numpy", "last value", "buffer", "frozen")  # which members bring themselves


@pytest.mark.parametrize("name", PAIRS)
def test_an_edited_network_is_refused_in_an_old_folder(name, tmp_path):
    before, after, message = PAIRS[name]
    choral.fit(before, (X, Y), ONE, run_dir=tmp_path)
    choral.fit(before, (X, Y), ONE, run_dir=tmp_path)
    with pytest.raises(RunError, match=message):
        choral.fit(after, (X, Y), ONE, run_dir=tmp_path)


@pytest.mark.parametrize("name", [n for n in PAIRS if n not in VALUES])
def test_a_file_is_not_loaded_into_another_network(name, tmp_path):
    before, after, message = PAIRS[name]
    ensemble = choral.fit(before, (X, Y), ONE, run_dir=tmp_path / "run")
    ensemble.save(tmp_path / "e.choral")
    for path in (tmp_path / "run", tmp_path / "e.choral"):
        loaded = choral.load(path, build=before)
        assert torch.equal(loaded.predict(X).probs, ensemble.predict(X).probs)
        with pytest.raises(RunError, match=message):
            choral.load(path, build=after)
        assert len(choral.load(path, build=after, check_build=False)) == 1


def test_another_way_to_draw_weights_is_no_reason_to_refuse_a_file(tmp_path):
    choral.fit(Own, (X, Y), ONE).save(tmp_path / "e.choral")
    assert len(choral.load(tmp_path / "e.choral", build=lambda: Own(zeros=True))) == 1


def test_a_class_defined_again_with_the_same_text_is_the_same_and_a_comment_counts():
    def net(forward):
        forward.__qualname__ = "Net.forward"
        return fingerprint(type("Net", (Own,), {"forward": forward})())

    def plain():
        def forward(self, x):
            return self.last(self.first(x))

        return forward

    def commented():
        def forward(self, x):
            return self.last(self.first(x))  # a comment

        return forward

    assert not list(changes(net(plain()), net(plain())))
    assert list(changes(net(plain()), net(commented())))


def test_a_file_edited_after_its_code_was_loaded_makes_no_difference(tmp_path, monkeypatch):
    file = tmp_path / "edited_later.py"
    text = "from torch import nn\nclass Net(nn.Linear):\n    def forward(self, x):\n        return super().forward(x)\n"
    file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    net = importlib.import_module("edited_later").Net(3, 2)
    before = fingerprint(net)
    file.write_text("import torch\n" + text)
    assert not list(changes(before, fingerprint(net)))


def test_constants_and_functions_that_forward_names_count(monkeypatch):
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "FACTOR", 1.0, raising=False)
    monkeypatch.setattr(module, "helper", lambda x: x * FACTOR, raising=False)  # noqa: F821  # set above

    class Net(nn.Linear):
        def forward(self, x):
            return helper(super().forward(x))  # noqa: F821  # set above

    before = fingerprint(Net(3, 2))
    assert not list(changes(before, fingerprint(Net(3, 2))))
    monkeypatch.setattr(module, "FACTOR", 2.0)
    assert list(changes(before, fingerprint(Net(3, 2))))


def test_a_network_without_source_has_a_fingerprint():
    code = "class Net(nn.Linear):\n    def forward(self, x):\n        return super().forward(x) {}\n"
    made = []
    for ending in ("* 2", "* 2", "* 3"):
        space = {"nn": nn, "__name__": "__main__"}
        exec(code.format(ending), space)
        made.append(fingerprint(space["Net"](3, 2)))
    assert not list(changes(made[0], made[1]))
    assert list(changes(made[0], made[2]))


def test_fingerprints_are_those_of_the_next_process():
    code = (
        "import json, sys, torch; sys.path.insert(0, '.');"
        "from tests.engine.test_identity import Own; from choral.engine.identity import fingerprint, initial;"
        "torch.manual_seed(0); net = Own(); print(json.dumps([fingerprint(net), initial(net)]))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    torch.manual_seed(0)
    net = Own()
    assert json.loads(done.stdout) == [fingerprint(net), initial(net)]


def test_rounding_of_another_processor_is_no_other_initialization():
    net = Own()
    print_ = fingerprint(net) | initial(net)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1 + 1e-6)
    assert not list(changes(print_, fingerprint(net) | initial(net)))


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.calls = 0

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x)


def test_state_in_attributes_is_said():
    with pytest.warns(UserWarning, match="'calls' of the network changes when it is called"):
        choral.fit(Counting, (X, Y), ONE)


def test_attributes_that_hold_activations_are_no_state():
    class Saving(nn.Linear):
        def forward(self, x):
            self.seen = super().forward(x)
            return self.seen

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*(budget is below|rows no better than)")  # few steps on purpose
        choral.fit(lambda: Saving(3, 2), (X, Y), ONE)


@pytest.mark.parametrize("what", ["members", "checkpoints"])
def test_a_deleted_plan_brings_nothing_back_under_another_seed(tmp_path, what):
    def stop(event):
        if event["kind"] == "epoch" and event["epoch"] == 2:
            raise KeyboardInterrupt

    recipe = make("single", budget=3, training=QUICK)
    if what == "members":
        choral.fit(Own, (X, Y), recipe, run_dir=tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            choral.fit(
                Own, (X, Y), recipe, run_dir=tmp_path, compute=choral.Compute(checkpoint_seconds=0), callbacks=stop
            )
    for name in ("plan.json", "log.jsonl", "results.json"):
        (tmp_path / name).unlink(missing_ok=True)
    before = {p: p.read_bytes() for p in (tmp_path / what).iterdir()}
    for how in ("resume", "overwrite"):
        with pytest.raises(RunError, match=rf"holds {what} but no plan\.json"):
            choral.fit(Own, (X, Y), recipe, run_dir=tmp_path, seed=1, on_existing=how)
    assert {p: p.read_bytes() for p in (tmp_path / what).iterdir()} == before


CHANGED = {
    "epochs": ({"epochs": 2}, "epochs was 1, now 2"),
    "method": (make("deep_ensemble", budget=2, members=2, training=QUICK), "method was single, now deep_ensemble"),
    "rate": ({"training": Training(lr=0.02, optimizer=Adam(), batch_size=8)}, "lr was 0.01, now 0.02"),
    "batch size": ({"training": Training(lr=0.01, optimizer=Adam(), batch_size=4)}, "batch_size was 8, now 4"),
    "optimizer": ({"training": Training(optimizer="sgd", lr=0.01, batch_size=8)}, "optimizer was Adam.*, now SGD"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed_settings_are_named_in_the_user_s_words(name, tmp_path):
    other, message = CHANGED[name]
    recipe = other if not isinstance(other, dict) else make("single", **({"epochs": 1, "training": QUICK} | other))
    choral.fit(Own, (X, Y), ONE, run_dir=tmp_path)
    with pytest.raises(RunError, match=message) as caught:
        choral.fit(Own, (X, Y), recipe, run_dir=tmp_path)
    said = str(caught.value)
    assert "phases[" not in said
    for way in ("run_dir", "on_existing='overwrite'", "--out", "--overwrite"):
        assert way in said


def test_another_setting_inside_a_loss_is_refused(tmp_path):
    def fitted(delta):
        loss = choral.objectives.likelihoods.Loss(nn.HuberLoss(delta=delta))
        return choral.fit(lambda: nn.Linear(3, 1), (X, X[:, :1]), ONE, likelihood=loss, run_dir=tmp_path)

    fitted(1.0)
    fitted(1.0)
    with pytest.raises(RunError, match="holds another run: digest of Function"):
        fitted(0.01)


def test_other_settings_and_data_are_named(tmp_path):
    choral.fit(Own, (X, Y), ONE, run_dir=tmp_path)
    for options, message in [
        ({"seed": 3}, "seed was 0, now 3"),
        ({"compute": choral.Compute(executor="sequential")}, "executor was auto, now sequential"),
        ({"compute": choral.Compute(precision="bf16")}, "precision was fp32, now bf16"),
        ({"transforms": (choral.data.Normalize(mean=(0.0,) * 3, std=(1.0,) * 3),)}, "inputs was"),
    ]:
        with pytest.raises(RunError, match=message):
            choral.fit(Own, (X, Y), ONE, run_dir=tmp_path, **options)
    with pytest.raises(RunError, match="the training data was changed"):
        choral.fit(Own, (X + 1, Y), ONE, run_dir=tmp_path)
    net, folder = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), tmp_path / "given"
    recipe = make("prune_and_tune", budget=2, members=2, parent_epochs=0, training=QUICK)
    choral.fit(net, (X, Y), recipe, run_dir=folder)
    nn.init.zeros_(net[0].weight)
    with pytest.raises(RunError, match="the weights of the network handed over were changed"):
        choral.fit(net, (X, Y), recipe, run_dir=folder)


def test_overwrite_starts_again_and_takes_only_what_choral_wrote(tmp_path):
    choral.fit(Own, (X, Y), make("deep_ensemble", budget=3, members=3, training=QUICK), run_dir=tmp_path)
    (tmp_path / "mine.txt").write_text("kept")
    (tmp_path / "members" / "notes.txt").write_text("kept")
    with pytest.raises(choral.ChoralError):  # found before anything is removed
        choral.fit(Own, (X[:, :2], Y), ONE, run_dir=tmp_path, on_existing="overwrite")
    with pytest.raises(choral.ChoralError):
        choral.fit(
            Own, (X, Y), ONE, run_dir=tmp_path, on_existing="overwrite", compute=choral.Compute(executor="magic")
        )
    assert len(list((tmp_path / "members").glob("*.safetensors"))) == 3
    found = choral.fit(Own, (X, Y), ONE, run_dir=tmp_path, on_existing="overwrite")
    assert len(list((tmp_path / "members").glob("*.safetensors"))) == 1
    assert (tmp_path / "mine.txt").read_text() == (tmp_path / "members" / "notes.txt").read_text() == "kept"
    alone = choral.fit(Own, (X, Y), ONE)
    assert torch.equal(found.predict(X).probs, alone.predict(X).probs)
    assert torch.equal(choral.fit(Own, (X, Y), ONE, run_dir=tmp_path).predict(X).probs, alone.predict(X).probs)
    first = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert sum(e["kind"] == "epoch" for e in first) == 1


OURS = ("plan.json", "results.json", "log.jsonl", "report.html", "ensemble.choral")


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("text", ["mine", '{"mine": 1}', '{\n "mine": 1\n}\n'])
def test_overwrite_keeps_files_of_others_that_have_choral_s_names(tmp_path, name, text):
    if name.endswith("l") and text != "mine":
        text = "mine"
    (tmp_path / name).write_text(text)
    (tmp_path / "members").mkdir()
    (tmp_path / "members" / "00000.safetensors").write_bytes(b"older")
    with pytest.raises(RunError, match=f"holds {name} but no plan.json that choral wrote.*move it away"):
        choral.fit(Own, (X, Y), ONE, run_dir=tmp_path, on_existing="overwrite")
    assert (tmp_path / name).read_text() == text
    assert (tmp_path / "members" / "00000.safetensors").exists()


def test_overwrite_takes_choral_s_own_files_also_cut_short(tmp_path):
    choral.fit(Own, (X, Y), ONE, run_dir=tmp_path).save(tmp_path / "ensemble.choral")
    for name in ("results.json", "log.jsonl", "members/00000.safetensors"):
        for kept in (0, 0.5, 1):
            data = (tmp_path / name).read_bytes()
            (tmp_path / name).write_bytes(data[: int(kept * len(data))])
            choral.fit(Own, (X, Y), ONE, run_dir=tmp_path, on_existing="overwrite")


@pytest.mark.parametrize("how", ["extend", "overwrite"])
def test_an_ensemble_in_hand_says_that_its_folder_was_changed(tmp_path, how):
    two, more = (make("deep_ensemble", budget=m, members=m, training=QUICK) for m in (2, 3))
    held = choral.fit(Own, (X, Y), two, run_dir=tmp_path)
    choral.fit(Own, (X, Y), more if how == "extend" else ONE, run_dir=tmp_path, on_existing=how)
    with pytest.raises(RunError, match=r"extended or overwritten since.*choral\.load\("):
        list(held)
    assert len(list(choral.load(tmp_path, build=Own))) == (3 if how == "extend" else 1)


def test_a_call_that_holds_out_other_rows_is_told_of_that_alone(tmp_path):
    held = {"validation": 0.2, "early_stopping": choral.EarlyStopping(patience=2)}
    choral.fit(Own, (X, Y), ONE, run_dir=tmp_path, **held)
    with pytest.raises(
        RunError,
        match=r"another run: validation was 0.2, now none; stop was EarlyStopping, now none; the training rows were changed",
    ):
        choral.fit(Own, (X, Y), ONE, run_dir=tmp_path)
