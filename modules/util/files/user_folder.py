"""The folder for data of one user: settings, secrets, log."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER_VARIABLE = "TASTEMAKER_SETTINGS"


def settings_folder() -> Path:
    """The program's own folder for this user."""
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given)
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", home / "AppData" / "Roaming")) / "Tastemaker"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "Tastemaker"
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "tastemaker"
