"""PyTorch's word_language_model, whose state is carried from batch to batch."""

from pathlib import Path

import door_kit as kit
import pytest


@pytest.mark.slow
def test_a_language_model_trains_packed_killed_and_resumed_as_alone(
    tmp_path: Path,
) -> None:
    kit.check_door("word_language_model", tmp_path)
    assert "loss" in kit.run_plain("word_language_model")
