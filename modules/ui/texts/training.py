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

# the window of the optimizer's parameters
PARAMETERS_OF = "Parameters of {name}"
PARAMETERS_ABOUT = (
    "An empty field is the default. Start uses what is set here, and {name}'s own defaults for the rest."
)
ON, OFF, NOTHING = "on", "off", "nothing"
TO_DEFAULT, TO_DEFAULT_TIP = "Default", "Back to the default"
ALL_TO_DEFAULT = "All to default"
ROW_ABOUT = "{about} Default {default}; {allowed}."
STRANGE = "{name} = {value}: {fault}"
TAKE_OUT = "Remove"
