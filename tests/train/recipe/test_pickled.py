"""Recipes that an earlier Shoal pickled. Whole studies of it: tests/test_stored.py."""

import pickle
from importlib import import_module

import pytest

import shoal
from shoal.train.recipe import pickled


@pytest.mark.parametrize("place", pickled.MOVED.values(), ids=".".join)
def test_a_class_is_where_the_table_says(place: tuple[str, str]) -> None:
    module, name = place
    assert getattr(import_module(module), name).__module__ == module


def test_an_old_name_gives_the_class_of_today() -> None:
    named = pickle.GLOBAL + b"shoal.train.recipe\nLRSchedule\n" + pickle.STOP
    assert pickled.loads(named) is shoal.LRSchedule


def test_what_is_not_there_any_more_is_named() -> None:
    named = pickle.GLOBAL + b"shoal.train.recipe\nNever\n" + pickle.STOP
    with pytest.raises(AttributeError, match="Never"):
        pickled.loads(named)
