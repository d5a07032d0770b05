"""NVIDIA's MPS: a service by which processes use one GPU at the same time instead of in turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"
TRY = "import torch; print(float(torch.ones(8, device='cuda').sum()))"


@contextmanager
def serving() -> Iterator[Mapping[str, str] | str]:
    """Start the service for this block: what its clients need in their environment.

    Where it does not work, a line that says why. No setting of the GPU is changed.
    """
    control = shutil.which(CONTROL)
    if control is None:
        yield f"there is no {CONTROL} here"
        return
    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | own
        begun = subprocess.run(
            [control, "-d"], env=environment, capture_output=True, text=True, check=False
        )
        if begun.returncode:
            yield f"{CONTROL} did not start: {begun.stderr.strip()[-200:]}"
            return
        try:
            why = why_not(environment)
            yield why or own
        finally:
            subprocess.run(
                [control], env=environment, input="quit\n", text=True, timeout=30, check=False
            )


def why_not(environment: Mapping[str, str]) -> str:
    """Why a process that uses the service cannot compute; "" if it can."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", TRY],
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "a process that uses the service does not answer"
    return tried.stderr.strip()[-200:] if tried.returncode else ""
