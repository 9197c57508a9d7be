"""The Backup page, a form of its settings."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "backup",
    "Backup",
    order=80,
    sections=("Backup",),
    about="Backups to resume from, and models saved during training.",
)
