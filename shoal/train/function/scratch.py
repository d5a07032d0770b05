"""Temporary folders of functions' trials, and what former runs of a study left of them."""

import shutil
import tempfile
from hashlib import blake2b
from pathlib import Path


def prefix_of(study: str, run: int) -> str:
    """How the names of a run's temporary folders begin. `study`: the place of its checkpoints."""
    return f"{_study_prefix(study)}{run}-"


def _study_prefix(study: str) -> str:
    tag = blake2b(study.encode(), digest_size=8).hexdigest()
    return f"shoal-{tag}-"


def sweep(study: str, run: int) -> None:
    """Remove what former runs left here: a process that was killed could not.

    Runs of a study come one after the other, so no process of a former one needs it.
    """
    own = prefix_of(study, run)
    for folder in Path(tempfile.gettempdir()).glob(f"{_study_prefix(study)}*"):
        if not folder.name.startswith(own):
            shutil.rmtree(folder, ignore_errors=True)
