"""What a person asks of a study beside its searcher."""

from collections.abc import Mapping
from typing import Any

from shoal.core.trial import TrialId
from shoal.study.notes import control
from shoal.study.own import OwnCode
from shoal.study.parts.result import TrialResult, id_of


class BesideSearcher(OwnCode):
    """The part of a `Study` that adds, copies, extends and stops trials, and changes its slots."""

    def enqueue(
        self,
        config: Mapping[str, Any],
        *,
        max_epochs: float | None = None,
        widths: tuple[int, int] | None = None,
        priority: float = 1.0,
        skip_if_exists: bool = False,
    ) -> TrialId:
        """Add a trial of one's own, which is trained beside the searcher's; returns its name.

        `skip_if_exists`: not if there is a trial of this configuration; then returns its name.
        `widths`: its fewest and most slots (default: one). `priority`: against others, for
        policies that look at it. While the study runs, here or in another process, the run takes
        the trial in within about a second; else the next run does.

        Raises:
            StudyError: the study has not begun, no slots could have these widths, or the
                configuration lacks a key that is read, or has one that nobody reads.
        """
        return control.enqueue(self.setup, config, max_epochs, widths, priority, skip_if_exists)

    def clone(
        self,
        trial: TrialResult | TrialId | str,
        modify: Mapping[str, Any] | None = None,
        *,
        warm_start: bool = True,
        max_epochs: float | None = None,
    ) -> TrialId:
        """Add a copy of a trial with some of its configuration changed; returns its name.

        With `warm_start` it goes on from the trial's newest durable state. `max_epochs`: in all,
        those of the state included; None: as long as the trial itself. It works while the study
        runs, as `enqueue` does.

        Raises:
            StudyError: there is no such trial or no such state, nothing would be left to train, or
                as for `enqueue`.
        """
        return control.clone(self.setup, id_of(trial), modify or {}, warm_start, max_epochs)

    def extend(self, trial: TrialResult | TrialId | str, max_epochs: float) -> None:
        """Have a trial train for so many epochs in all, from its newest state; as `enqueue`.

        Raises:
            StudyError: there is no such trial, it failed or was taken out, or its state is gone.
        """
        control.extend(self.setup, id_of(trial), max_epochs)

    def stop(self, trial: TrialResult | TrialId | str | None = None) -> None:
        """Take a trial out before its end; None: end the run, as Ctrl-C does.

        Nothing happens to a trial that has ended.

        Raises:
            StudyError: there is no such trial, nobody runs the study, or as for `enqueue`.
        """
        control.stop(self.setup, None if trial is None else id_of(trial))

    def slots(
        self,
        *,
        add: int | None = None,
        remove: int | None = None,
        count: int | None = None,
    ) -> None:
        """Have the run that is under way get more or fewer slots; give one of the three.

        A slot that is to go completes its visit first, and what only it holds becomes durable. It
        holds for this run; from now on nodes that join bring no more slots than that.

        Raises:
            StudyError: nobody runs the study, its backend has one slot, a pool lends its slots, no
                slot would stay, or the nodes have no room for so many.
        """
        control.slots(self.setup, add, remove, count)
