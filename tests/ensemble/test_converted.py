"""converted: choral's structures in a loop of the user's own."""

import pytest
import torch
from torch import nn

import choral
from choral.base.errors import InputError
from choral.engine.blueprint import state_of
from choral.engine.trainers import Pace, PlainTrainer
from choral.ensemble.networks import converted
from choral.plan import SGD, Train
from choral.recipes import METHODS, make

G = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, 8, 8, generator=G)
Y = torch.arange(24) % 3


def network():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 16),
        nn.ReLU(),
        nn.Linear(16, 3),
    )


def usable(name):
    try:
        recipe = make(name, budget=60)
    except choral.ChoralError:
        recipe = make(name)
    return recipe


RECIPES = {name: usable(name) for name in METHODS}
LAYOUTS = {repr(r.structure): r for r in RECIPES.values() if not r.objective.slots}


def stepped(own, steps=5):
    optimizer = torch.optim.SGD(own.network.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = own.loss(X, Y, step=step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("recipe", LAYOUTS.values(), ids=lambda r: r.name)
def test_a_loop_by_hand_takes_the_steps_of_the_engine(recipe):
    own, twin = (converted(network(), recipe, data=(X, Y)) for _ in range(2))
    stepped(own, 4)
    phase = Train(epochs=1, optimizer=SGD(momentum=0.9), batch_size=len(X))
    trainer = PlainTrainer(twin._task, phase, [len(X)])
    trainer.mount([state_of(twin.network)], [twin._key])
    for step in range(4):
        trainer.step(X, Y, Pace(step, 1.0, 0.05))
    (state,) = trainer.states()
    for name, p in own.network.named_parameters():
        torch.testing.assert_close(p.detach(), state.params[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("recipe", LAYOUTS.values(), ids=lambda r: r.name)
def test_every_structure_learns_in_three_lines_and_is_an_ensemble(recipe, tmp_path):
    own = converted(network(), recipe, data=(X, Y))
    losses = stepped(own, 8)
    assert losses[-1] < losses[0]
    ensemble = own.ensemble()
    ensemble.save(tmp_path / "e.choral")
    again = choral.load(tmp_path / "e.choral", build=network)
    assert torch.equal(again.outputs(X), ensemble.outputs(X))


def test_an_objective_that_needs_its_plan_is_refused():
    with pytest.raises(InputError, match="'anchored' needs anchor, which its plan makes"):
        converted(network(), make("anchored", budget=10), data=(X, Y))


def test_columns_of_a_frame_are_read_by_name_in_whatever_order():
    import pandas as pd

    frame = pd.DataFrame(torch.randn(40, 3, generator=G).numpy(), columns=list("abc"))
    y = torch.tensor(2 * frame["a"].to_numpy() + frame["b"].to_numpy())[:, None]
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    ensemble = converted(plain, make("batch_ensemble", members=2, budget=1), data=(frame, y)).ensemble()
    torch.testing.assert_close(ensemble.predict(frame[["c", "a", "b"]]).mean, ensemble.predict(frame).mean)
    with pytest.raises(InputError):
        ensemble.predict(frame[["a", "b"]])
