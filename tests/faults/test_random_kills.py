"""Processes of running studies are killed and stopped at random moments: no trial is lost."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from random_kit import KINDS, churn

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")
LOCAL = {name: kind for name, kind in KINDS.items() if "local" in name}
ON_RAY = {name: kind for name, kind in KINDS.items() if "local" not in name}


@pytest.mark.nightly
def test_random_kills_on_local(tmp_path: Path) -> None:
    assert churn(tmp_path, LOCAL, deeds=9, seed=0, each=3).total() == 9


@needs_ray
@pytest.mark.nightly
def test_random_kills_on_ray(tmp_path: Path) -> None:
    kinds = {name: ON_RAY[name] for name in ("wide lanes",)}
    assert churn(tmp_path, kinds, deeds=4, seed=1, each=4).total() == 4


@needs_ray
@pytest.mark.soak
def test_100_random_kills(tmp_path: Path) -> None:
    """60 on local, 60 on Ray: the figure of docs/reliability.md."""
    local = churn(tmp_path / "local", LOCAL, deeds=60, seed=100)
    ray = churn(tmp_path / "ray", ON_RAY, deeds=60, seed=200)
    done = local + ray
    assert done.total() >= 100, done
    print(dict(done))  # noqa: T201 shown with -s, for the page
