"""Texts of the Project page: the GPUs that train."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "project",
    "Project",
    order=10,
    sections=("Project",),
    module="ProjectPage",
    about="What is trained, where it runs and where its files go.",
)

GPUS = "GPUs that train"
GPU = "{device}: {name}"
GPU_TIP = (
    "Each selected GPU trains in a separate process, with a copy of the model and a full batch. An optimizer "
    "step learns from the batches of all selected GPUs. For an ordinary run, select one GPU. If no GPU is "
    "selected, the first one trains."
)
NO_GPU = "auto"
