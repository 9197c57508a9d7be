"""An entry of the sidebar and the page behind it, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PageSpec:
    """One entry of the sidebar.

    Args:
        key: its name in files and tests.
        title: what the sidebar says.
        sections: sections of the config it shows; a section that no page names gets a page of its own.
        module: module of ``modules.ui.pages`` whose class of the same name is the page.
        about: one line under the title.
    """

    key: str
    title: str
    sections: tuple[str, ...] = ()
    module: str = "FormPage"
    about: str = ""
