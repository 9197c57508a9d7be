"""Texts of the page of training: the optimizer's further arguments."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "training",
    "Training",
    order=40,
    sections=("Training", "Validation"),
    module="TrainingPage",
    about="Optimizer, length, noise and loss.",
)

NONE_SET = "None: the optimizer's own defaults apply"
HAS_FIELD = "has its own field: {title}"
SET_BY_PROGRAM = "is set by the program"
ABOUT = "{tip} Start refuses names that the optimizer does not have."
