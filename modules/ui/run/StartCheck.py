"""What stands between the settings and a training. The files are looked at in the background after every change."""

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

SETTLED_MS = 1500
"""The files are looked at when nothing has changed for this long."""


class StartCheck:
    """Problems of the settings, which are known at once, and of files and model, which take a dry run.

    Args:
        ui: what parts share.
        is_live: whether training is under way; files are not looked at then.
        changed: called when more or less is known than before.
        command: of the dry run.
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
        self._timer = ""
        self._then: Callable[[], None] | None = None
        self._paces: list[tuple[dict[str, Any], float]] = []
        self.forecast = Forecast()
        """What the run will take, at the present settings; nothing while that is unknown."""
        self.checked = False
        """Whether everything there is to know of the present settings is known."""

    # -- what is known ---------------------------------------------------------------------------------------

    def problems(self) -> list[Problem]:
        """All of them; what was wrong with files before the last change is shown until more is known."""
        known = self._of_settings()
        return known if _errors(known) else [*known, *self._of_files]

    def errors(self) -> list[Problem]:
        """Those of ``problems`` that keep training from starting."""
        return _errors(self.problems())

    def errors_of_settings(self) -> list[Problem]:
        """Those that are certain without a look at any file."""
        return _errors(self._of_settings())

    @property
    def checking(self) -> bool:
        """Whether an answer is on its way."""
        return self._run is not None or bool(self._timer)

    def _of_settings(self) -> list[Problem]:
        state = self._ui.state
        missing = no_images(state.config)
        return [*([] if missing is None else [missing]), *state.problems()]

    # -- looking ---------------------------------------------------------------------------------------------

    def soon(self) -> None:
        """Something changed: look again when it has settled."""
        self._stop()
        self.checked, self.forecast = False, Forecast()
        self._timer = self._ui.root.after(SETTLED_MS, self._look)

    def after_absence(self) -> None:
        """The person comes back to the window, perhaps from fixing files."""
        if _errors(self._of_files) and not self.checking:
            self.soon()

    def now(self, then: Callable[[], None]) -> None:
        """Look at once, and call ``then`` when everything is known; a later change forgets that."""
        self._then = then
        if self._run is None:
            self._stop()
            self._look()

    def _look(self) -> None:
        self._timer = ""
        if self._is_live():
            self._changed()
        elif self.errors_of_settings():
            self._known(Found([]))
        else:
            run = self._run = DryRun(self._command, self._ui.state.config.to_dict())
            self._ui.work(
                run.run, lambda found: self._done(run, found), lambda error: self._failed(run, error)
            )
            self._changed()

    def _done(self, run: DryRun, found: Found) -> None:
        if run is self._run:
            self._run = None
            self._known(found)

    def _failed(self, run: DryRun, error: Exception) -> None:
        self._done(run, Found([Problem("", words.NOT_CHECKED.format(reason=error), warning=True)]))

    def _known(self, found: Found) -> None:
        self._of_files, self.checked = found.problems, True
        self.forecast = self._with_pace(found.forecast)
        then, self._then = self._then, None
        self._changed()
        if then is not None:
            then()

    def take_pace(self, config: Mapping[str, Any], seconds: float) -> None:
        """What a step took in a trial; used for all settings of its kind until the window is closed."""
        self._paces.append((kind_of(config), seconds))
        self.forecast = self._with_pace(self.forecast)
        self._changed()

    def _with_pace(self, forecast: Forecast) -> Forecast:
        """With the time of a step from a trial, where no run has told it."""
        if not self._paces or not forecast.steps or forecast.seconds is not None:
            return forecast
        kind = kind_of(self._ui.state.config.to_dict())
        known = [seconds for measured, seconds in self._paces if measured == kind]
        return replace(forecast, seconds=known[-1]) if known else forecast

    def _stop(self) -> None:
        if self._timer:
            self._ui.root.after_cancel(self._timer)
            self._timer = ""
        if self._run is not None:
            self._run.cancel()
            self._run = None

    def close(self) -> None:
        """Stop looking."""
        self._stop()


def _errors(problems: Sequence[Problem]) -> list[Problem]:
    return [problem for problem in problems if not problem.warning]
