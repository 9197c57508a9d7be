"""What the bars and the keys of the main window do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Action = Callable[[], object]


@dataclass(frozen=True)
class Actions:
    """Each is done by a button, a menu or a key.

    Args:
        zoom: one size up (1), down (-1), or back to 100 % (0).
        start: start training.
        order: give the run a command by its name.
        pause_or_resume: whichever fits.
        toggle_problems: open or close the list of problems.
        show_pages: one for each page that has no key of its own, in order.
        show_by_key: the others, by their keys as Tk writes them.
        turn_page: to the next page (1) or the previous one (-1).
        scroll: the page in front, by a screen down (1) or up (-1).
    """

    new: Action
    load: Action
    save: Action
    save_as: Action
    import_: Action
    undo: Action
    redo: Action
    view: Action
    quit: Action
    search: Action
    zoom: Callable[[int], object]
    start: Action
    order: Callable[[str], object]
    pause_or_resume: Action
    toggle_problems: Action
    show_pages: tuple[Action, ...]
    show_by_key: dict[str, Action]
    turn_page: Callable[[int], object]
    scroll: Callable[[int], object]
