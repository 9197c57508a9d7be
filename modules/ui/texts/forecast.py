"""Texts about the predicted cost of a run: memory and time next to Start."""

from modules.util.display import counted

FITS = "{needed:.1f} of {free:.1f} GiB"
TOO_MUCH = "Does not fit: {needed:.1f} GiB needed, {free:.1f} GiB free"
NEEDS_NO_CARD = "Needs {needed:.1f} GiB on a CUDA GPU; this computer has none"
MEMORY_UNKNOWN_SHORT, NEEDS = "Memory unknown", "{needed:.1f} GiB"
MEMORY_UNKNOWN = "Memory unknown: {reason}"
TIME_UNKNOWN = "{steps}, time unknown"
TIME = "{steps}, about {time}"
LOOKING = "Predicting memory and time\u2026"
TIP = (
    "Predicted memory and time of the run. Memory is calculated from the shapes of the model's weights and "
    "activations. Time is the number of optimizer steps times the time of a step in the last run with the same "
    "model, size, batch and mode."
)

MAKE_IT_FIT = "Make it fit"
MAKE_IT_FIT_TIP = (
    "Makes the changes that cost the least time and quality: {changes}. The run then needs {needed:.1f} GiB."
)
MADE_TO_FIT = "Changed so that it fits: {changes}"
CHANGE = "{title}: {value}"

MEASURE, MEASURE_TIP = (
    "Measure",
    "Train three optimizer steps in a temporary folder and measure the time of a step",
)
CANCEL = "Cancel"
MEASURING = "Measuring: {progress}"
MEASURED = "A step takes {seconds:.2f} s"
NOT_MEASURED = "The time of a step could not be measured: {reason}"
TRIAL_TOO_SHORT = "training ended before the second step"
BUSY = "the device is in use by the run in {folder}"
LOADING = "loading"


def about(seconds: float) -> str:
    """``40 s``, ``25 min`` or ``3.5 h``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def steps_and_time(steps: int, seconds: float | None) -> str:
    """``160 steps, about 25 min``.

    Args:
        seconds: duration of one step; ``None`` if unknown.
    """
    said = counted(steps, "step")
    return (
        TIME_UNKNOWN.format(steps=said)
        if seconds is None
        else TIME.format(steps=said, time=about(steps * seconds))
    )
