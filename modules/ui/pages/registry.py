"""The pages of the main window, in order. A page's module is imported when the page is first opened."""

from __future__ import annotations

import importlib

from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.ui.texts import pages as words
from modules.util.config.settings import Setting

PAGES = (
    PageSpec("project", words.PROJECT, ("Project",), about=words.PROJECT_ABOUT),
    PageSpec("model", words.MODEL, ("Model",), about=words.MODEL_ABOUT),
    PageSpec("data", words.DATA, ("Data",), "DataPage", words.DATA_ABOUT),
    PageSpec("training", words.TRAINING, ("Training", "Validation"), "TrainingPage", words.TRAINING_ABOUT),
    PageSpec("lora", words.LORA, ("LoRA",), about=words.LORA_ABOUT),
    PageSpec("rlhf", words.RLHF, ("RLHF",), "RlhfPage", words.RLHF_ABOUT),
    PageSpec("sampling", words.SAMPLING, ("Sampling",), "SamplingPage", words.SAMPLING_ABOUT),
    PageSpec("backup", words.BACKUP, ("Backup",), about=words.BACKUP_ABOUT),
    PageSpec("tools", words.TOOLS, module="ToolsPage", about=words.TOOLS_ABOUT),
    PageSpec("run", words.RUN, module="RunPage", about=words.RUN_ABOUT),
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
