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
    "Each GPU you select trains in a process of its own, with a copy of the model and a batch of the batch size. A "
    "step learns from the batches of all of them. Select one for a usual run. With none, the first GPU trains."
)
NO_GPU = "auto"
