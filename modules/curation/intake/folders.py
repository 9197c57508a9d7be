"""Checks the combination of source and output folder."""

from __future__ import annotations

from pathlib import Path

from modules.util.errors import UserError

HASH_CACHE_NAME = ".hashes.sqlite"
"""Cache of hashes of the source images, in the output folder. Losing it costs nothing but time."""


def check_folders(source: Path, output: Path) -> None:
    """Refuse folders for which a session would scan its own copies.

    Raises:
        UserError: the source is missing, or it is the output folder or lies inside it.
    """
    if not source.is_dir():
        raise UserError(f"the folder {source} does not exist", hint="check the path")
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file, not a folder", hint="choose another output folder")
    if source.resolve().is_relative_to(output.resolve()):
        raise UserError(
            f"the source {source} is inside the output folder {output}",
            hint="choose an output folder next to the source, so that copies are not taken for new images",
        )
