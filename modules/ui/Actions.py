"""The actions behind the toolbars and keys of the main window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Action = Callable[[], object]


@dataclass(frozen=True)
class Actions:
    """Callbacks for the buttons, menus and keys of the main window.

    Args:
        zoom: scale up one level (1), down one level (-1), or back to 100 % (0).
        order: send the run a command by name.
        pause_or_resume: pause or resume, depending on the state of the run.
        toggle_problems: open or close the list of problems.
        show_pages: one per page without a key of its own, in sidebar order.
        show_by_key: the other pages, by Tk key name.
        turn_page: to the next page (1) or the previous one (-1).
        scroll: scroll the current page one screen down (1) or up (-1).
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
