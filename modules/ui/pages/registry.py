"""The pages of the main window, found by scanning their texts. A page's module is imported when it is first
opened."""

from __future__ import annotations

import importlib
from collections import Counter

from modules.spec.registry import found_in
from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.util.config.settings import Setting


def scan(package: str) -> tuple[PageSpec, ...]:
    """Find the page entries in the modules of a package, sorted by their order.

    Args:
        package: dotted name of a package; its modules are imported, so they have to be light.

    Raises:
        RuntimeError: two pages have the same key or the same order.
    """
    pages = sorted((spec for _, spec in found_in(package, PageSpec)), key=lambda page: page.order)
    for name, given in (("key", [p.key for p in pages]), ("order", [p.order for p in pages])):
        if twice := [value for value, count in Counter(given).items() if count > 1]:
            raise RuntimeError(f"two pages of {package} have the {name} {twice[0]}")
    return tuple(pages)


PAGES = scan("modules.ui.texts")
"""The pages in the order of the sidebar."""


def pages_for(settings: dict[str, Setting]) -> tuple[PageSpec, ...]:
    """``PAGES``, plus a page for every section of the settings that none of them shows."""
    known = {section for page in PAGES for section in page.sections}
    missing = dict.fromkeys(s.section for s in settings.values() if s.section not in known)
    last = max(page.order for page in PAGES)
    added = (
        PageSpec(name.lower(), name, order=place, sections=(name,))
        for place, name in enumerate(missing, start=last + 1)
    )
    return (*PAGES, *added)


def page_of(pages: tuple[PageSpec, ...], setting: Setting) -> PageSpec:
    """The page that shows a setting."""
    for page in pages:
        if setting.section in page.sections:
            return page
    raise KeyError(setting.section)


def page_class(spec: PageSpec) -> type[Page]:
    """Import the module of a page and return its class."""
    found: type[Page] = getattr(importlib.import_module(f"modules.ui.pages.{spec.module}"), spec.module)
    return found
