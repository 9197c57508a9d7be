"""An entry of the sidebar and the page behind it, as data: a constant in the page's file of ``modules.ui.texts``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PageSpec:
    """One entry of the sidebar.

    Args:
        key: its name in files and tests.
        title: what the sidebar says.
        order: its place in the sidebar, from the top. Steps of ten leave room between two pages.
        sections: sections of the config it shows; a section that no page names gets a page of its own.
        module: module of ``modules.ui.pages`` whose class of the same name is the page.
        about: one line under the title.
        key_name: a key of its own, as people write it; the other pages have Ctrl and their number.
    """

    key: str
    title: str
    order: int
    sections: tuple[str, ...] = ()
    module: str = "FormPage"
    about: str = ""
    key_name: str = ""
