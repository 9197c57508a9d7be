"""The page of settings for training on another computer."""

from __future__ import annotations

from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.config.setting import setting


class RemoteSection(BaseConfig):
    """The place where a run is trained."""

    SECTION: ClassVar[str] = "Remote"

    remote: RemoteConfig = setting(
        factory=RemoteConfig,
        free=False,
        title="Remote computer",
        tip="A computer to train on over SSH, with \u201cStart there\u201d or scripts/train_remote.py.",
    )
