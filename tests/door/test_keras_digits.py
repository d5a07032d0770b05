"""A Keras 3 model with dropout trains in Shoal as it trains alone."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import door_kit as kit
import preloaded
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
# Keras takes seconds to import, and these tests leave that to other processes.
pytestmark = pytest.mark.skipif(
    not (find_spec("keras") and find_spec("sklearn")), reason="pip install keras scikit-learn"
)


@pytest.mark.slow
def test_it_trains_packed_and_resumed_as_alone(tmp_path: Path) -> None:
    kit.check_door("keras_digits", tmp_path)


@pytest.mark.nightly
def test_the_plain_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEST", str(tmp_path / "best.weights.h5"))
    assert "best accuracy 0." in kit.run_plain("keras_digits")


@pytest.mark.slow
def test_the_best_model_is_a_keras_model(tmp_path: Path) -> None:
    """Trained by hopping, and loaded from the study's folder."""
    code = f"""
import sys; sys.path.insert(0, {str(kit.DOOR)!r})
import shoal
from keras_digits import KerasDigits
space = {{"units": 16, "dropout": 0.2, "lr": shoal.grid([1e-3, 1e-2])}}
study = shoal.create_study(
    KerasDigits(), storage={str(tmp_path / "s")!r}, search_space=space
)
study.optimize(policy="hop", max_epochs=2, progress=False)
model = shoal.load_study({str(tmp_path / "s")!r}).best_model()
print(type(model).__module__, all(row["equal"] for row in study.replay()))
"""
    done = preloaded.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stdout.startswith("keras") and done.stdout.endswith("True\n"), done
