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
    "Training uses the values set here. An empty field uses {name}'s own default."
)
ON, OFF, NOTHING = "on", "off", "nothing"
TO_DEFAULT, TO_DEFAULT_TIP = "Reset", "Reset to the default"
ALL_TO_DEFAULT = "Reset all"
ROW_ABOUT = "{about} Default {default}; {allowed}."
STRANGE = "{name} = {value}: {fault}"
TAKE_OUT = "Remove"

# curves
DRAW, HIDE, DRAWING = "Draw", "Hide", "The first drawing takes a few seconds"
RATE_TITLE, RATE = "Learning rate over the run", "rate"
RATE_SAID = (
    "Learning rate at each optimizer step, up to step {steps}, with one process. For parts with their own rate, "
    "the curve has the same shape."
)
LEVELS_TITLE = "Noise levels"
LEVELS_OF = {"drawn": "training", "own": "the model"}
LEVELS_SAID = (
    "Training: how often each noise level is drawn (10,000 draws at {size} pixels with shift {shift:.3g}); 0 is "
    "the image, 1 is noise. The model: the levels that a published model of this family uses to make an image of "
    "that size."
)
