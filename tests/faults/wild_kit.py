"""Recipes that do what no recipe should: each trial of one width does it, the others do not."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fault_kit import Steady

WILD = 5  # the width of the trial that does it


class Wild(Steady):
    """`deed`: what the trial of width `WILD` does. `at`: in which method, in its `step`-th call."""

    def __init__(
        self, deed: str, at: str = "training_step", step: int = 3, slow: float = 0.0
    ) -> None:
        super().__init__(slow=slow)
        self.deed, self.at, self.step = deed, at, step
        self.calls: dict[str, int] = {}

    def do(self, method: str, width: int) -> None:
        if method != self.at or width != WILD:
            return
        self.calls[method] = self.calls.get(method, 0) + 1
        if self.calls[method] >= self.step:
            DEEDS[self.deed]()

    def configure_model(self, config: Mapping[str, Any]) -> Any:
        self.do("configure_model", config["width"])
        return super().configure_model(config)

    def training_step(self, model: Any, batch: Any) -> Any:
        self.do("training_step", model[0].out_features)
        return super().training_step(model, batch)

    def validation_step(self, model: Any, batch: Any) -> Any:
        self.do("validation_step", model[0].out_features)
        return super().validation_step(model, batch)


def loop() -> None:
    """Never ends, and catches what it can."""
    while True:
        try:
            sum(range(100))
        except Exception:  # noqa: BLE001
            continue


def forever() -> None:
    """Waits for what never comes."""
    threading.Semaphore(0).acquire()


def exhaust() -> None:
    raise MemoryError("no room for a model as large as that")


def recur() -> None:
    recur()


def interrupt() -> None:
    raise KeyboardInterrupt


def leak_threads() -> None:
    threading.Thread(target=time.sleep, args=(30.0,), daemon=True).start()


def change_torch() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    np.seterr(all="raise")
    torch.autograd.set_detect_anomaly(True)


def change_process() -> None:
    os.chdir("/")
    os.environ["SHOAL_WILD"] = "1"
    os.environ["OMP_NUM_THREADS"] = "7"
    warnings.simplefilter("error")
    sys.setrecursionlimit(5000)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def chatter() -> None:
    """About 100 MB in all."""
    for _ in range(40):
        print("x" * 65_536)  # noqa: T201


CHILD = "import time; time.sleep(600)"


def bear_children() -> None:
    """One child, and another one that left its session."""
    for apart in (False, True):
        subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=apart)


DEEDS = {
    "loop": loop,
    "forever": forever,
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(7),
    "sys.exit": lambda: sys.exit(3),
    "memory": exhaust,
    "recursion": recur,
    "interrupt": interrupt,
    "threads": leak_threads,
    "torch": change_torch,
    "process": change_process,
    "chatter": chatter,
    "children": bear_children,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def log_bytes(folder: Path) -> int:
    """What the study's logs take."""
    return sum(each.stat().st_size for each in folder.rglob("*.txt"))
