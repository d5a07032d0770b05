"""One trial's function at work, in a thread of its own that takes turns with the slot's."""

from __future__ import annotations

import inspect
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path
from threading import Semaphore, Thread
from typing import Any

import torch

from shoal.core.trial import Seconds, shown
from shoal.engine.files import current_folder
from shoal.train.function.keep import packed, unpacked
from shoal.train.function.recipe import RUN_IT, FunctionRecipe
from shoal.train.function.talk import (
    Pruned,
    TrialContext,
    TrialStopped,
    Values,
    numbers,
    numbers_in,
    talking,
)
from shoal.train.rng import Rng

# Seconds that a function's `finally` blocks may take when its trial is stopped.
GRACE: Seconds = 20.0

Kept = Mapping[str, Any]  # a durable state: "reports", "rng" and "checkpoint"


@dataclass(frozen=True, slots=True)
class Report:
    """The function has reported, and waits."""

    values: Values
    checkpoint: dict[str, Any] | None  # packed


@dataclass(frozen=True, slots=True)
class End:
    """The function is over. `values`: those that it returned, perhaps none.

    `returned`: what else it returned, to be shown; empty: nothing.
    """

    values: Values = field(default_factory=dict)
    returned: str = ""
    pruned: bool = False


def _check_ran(result: Any) -> None:
    """Raise TypeError if calling the function only made what would run its code."""
    if inspect.isawaitable(result) or inspect.isasyncgen(result) or inspect.isgenerator(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that nobody awaited it
        raise TypeError(f"the function returned a {type(result).__name__}: {RUN_IT}")


class FunctionRun:
    """A function that trains one trial, from its beginning or from a durable state.

    It runs only within `advance` and `stop`, which return when it has reported or is over.
    """

    def __init__(
        self,
        recipe: FunctionRecipe,
        context: TrialContext,
        threads: int,
        device: torch.device,
        kept: Kept | None,
    ) -> None:
        self.context = context
        self.reports = 0
        # whether a score of the metric was finite, as far as is known
        self.scored = kept is not None
        self.over = False
        self._recipe = recipe
        self._threads = threads
        self._device = device
        self._kept = kept
        if kept is not None:
            self.reports = int(kept["reports"])
        self._rng = Rng(context.seed, device)
        self._folders: list[str] = []  # of checkpoints that were paths
        self._news: Report | End | BaseException = End()
        self._folder = ""  # the one that it works in, once it has begun
        self._stopping = False
        self._go = Semaphore(0)
        self._came = Semaphore(0)
        name = f"shoal-{context.trial.id}"
        self._thread = Thread(target=self._main, name=name, daemon=True)

    # -- for the slot ----------------------------------------------------------------------------

    def advance(self) -> Report | End:
        """Let the function run until it reports or is over.

        Raises:
            BaseException: what the function raised.
        """
        with self._rng, talking(self), self._in_its_folder():
            self._wake()
            self._came.acquire()
        news = self._news
        if isinstance(news, Report | End):
            value = news.values.get(self.context.metric, 0.0 if news.values else nan)
            self.scored = self.scored or isfinite(value)
        if isinstance(news, Report):
            self.reports += 1
        else:
            self._close()
        if isinstance(news, BaseException):
            raise news
        return news

    @contextmanager
    def _in_its_folder(self) -> Iterator[None]:
        """The process is where the function has left it; afterwards, where it was before."""
        outside = current_folder()
        if self._folder:
            with suppress(OSError):  # it may be gone
                os.chdir(self._folder)
        try:
            yield
        finally:
            self._folder = current_folder()
            if outside and self._folder != outside:
                os.chdir(outside)

    def rng_state(self) -> dict[str, Any]:
        """The trial's random states as they are at its report."""
        return self._rng.state()

    def stop(self) -> None:
        """End the function: its report raises `TrialStopped`."""
        if self.over:
            return
        self._stopping = True
        if self._thread.is_alive():
            with self._rng, talking(self), self._in_its_folder():
                self._wake()
                ended = self._came.acquire(timeout=GRACE)
            if not ended:
                warnings.warn(
                    f"the function of trial {self.context.trial.id} was told to stop and goes on: "
                    "it must not catch shoal's TrialStopped, nor wait in a finally block",
                    stacklevel=2,
                )
        self._close()

    def _wake(self) -> None:
        """Let the function's thread go on, or begin."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()

    def _close(self) -> None:
        """Nothing of the function is needed any more."""
        self.over = True
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    # -- in the function's thread ----------------------------------------------------------------

    def _main(self) -> None:
        """Run the function; leave how it ended in `_news`."""
        torch.set_num_threads(self._threads)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        try:
            result = self._recipe.run(self.context)
            _check_ran(result)
            values = self._returned(result)
            self._news = End(values, "" if result is None else shown(result))
        except (TrialStopped, Pruned):
            self._news = End(pruned=True)
        except BaseException as error:  # noqa: BLE001 the slot raises it
            self._news = error
        self._came.release()

    def _returned(self, result: Any) -> Values:
        """The numbers among what the function returned."""
        if not isinstance(result, Mapping):
            result = {self.context.metric: result}
        found = numbers_in(result, self.context.metric)
        return {name: value for name, value in found.items() if value is not None}

    def report(self, values: Any, checkpoint: Any) -> None:
        """See `talk.report`."""
        if self._stopping:
            raise TrialStopped
        found = numbers(values, self.context.metric)
        kept = None
        if checkpoint is not None:
            kept = packed(checkpoint)
        self._news = Report(found, kept)
        self._came.release()
        self._go.acquire()
        if self._stopping:
            raise TrialStopped

    def restore(self) -> Any:
        """See `talk.restore`."""
        if self._kept is None:
            return None
        self._rng.__exit__()
        self._rng.load(self._kept["rng"])
        self._rng.__enter__()
        folder = ""
        if self._kept["checkpoint"]["kind"] != "tree":
            folder = tempfile.mkdtemp(prefix=self.context.scratch)
            self._folders.append(folder)
        return unpacked(self._kept["checkpoint"], Path(folder))
