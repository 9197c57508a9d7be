"""The Project page, a form of its settings."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "project",
    "Project",
    order=10,
    sections=("Project",),
    about="What is trained, where it runs and where its files go.",
)
