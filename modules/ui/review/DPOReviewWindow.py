"""The review of finalised pairs, in a window of its own."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from modules.ui.review.ReviewPage import RESOLUTION, ReviewPage
from modules.ui.texts import start as words
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.ToolHost import ToolHost


class DPOReviewWindow(ToolHost):
    """Reviews one folder and closes when the person is done.

    Args:
        output: the folder with finalised pairs.
        resolution: the training resolution whose crop buckets are compared.
    """

    name = words.REVIEW_TITLE

    def __init__(
        self,
        window: tk.Tk | tk.Toplevel,
        theme: Theme,
        output: Path,
        closed: Callable[[], None],
        resolution: int = RESOLUTION,
    ) -> None:
        super().__init__(window, theme, closed)
        self.review = ReviewPage(self, theme, self.worker, self.prefetcher, output, self.close, resolution)
        self.show(self.review, output.name)
        self.review.open()

    def prepare_close(self, then: Callable[[], None]) -> None:
        self.review.close_folder(then)
