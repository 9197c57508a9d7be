from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import setting
from modules.util.enum.TimeUnit import TimeUnit


class BackupSection(BaseConfig):
    """Backups to continue from, and models saved on the way."""

    SECTION: ClassVar[str] = "Backup"

    backup_after: int = setting(
        30,
        ge=0,
        le=1_000_000_000,
        visible="!backup_after_unit=NEVER|ALWAYS",
        title="Back up every",
        group="Backups",
        tip="Interval between backups, in the unit beside it.",
    )
    backup_after_unit: TimeUnit = setting(
        TimeUnit.MINUTE, title="Unit", group="Backups", tip="Unit of the backup interval."
    )
    rolling_backup: bool = setting(
        True, title="Keep only the newest", group="Backups", tip="Delete older backups of the run."
    )
    rolling_backup_count: int = setting(
        3,
        ge=1,
        le=100_000,
        visible="rolling_backup",
        title="Backups kept",
        group="Backups",
        tip="How many of the newest backups stay.",
    )
    backup_before_save: bool = setting(
        False,
        title="Back up before the final save",
        group="Backups",
        tip="Make a last backup when training ends.",
    )
    save_every: int = setting(
        0,
        ge=0,
        le=1_000_000_000,
        visible="!save_every_unit=NEVER|ALWAYS",
        title="Save every",
        group="Saves",
        tip="Interval between saves of the model on the way, in the unit beside it.",
    )
    save_every_unit: TimeUnit = setting(
        TimeUnit.NEVER, title="Unit", group="Saves", tip="Unit of the save interval."
    )
    save_skip_first: int = setting(
        0,
        ge=0,
        le=1_000_000_000,
        visible="!save_every_unit=NEVER",
        title="Skip first",
        group="Saves",
        tip="So many saves at the start are left out.",
    )
    save_filename_prefix: str = setting(
        "",
        visible="!save_every_unit=NEVER",
        title="File name prefix",
        group="Saves",
        tip="Put before the names of models saved on the way.",
    )
