"""Texts of the page of samples."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "sampling",
    "Sampling",
    order=70,
    sections=("Sampling",),
    module="SamplingPage",
    about="Images made during training.",
)

SAMPLES = "Samples"
COLUMN_PROMPT, COLUMN_SIZE, COLUMN_SEED, COLUMN_STEPS = "Prompt", "Size", "Seed", "Steps"
COLUMN_CFG, COLUMN_SAMPLER = "CFG", "Sampler"
EMPTY_PROMPT = "(empty)"
AUTO = "auto"
OTHER_SEED = "random"
ADD_TIP = "Add a prompt"
SAMPLE = "Sample {number}"
NEW_SAMPLE = "New sample"
