"""Objects as plain data, and the statements of a script that a definition needs."""

import datetime
import enum
import functools
import json
import math
import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.train.recipe.plain_form import Encoder, NotPlain, restored
from shoal.train.recipe.text_modules import chosen, modules_read, names_read


def twice(value: float) -> float:
    return 2 * value


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True, slots=True)
class Slotted:
    at: int
    names: tuple[str, ...] = ()


@dataclass
class Open:
    within: Any = None
    more: list[int] = field(default_factory=list)

    def method(self) -> Any:
        return self.within


class Stateful:
    def __init__(self) -> None:
        self.hidden = 3

    def __getstate__(self) -> Any:
        return {"given": self.hidden}

    def __setstate__(self, state: Any) -> None:
        self.hidden = state["given"] + 1


def through(thing: Any) -> Any:
    """The thing, as text and back."""
    return restored(json.loads(json.dumps(Encoder(None).form(thing, "it"))))


keys = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.just("="))
plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.binary(),
        st.builds(Slotted, st.integers()),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(keys, inner),
        st.frozensets(st.integers()),
        st.sets(st.text()),
        st.builds(Open, inner, st.lists(st.integers())),
    ),
    max_leaves=12,
)


@given(plain)
def test_what_is_plain_comes_back_the_same(thing: Any) -> None:
    back = through(thing)
    assert back == thing and type(back) is type(thing)


@pytest.mark.parametrize(
    "thing",
    [
        twice,
        math.sqrt,
        torch.nn.ReLU,
        torch.relu,
        torch.float64,
        torch.device("cpu"),
        np.float32(0.1),
        np.int64(-7),
        np.bool_(True),
        np.dtype("float16"),
        Path("a/b"),
        Colour.RED,
        1j,
        range(3),
        slice(1, None),
        datetime.date(2020, 1, 2),
        OrderedDict(b=1, a=2),
        defaultdict(list, {"a": [1]}),
        Slotted(1, ("a",)),
        shoal.grid([1, 2]),
        shoal.loguniform(0.1, 1.0),
        np,
        float("inf"),
        10**40,
        "\ud800",
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_kinds_of_attributes(thing: Any) -> None:
    try:
        back = through(thing)
    except NotPlain:  # NumPy's own way to store these is no constructor
        assert isinstance(thing, np.dtype)
        return
    assert back == thing and type(back) is type(thing)


def test_functions_with_arguments_and_instances() -> None:
    partial = through(functools.partial(twice, value=3))
    assert partial.func is twice and partial() == 6
    assert through(Open(5).method)() == 5
    assert through(Stateful()).hidden == 4
    assert math.isnan(through(float("nan")))


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (lambda: 3, r"it\.within is <lambda>, which was made within a function, or is"),
        (np.zeros(3), r"it\.within \(ndarray\) is no plain data"),
        (torch.zeros(3), r"it\.within \(Tensor\) is no plain data"),
        (torch.nn.Linear(1, 1), r"\(Parameter\) is no plain data"),
        (threading.Lock(), r"it\.within \(lock\) cannot be stored"),
        ([0] * 100_001, "more than 100000 values"),
        (type("Made", (), {}), r"is not what .* has as Made"),
    ],
    ids=["lambda", "array", "tensor", "module", "lock", "many", "class"],
)
def test_what_is_not_plain_is_named(thing: Any, why: str) -> None:
    with pytest.raises(NotPlain, match=why):
        Encoder(None).form(Open(thing), "it")


def test_what_holds_itself_is_not_plain() -> None:
    thing: list[Any] = []
    thing.append(thing)
    with pytest.raises(NotPlain, match="within itself"):
        Encoder(None).form(thing, "it")


SCRIPT = b"""
from __future__ import annotations
import os, sys as system
try:
    import json as j
except ImportError:
    j = None
LIMIT = 3
model = print("model")

def helper(x=LIMIT):
    model = x
    return [model for y in range(x) if j]

def other():
    return LIMIT

@helper.__class__.__call__ if False else (lambda each: each)
class Wanted:
    size = LIMIT
    def step(self):
        import late
        def inner():
            return helper(self.size), system.path
        return inner

print("ran")
"""


def test_names_are_those_of_the_scope_they_are_read_in() -> None:
    source = SCRIPT.decode()
    wanted = source[source.index("@helper") : source.index('print("ran")')]
    assert names_read(wanted) == {"helper", "LIMIT", "system"}
    helper = source[source.index("def helper") : source.index("def other")]
    assert names_read(helper) == {"LIMIT", "range", "j"}


def test_only_what_a_definition_needs_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "m", "LIMIT": 2}
    exec(compile(chosen(SCRIPT, ["Wanted"], {"LIMIT"}), "script", "exec"), names)
    assert capsys.readouterr().out == ""
    assert set(names) - {"__builtins__", "__name__"} == {
        "annotations",
        "LIMIT",
        "helper",
        "Wanted",
        "system",
        "os",
        "j",
    }
    assert names["Wanted"].size == 2 and names["helper"]() == [2, 2]


def test_imports_of_a_text() -> None:
    text = "import a.b\nfrom . import c\nfrom ..d import e\ndef f():\n    from g import *\n"
    assert set(modules_read(text, "p.q")) == {"a.b", "p.q", "p.q.c", "p.d", "p.d.e", "g", "g.*"}
