"""The pages of the main window, in order. A page's module is imported when the page is first opened."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.util.config.settings import Setting

if TYPE_CHECKING:
    from modules.ui.pages.Page import Page


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

    def page_class(self) -> type[Page]:
        found: type[Page] = getattr(importlib.import_module(f"modules.ui.pages.{self.module}"), self.module)
        return found


PAGES = (
    PageSpec("project", "Project", ("Project",), about="What is trained, where it runs, where files go."),
    PageSpec("model", "Model", ("Model",), about="The base model, its parts, and the file that comes out."),
    PageSpec(
        "data", "Data & concepts", ("Data",), "DataPage", about="The images, and what each folder is for."
    ),
    PageSpec(
        "training",
        "Training",
        ("Training", "Validation"),
        "TrainingPage",
        about="Optimizer, length, noise and loss.",
    ),
    PageSpec("lora", "LoRA", ("LoRA",), about="The adapter and the layers it changes."),
    PageSpec("rlhf", "RLHF", ("RLHF",), "RlhfPage", about="Learning from what you prefer."),
    PageSpec("sampling", "Sampling", ("Sampling",), "SamplingPage", about="Images made while training."),
    PageSpec("backup", "Backup", ("Backup",), about="Copies to go on from, and models saved on the way."),
    PageSpec("tools", "Tools", module="ToolsPage", about="Beside training."),
    PageSpec("run", "Run", module="RunPage", about="Curves, samples and log of the training under way."),
)


def pages_for(settings: dict[str, Setting]) -> tuple[PageSpec, ...]:
    """``PAGES``, and a page for every section of the settings that none of them shows."""
    known = {section for page in PAGES for section in page.sections}
    missing = dict.fromkeys(s.section for s in settings.values() if s.section not in known)
    return (*PAGES, *(PageSpec(name.lower(), name, (name,)) for name in missing))


def page_of(pages: tuple[PageSpec, ...], setting: Setting) -> PageSpec:
    """The page that shows a setting."""
    for page in pages:
        if setting.section in page.sections:
            return page
    raise KeyError(setting.section)
