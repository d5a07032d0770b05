"""Names that would lead out of a folder."""

import pytest

from shoal.core.event import Submitted
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import JournalError, decode, encode

OUTSIDE = ["..", ".", "../../x", "a/../../x", "/etc/x", "a//b", "a/", "a\\b", "a\0b"]


@pytest.mark.parametrize("name", [*OUTSIDE, "x" * 5000])
def test_a_trial_of_such_a_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="within the study's"):
        Trial(TrialId(name), 1.0)
    sound = encode(0.0, Submitted(Trial(TrialId("sound"), 1.0)))
    import json

    forged = sound.replace(b'"sound"', json.dumps(name).encode())
    with pytest.raises(JournalError, match="within the study's"):
        decode(forged)


@pytest.mark.parametrize("name", ["t0001", "a/b", "..a", "a b", "<b>", "\u202eabc"])
def test_other_names_are_taken(name: str) -> None:
    assert Trial(TrialId(name), 1.0).id == name
