import re
from typing import ClassVar

from pydantic import field_validator

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import setting
from modules.util.enum.DataType import DataType
from modules.util.enum.TrainingMethod import TrainingMethod

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?|mps")


class ProjectSection(BaseConfig):
    """What is trained, where it runs and where its files go."""

    SECTION: ClassVar[str] = "Project"

    training_method: TrainingMethod = setting(
        TrainingMethod.LORA,
        title="Training method",
        group="Run",
        tip=(
            "LoRA trains a small adapter; fine-tuning trains the model's own weights and needs far more "
            "memory."
        ),
    )
    seed: int = setting(
        42,
        ge=0,
        le=2**53 - 1,
        title="Seed",
        group="Run",
        tip=(
            "One number behind everything random: the same config with the same seed trains the same weights."
        ),
    )
    continue_last_backup: bool = setting(
        False,
        title="Continue from last backup",
        group="Run",
        tip="Go on from the newest backup in the workspace instead of starting anew.",
    )
    only_cache: bool = setting(
        False,
        title="Only fill the cache",
        group="Run",
        tip="Encode all images and prompts, then stop before training.",
    )
    workspace_dir: str = setting(
        "workspace/run",
        min_length=1,
        widget="folder",
        title="Workspace",
        group="Folders",
        tip="Folder for this run's backups, samples, logs and saved models.",
    )
    cache_dir: str = setting(
        "workspace-cache/run",
        min_length=1,
        widget="folder",
        title="Cache",
        group="Folders",
        tip="Folder for encoded images and prompts. Its entries are found by content, so runs can share it.",
    )
    train_device: str = setting(
        "auto",
        widget="device",
        title="Device",
        group="Hardware",
        tip="auto takes the first GPU if there is one; otherwise cpu, cuda or cuda:1 for the second GPU.",
    )
    train_dtype: DataType = setting(
        DataType.BFLOAT_16,
        title="Autocast",
        group="Hardware",
        tip=(
            "Number format of the computation. FLOAT_32 switches autocast off: slower, exactly repeatable on "
            "the CPU."
        ),
    )
    cpu_threads: int = setting(
        0,
        ge=0,
        le=1024,
        title="CPU threads",
        group="Hardware",
        tip="Threads for computation on the CPU; 0 leaves the choice to PyTorch.",
    )
    tensorboard: bool = setting(
        True,
        title="TensorBoard",
        group="Logging",
        tip="Write curves and samples for TensorBoard into the workspace.",
    )
    tensorboard_port: int = setting(
        6006,
        ge=1,
        le=65535,
        visible="tensorboard",
        title="TensorBoard port",
        group="Logging",
        tip="Local port the TensorBoard button opens.",
    )

    @field_validator("train_device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not _DEVICE.fullmatch(value):
            raise ValueError(f"must be auto, cpu, cuda or cuda:N, not {value!r}")
        return value
