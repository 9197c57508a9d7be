"""The problems that prevent training from starting. Files are checked in the background after every change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from modules.runner.pace import kind_of
from modules.ui.state.ConfigState import Problem
from modules.ui.state.DryRun import DRY_RUN, DryRun, Found, no_images
from modules.ui.state.runs.Forecast import Forecast
from modules.ui.texts import run as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import Timer

SETTLED_MS = 1500
"""Files are checked after this long without a change."""


class StartCheck:
    """Finds problems of the settings immediately, and of files and model by a dry run.

    Args:
        is_live: whether training is running; files are not checked then unless ``now`` asks for it.
        changed: called when the known problems change.
        command: command line of the dry run.
    """

    def __init__(
        self,
        ui: Ui,
        is_live: Callable[[], bool],
        changed: Callable[[], None],
        command: Sequence[str] = DRY_RUN,
    ) -> None:
        self._ui, self._is_live, self._changed, self._command = ui, is_live, changed, command
        self._of_files: list[Problem] = []
        self._run: DryRun | None = None
        self._settling = Timer(ui.root, SETTLED_MS, self._look)
        self._then: dict[Callable[[], None], Mapping[str, Any]] = {}
        self._paces: list[tuple[dict[str, Any], float]] = []
        self.forecast = Forecast()
        """The predicted cost of the run at the current settings; empty while unknown."""
        self.checked = False
        """True if the check of the current settings is complete."""

    # -- what is known ---------------------------------------------------------------------------------------

    def problems(self) -> list[Problem]:
        """All problems. Problems of files found before the last change stay until the new check is done."""
        known = self._of_settings()
        return known if _errors(known) else [*known, *self._of_files]

    def errors(self) -> list[Problem]:
        """Those of ``problems`` that prevent training from starting."""
        return _errors(self.problems())

    def errors_of_settings(self) -> list[Problem]:
        """Errors that are certain without looking at any file."""
        return _errors(self._of_settings())

    @property
    def checking(self) -> bool:
        """True if a check is running."""
        return self._run is not None or self._settling.running

    def _of_settings(self) -> list[Problem]:
        state = self._ui.state
        missing = no_images(state.config)
        return [*([] if missing is None else [missing]), *state.problems()]

    # -- looking ---------------------------------------------------------------------------------------------

    def soon(self) -> None:
        """Schedule a check once changes have settled."""
        self._stop()
        self.checked, self.forecast = False, Forecast()
        self._settling.start()

    def after_absence(self) -> None:
        """Check again when the person returns to the window, as files may have been fixed."""
        if _errors(self._of_files) and not self.checking:
            self.soon()

    def now(self, then: Callable[[], None], changes: Mapping[str, Any] | None = None) -> None:
        """Check immediately and call ``then`` when everything is known.

        A later change restarts the check, and delays the call. Several callers are called in turn, each once.

        Args:
            changes: settings with which the caller would start, unless others wait for the check too. A start with
                the settings of the window is checked again afterwards.
        """
        self._then[then] = changes or {}
        # also while a check is running: the files may have been fixed since it began
        self._stop()
        self._look()

    def _look(self) -> None:
        if self._is_live() and not self._then:
            self._changed()
        elif self.errors_of_settings():
            self._known(Found([]))
        else:
            changes = next(iter(self._then.values())) if len(self._then) == 1 else {}
            run = self._run = DryRun(self._command, {**self._ui.state.config.to_dict(), **changes})
            self._ui.work(
                run.run,
                lambda found: self._done(run, found, again=bool(changes)),
                lambda error: self._failed(run, error),
            )
            self._changed()

    def _done(self, run: DryRun, found: Found, again: bool = False) -> None:
        if run is self._run:
            self._run = None
            self._known(found)
            if again and not self.checking:
                self.soon()

    def _failed(self, run: DryRun, error: Exception) -> None:
        self._done(run, Found([Problem("", words.NOT_CHECKED.format(reason=error), warning=True)]))

    def _known(self, found: Found) -> None:
        self._of_files, self.checked = found.problems, True
        self.forecast = self._with_pace(found.forecast)
        waiting, self._then = self._then, {}
        self._changed()
        for then in waiting:
            then()

    def take_pace(self, config: Mapping[str, Any], seconds: float) -> None:
        """Record the time of a step in a trial. It is used for all settings of its kind until the window is
        closed.
        """
        self._paces.append((kind_of(config), seconds))
        self.forecast = self._with_pace(self.forecast)
        self._changed()

    def _with_pace(self, forecast: Forecast) -> Forecast:
        """Add the time of a step from a trial if no run has measured it."""
        if not self._paces or not forecast.steps or forecast.seconds is not None:
            return forecast
        kind = kind_of(self._ui.state.config.to_dict())
        known = [seconds for measured, seconds in self._paces if measured == kind]
        return replace(forecast, seconds=known[-1]) if known else forecast

    def _stop(self) -> None:
        self._settling.stop()
        if self._run is not None:
            self._run.cancel()
            self._run = None

    def close(self) -> None:
        """Stop checking."""
        self._stop()


def _errors(problems: Sequence[Problem]) -> list[Problem]:
    return [problem for problem in problems if not problem.warning]
