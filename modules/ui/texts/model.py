"""The Model page, a form of its settings."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "model",
    "Model",
    order=20,
    sections=("Model",),
    about="The base model, its parts, and the file that training writes.",
)
