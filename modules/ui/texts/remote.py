"""The Remote page, which is a form of its settings."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "remote",
    "Remote",
    order=85,
    sections=("Remote",),
    about="Another computer to train on, with scripts/train_remote.py.",
)
