"""The pair tool: from a folder of images to preference pairs."""

from __future__ import annotations

import logging
import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from modules.ui.curation.ChoosingPage import ChoosingPage
from modules.ui.curation.ExportPage import ExportActions, ExportPage
from modules.ui.curation.PairController import PairController, PickingOptions, Snapshot
from modules.ui.curation.PairToolMemory import PairToolMemory
from modules.ui.curation.StartPage import Looks, StartActions, StartPage
from modules.ui.review.ReviewPage import ReviewPage
from modules.ui.texts import start as words
from modules.ui.widgets.Chooser import Chooser
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.ToolHost import ToolHost

log = logging.getLogger(__name__)


class DPOCurationWindow(ToolHost):
    """Shows the pages of the pair tool.

    Args:
        settings: folder in which the fields are saved.
        looks: appearance and scale, if the tool itself offers them.
        train: sets up training on the pairs of a folder; only with a main window.
    """

    name = words.PAIR_TOOL

    def __init__(
        self,
        window: tk.Tk | tk.Toplevel,
        theme: Theme,
        settings: Path,
        closed: Callable[[], None],
        looks: Looks | None = None,
        train: Callable[[Path], None] | None = None,
    ) -> None:
        super().__init__(window, theme, closed)
        self.train = train
        self.controller: PairController | None = None
        self.settings = settings
        self.looks = looks
        self.memory = PairToolMemory.load(settings)
        self.chooser = Chooser(window, self.memory)
        self._shot: Snapshot | None = None

    @property
    def at_start(self) -> bool:
        """True on the start page."""
        return isinstance(self.page, StartPage)

    def show_start(self) -> None:
        """Show the start page and end the current session."""

        def ended() -> None:
            page = StartPage(
                self,
                self.theme,
                self.pump,
                self.memory,
                self.chooser,
                StartActions(self.start, self.show_review, self._change_looks),
                self.looks,
            )
            self.show(page, "")

        self._end_session(ended)

    def _change_looks(self, appearance: str, scale: int) -> None:
        assert self.looks is not None
        try:
            self.looks.set(appearance, scale)
        except OSError as error:
            log.warning("the appearance cannot be saved: %s", error)
        self.show_start()

    def start(self, options: PickingOptions) -> None:
        """Start picking, or continue an earlier session."""
        self._save()
        self.controller = PairController(
            options, self.worker, self._changed, self._verb_failed, self.pump.post
        )
        self._shot = None
        self.show_choosing()
        self.controller.start()

    def _changed(self, shot: Snapshot) -> None:
        self._shot = shot
        if isinstance(self.page, ChoosingPage):
            self.page.show_snapshot(shot)

    def _verb_failed(self, error: Exception) -> None:
        if self.controller is not None and self._shot is None:
            self.show_start()
        self.failed(error)

    def show_choosing(self) -> None:
        """Show the page where pairs are picked."""
        controller = self.controller
        assert controller is not None
        page = ChoosingPage(
            self, self.theme, controller, self.prefetcher, self.show_export, self.memory.blind
        )
        self.show(page, controller.options.source.name)
        if self._shot is not None:
            page.show_snapshot(self._shot)
            controller.refresh()

    def show_export(self) -> None:
        """Show the page that finalises pairs."""
        controller = self.controller
        if controller is None or self._shot is None:
            return
        options = controller.options
        page = ExportPage(
            self,
            self.theme,
            controller,
            self.memory,
            self.chooser,
            ExportActions(
                back=self.show_choosing,
                review=lambda: self.show_review(options.output),
                restart=self.show_start,
                train=None if self.train is None else self._train,
            ),
        )
        self.show(page, words.EXPORT_OF.format(name=options.output.name))

    def _train(self) -> None:
        """Pass the finalised pairs to the main window and close."""
        controller, train = self.controller, self.train
        assert controller is not None and train is not None
        output = controller.options.output
        self.close(lambda: train(output))

    def show_review(self, output: Path) -> None:
        """Review the finalised pairs of a folder. The session continues afterwards."""
        options = None if self.controller is None else self.controller.options

        def back() -> None:
            if options is None:
                self.show_start()
            else:
                self.start(options)

        def opened() -> None:
            page = ReviewPage(self, self.theme, self.worker, self.prefetcher, output, back)
            self.show(page, words.REVIEW_OF.format(name=output.name))
            page.open()

        self._end_session(opened)

    def _end_session(self, then: Callable[[], None]) -> None:
        page = self.page
        if isinstance(page, ReviewPage):
            page.close_folder(then)
        elif self.controller is not None:
            controller, self.controller = self.controller, None
            controller.close(then)
        else:
            then()

    def _save(self) -> None:
        try:
            self.memory.save(self.settings)
        except OSError as error:
            log.warning("the settings of the pair tool cannot be saved in %s: %s", self.settings, error)

    def prepare_close(self, then: Callable[[], None]) -> None:
        self._save()
        self._end_session(then)
