"""A sidebar entry and its page, as data: a constant in the page's file in ``modules.ui.texts``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PageSpec:
    """One entry of the sidebar.

    Args:
        key: its name in files and tests.
        title: what the sidebar says.
        order: its rank in the sidebar, from the top. Steps of ten leave room for pages in between.
        sections: sections of the config it shows. A section that no page lists gets a page of its own.
        module: module in ``modules.ui.pages`` that defines the page class of the same name.
        about: one line under the title.
        key_name: a key of its own, as shown to people; the other pages have Ctrl and their number.
    """

    key: str
    title: str
    order: int
    sections: tuple[str, ...] = ()
    module: str = "FormPage"
    about: str = ""
    key_name: str = ""
