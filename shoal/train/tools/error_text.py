"""What a user's code raised, in one line: where, what, and what helps."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from traceback import walk_tb
from types import FrameType, FunctionType

from shoal.train.lane.blame import SHOAL, rest_note
from shoal.train.recipe.recipe import Recipe

INSTALLED = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), "<frozen")
SIZES = "the sizes of the model's layers must fit the samples and each other"
WHOLE = "labels of classes must be whole numbers: y.astype('int64')"
FLOATS = "samples and model need one kind of number, mostly float32: x.astype('float32')"
RANGE = "labels must lie between 0 and one less than the model's outputs"
MOVES = "Shoal moves the model and batches to the trial's device: leave out .cuda() and .to(device)"
SELF = "the first argument of a recipe's methods is self"
# Part of a message of Python or torch, and what helps.
REMEDIES = {
    "dtype to be Long": WHOLE,
    "expected scalar type Long": WHOLE,
    "same dtype": FLOATS,
    "Found dtype": FLOATS,
    "scalar type Float": FLOATS,
    "shapes cannot be multiplied": SIZES,
    "size mismatch": SIZES,
    "channels, but got": SIZES,
    "Target size": "the model's outputs and the labels must have one shape: unsqueeze or squeeze",
    "out of bounds": RANGE,
    "device-side assert": RANGE,
    "more than 1 value per channel": "batch norm needs more than one sample in a batch",
    "not compiled with CUDA": MOVES,
    "No CUDA GPUs": MOVES,
    "no NVIDIA driver": MOVES,
    "on the same device": "make tensors on the batch's device: torch.zeros(3, device=x.device)",
    "does not require grad": "return the loss itself, without .item(), .detach() or no_grad",
}


def said(error: BaseException, batch: str = "") -> str:
    """The error in one line for people; one that Shoal raised is given as it is.

    `batch`: what the code worked on, in words.
    """
    text = str(error).strip().split("\n")[0]
    frames = list(walk_tb(error.__traceback__))
    user_frames = [(frame, line) for frame, line in frames if _is_users(frame)]
    parts = [text]
    if user_frames:
        frame, line = user_frames[-1]
        method = user_frames[0][0].f_code.co_name
        place = f"{Path(frame.f_code.co_filename).name}, line {line}"
        parts = [f"{method} raised {type(error).__name__}: {text} ({place})"]
    elif not frames or not _is_shoals(frames[-1][0]):
        parts = [f"training raised {type(error).__name__}: {text}"]
    if batch:
        parts.append(f"the batch: {batch}")
    for part, remedy in REMEDIES.items():
        if part in text:
            parts.append(remedy)
            break
    if _lacks_self(text):
        parts.append(SELF)
    if rest := rest_note(error):
        parts.append(rest)
    return "; ".join(parts)


def _lacks_self(text: str) -> bool:
    """Whether the error is of the arguments of a method of a user's recipe that has no `self`.

    `text`: that Python made, as "Mine.training_step() takes 2 positional arguments but …".
    """
    if "positional argument" not in text:
        return False
    owner, _, method = text.partition("(")[0].rpartition(".")
    kinds = [Recipe]
    for kind in kinds:
        kinds += kind.__subclasses__()
        function = vars(kind).get(method) if kind.__qualname__ == owner else None
        if isinstance(function, FunctionType) and function.__code__.co_varnames[:1] != ("self",):
            return True
    return False


def _is_users(frame: FrameType) -> bool:
    """Whether this is the user's own code."""
    file = frame.f_code.co_filename
    return not _is_shoals(frame) and not any(part in file for part in INSTALLED)


def _is_shoals(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(SHOAL)
