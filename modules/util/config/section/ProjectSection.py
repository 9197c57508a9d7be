import re
from functools import partial
from typing import ClassVar

from pydantic import field_validator

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import PathText, setting
from modules.util.device_names import listed, plain
from modules.util.enum.choices import DataType, TrainingMethod

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?|mps|cuda:\d{1,3}(,cuda:\d{1,3})+|cpu(,cpu)+")

_run = partial(setting, group="Run")
_folders = partial(setting, group="Folders", free=True)
_hardware = partial(setting, group="Hardware", cost="value", free=False)
_logging = partial(setting, group="Logging", free=True)


class ProjectSection(BaseConfig):
    """The training method, the hardware, and the folders of the run."""

    SECTION: ClassVar[str] = "Project"

    training_method: TrainingMethod = _run(
        TrainingMethod.LORA,
        cost="value",
        free=False,
        tip=(
            "LORA trains a small adapter. FINE_TUNE trains the model's own weights and needs far more "
            "memory. EMBEDDING trains only the vectors of new words."
        ),
    )
    seed: int = _run(
        42,
        within=(0, 2**53 - 1),
        free=False,
        tip=("Seed of all random numbers. The same config with the same seed trains the same weights."),
    )
    continue_last_backup: bool = _run(
        False,
        free=True,
        title="Resume from last backup",
        tip="Resume from the newest backup in the workspace instead of starting a new run.",
    )
    only_cache: bool = _run(
        False,
        free=True,
        title="Only fill the cache",
        tip="Encode all images and prompts, then stop before training.",
    )
    workspace_dir: PathText = _folders(
        "workspace/run",
        min_length=1,
        widget="folder",
        title="Workspace",
        tip="Folder for this run's backups, samples, logs and saved models.",
    )
    cache_dir: PathText = _folders(
        "workspace-cache/run",
        min_length=1,
        widget="folder",
        title="Cache",
        tip=(
            "Folder for encoded images and prompts. Entries are found by content, so several runs can share the "
            "folder."
        ),
    )
    train_device: str = _hardware(
        "auto",
        widget="device",
        free=True,
        title="Device",
        tip=(
            "auto: the first GPU, or the CPU if there is none. Otherwise cpu, cuda, or cuda:1 for the second GPU. "
            "If several GPUs are listed, such as cuda:0,cuda:1, each trains its own batch, and a step "
            "learns from all of these batches."
        ),
    )
    train_dtype: DataType = _hardware(
        DataType.BFLOAT_16,
        title="Autocast",
        tip=(
            "Number format of the computation. FLOAT_32 switches autocast off: slower, but exactly repeatable on the "
            "CPU."
        ),
    )
    cpu_threads: int = _hardware(
        0,
        within=(0, 1024),
        title="CPU threads",
        tip="Threads for computation on the CPU; 0 leaves the choice to PyTorch.",
    )
    tensorboard: bool = _logging(
        True,
        title="TensorBoard",
        tip="Write curves and samples for TensorBoard into the workspace.",
    )
    tensorboard_port: int = _logging(
        6006,
        within=(1, 65535),
        title="TensorBoard port",
        tip="The local port that the TensorBoard button opens.",
    )

    @field_validator("train_device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not _DEVICE.fullmatch(value):
            raise ValueError(
                f"must be auto, cpu, cuda or cuda:N, or several GPUs such as cuda:0,cuda:1, not {value!r}"
            )
        names = [plain(name) for name in listed(value)]
        twice = next((name for name in names if name != "cpu" and names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is listed twice: each GPU trains in one process")
        return value if value == "cuda" else ",".join(names)
