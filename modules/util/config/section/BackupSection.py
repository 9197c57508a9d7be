from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import NamePart, setting
from modules.util.enum.choices import TimeUnit


class BackupSection(BaseConfig):
    """Backups to resume from, and models saved during training."""

    SECTION: ClassVar[str] = "Backup"

    backup_after: int = setting(
        30,
        ge=0,
        le=1_000_000_000,
        visible="!backup_after_unit=NEVER|ALWAYS",
        free=True,
        title="Back up every",
        group="Backups",
        tip="Interval between backups, in the unit next to it.",
    )
    backup_after_unit: TimeUnit = setting(
        TimeUnit.MINUTE,
        free=True,
        title="Backup unit",
        group="Backups",
        tip="Unit of the backup interval. ALWAYS: after each step. NEVER: no backups at intervals.",
    )
    backup_each_tenth: bool = setting(
        True,
        visible="backup_after_unit=SECOND|MINUTE|HOUR",
        free=True,
        title="Backup every 10 %",
        group="Backups",
        tip=(
            "Make an additional backup after each tenth of the run's steps. A killed run then loses at most a tenth of "
            "its steps. Turn this off if backups take long, as in full fine-tuning."
        ),
    )
    rolling_backup: bool = setting(
        True, free=True, title="Newest backups only", group="Backups", tip="Delete older backups of the run."
    )
    rolling_backup_count: int = setting(
        3,
        ge=1,
        le=100_000,
        visible="rolling_backup",
        free=True,
        title="Backups kept",
        group="Backups",
        tip="Number of backups that are kept; the oldest are deleted first.",
    )
    backup_before_save: bool = setting(
        False,
        free=True,
        title="Final backup",
        group="Backups",
        tip="Make a backup when training ends, before the final save.",
    )
    save_every: int = setting(
        0,
        ge=0,
        le=1_000_000_000,
        visible="!save_every_unit=NEVER|ALWAYS",
        free=True,
        title="Save every",
        group="Saves",
        tip="Interval between saves of the model during training, in the unit next to it.",
    )
    save_every_unit: TimeUnit = setting(
        TimeUnit.NEVER,
        free=True,
        title="Save unit",
        group="Saves",
        tip="Unit of the save interval. NEVER: the model is not saved during training. ALWAYS: after each step.",
    )
    save_skip_first: int = setting(
        0,
        ge=0,
        le=1_000_000_000,
        visible="!save_every_unit=NEVER",
        free=True,
        title="Skipped saves",
        group="Saves",
        tip="Skip this many saves at the start.",
    )
    save_filename_prefix: NamePart = setting(
        "",
        free=True,
        title="File name prefix",
        group="Saves",
        tip="Text at the start of the file names of models saved during training.",
    )
