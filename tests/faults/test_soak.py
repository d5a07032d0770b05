"""Random churn and kills for minutes, over packs, hops, wide lanes and searchers."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from soak_kit import KINDS, soak

pytestmark = pytest.mark.faults
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")


@pytest.mark.nightly
def test_a_short_soak_on_local(tmp_path: Path) -> None:
    kinds = {name: kind for name, kind in KINDS.items() if not kind.on_ray}
    found = soak(tmp_path, minutes=0.3, seed=5, kinds=kinds)
    assert found["studies"] >= 1 and found.total() > 5, found


@needs_ray
@pytest.mark.nightly
def test_a_short_soak_on_ray(tmp_path: Path) -> None:
    found = soak(tmp_path, minutes=0.1, seed=6, kinds={"hops": KINDS["hops"]})
    assert found["studies"] >= 1 and found.total() > 5, found


@needs_ray
@pytest.mark.soak
def test_a_soak_of_some_minutes(tmp_path: Path) -> None:
    """`make soak`: SOAK_MINUTES of it, 20 by default."""
    found = soak(tmp_path, float(os.environ.get("SOAK_MINUTES", "20")), seed=1000)
    print(dict(found))  # noqa: T201 shown with -s, for docs/reliability.md
    assert found["studies"] >= 1
