"""A BERT classifier trains in Shoal from what a Trainer gets."""

from pathlib import Path

import door_kit as kit
import pytest

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install transformers"
)


@pytest.mark.slow
def test_a_bert_trains_packed_killed_and_resumed_as_alone(tmp_path: Path) -> None:
    kit.check_door("bert_classifier", tmp_path)


@pytest.mark.nightly
def test_the_plain_loop_runs() -> None:
    assert "accuracy 0." in kit.run_plain("bert_classifier")
