from functools import partial
from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import NamePart, setting
from modules.util.enum.choices import TimeUnit

_backups = partial(setting, group="Backups", free=True)
_saves = partial(setting, group="Saves", free=True)


class BackupSection(BaseConfig):
    """Backups to resume from, and models saved during training."""

    SECTION: ClassVar[str] = "Backup"

    backup_after: int = _backups(
        30,
        within=(0, 1_000_000_000),
        visible="!backup_after_unit=NEVER|ALWAYS",
        title="Back up every",
        tip="Interval between backups, in the unit next to it.",
    )
    backup_after_unit: TimeUnit = _backups(
        TimeUnit.MINUTE,
        title="Backup unit",
        tip="Unit of the backup interval. ALWAYS: after each step. NEVER: no backups at intervals.",
    )
    backup_each_tenth: bool = _backups(
        True,
        visible="backup_after_unit=SECOND|MINUTE|HOUR",
        title="Backup every 10 %",
        tip=(
            "Make an additional backup after each tenth of the run's steps. A killed run then loses at most a tenth of "
            "its steps. Turn this off if backups take long, as in full fine-tuning."
        ),
    )
    rolling_backup: bool = _backups(True, title="Newest backups only", tip="Delete older backups of the run.")
    rolling_backup_count: int = _backups(
        3,
        within=(1, 100_000),
        visible="rolling_backup",
        title="Backups kept",
        tip="Number of backups that are kept; the oldest are deleted first.",
    )
    backup_before_save: bool = _backups(
        False,
        title="Final backup",
        tip="Make a backup when training ends, before the final save.",
    )
    save_every: int = _saves(
        0,
        within=(0, 1_000_000_000),
        visible="!save_every_unit=NEVER|ALWAYS",
        tip="Interval between saves of the model during training, in the unit next to it.",
    )
    save_every_unit: TimeUnit = _saves(
        TimeUnit.NEVER,
        title="Save unit",
        tip="Unit of the save interval. NEVER: the model is not saved during training. ALWAYS: after each step.",
    )
    save_skip_first: int = _saves(
        0,
        within=(0, 1_000_000_000),
        visible="!save_every_unit=NEVER",
        title="Skipped saves",
        tip="Skip this many saves at the start.",
    )
    save_filename_prefix: NamePart = _saves(
        "",
        title="File name prefix",
        tip="Text at the start of the file names of models saved during training.",
    )
