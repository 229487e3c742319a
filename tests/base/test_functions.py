"""Functions inside values: known by name and code, never brought by a file."""

import functools
import json
import subprocess
import sys

import pytest

from choral.base.errors import InputError
from choral.base.values import Function, from_dict


def doubled(x, *, by=2):
    return x * by


def scaled(factor):
    return lambda x: x * factor


def test_it_calls_and_compares_by_what_the_function_does():
    assert Function.of(doubled)(3) == 6
    assert Function.of(doubled) == Function.of(doubled)
    assert Function.of(scaled(2)) == Function.of(scaled(2))
    assert Function.of(scaled(2)) != Function.of(scaled(3))  # the same code around another value
    assert Function.of(functools.partial(doubled, by=3)) != Function.of(doubled)
    assert Function.of(functools.partial(doubled, by=3)) != Function.of(functools.partial(doubled, by=4))


def test_code_typed_at_a_prompt_is_told_apart_too():
    made = []
    for text in ("lambda x: x + 1", "lambda x: x + 2", "lambda x: x - 1"):
        made.append(Function.of(eval(text)).digest)
    assert len(set(made)) == 3


def test_a_file_holds_the_name_and_never_the_code():
    written = json.loads(json.dumps(Function.of(doubled).to_dict()))
    read = from_dict(written)
    assert read == Function.of(doubled)
    with pytest.raises(InputError, match=r"names the function .*doubled"):
        read(3)


@pytest.mark.full
def test_the_digest_is_the_same_in_another_process():
    code = (
        "import functools, torch; from choral.base.values import Function; "
        "f = lambda g: torch.optim.RMSprop(g, alpha=0.9); o = object(); "
        "print(Function.of(f).digest, Function.of(functools.partial(max, key=o)).digest, Function.of(torch.optim.NAdam).digest)"
    )
    said = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert len(said) == 1, said
