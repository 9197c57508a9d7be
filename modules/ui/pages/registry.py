"""The pages of the main window, in order. A page's module is imported when the page is first opened."""

from __future__ import annotations

import importlib

from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.util.config.settings import Setting

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


def page_class(spec: PageSpec) -> type[Page]:
    """The class of a page; its module is imported now."""
    found: type[Page] = getattr(importlib.import_module(f"modules.ui.pages.{spec.module}"), spec.module)
    return found
