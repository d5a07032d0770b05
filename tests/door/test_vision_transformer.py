"""PyTorch's vision_transformer on scikit-learn's digits."""

from pathlib import Path

import door_kit as kit
import pytest


@pytest.mark.slow
def test_a_vision_transformer_trains_packed_killed_and_resumed_as_alone(
    tmp_path: Path,
) -> None:
    kit.check_door("vision_transformer", tmp_path)
    assert "accuracy" in kit.run_plain("vision_transformer")
