"""Measure how hard each image is for a model: mean losses as a table and a sheet of images, the hardest first.

Check images with a far higher loss than the others: the caption may be wrong, the file damaged, or the image may not
belong to the set. The same command gives the same numbers.

Exit status: 0 done, 2 something to fix first, 130 stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.tools.catalog import LOSSES  # noqa: E402
from modules.util.config.load import check_config, load_layered  # noqa: E402
from modules.util.display import command_parser, print_any_text  # noqa: E402
from modules.util.errors import ConfigError, DataError, UserError, UserErrors  # noqa: E402
from modules.util.files.result_file import check_result_file  # noqa: E402
from scripts.curate import ProgressLine, exit_status  # noqa: E402

if TYPE_CHECKING:
    from modules.trainer.evaluate.image_losses import ImageLoss

SHOWN = 20
MAX_LEVELS = 100


def check_free(options: argparse.Namespace) -> None:
    """Check that both files can be written, and replace nothing unless this was asked for.

    Raises:
        UserError: one exists, or the folder cannot be written.
    """
    from modules.trainer.evaluate.image_losses import sheet_of

    for path in (options.target, sheet_of(options.target)):
        if os.path.lexists(path) and not options.overwrite:
            raise DataError(f"{path} already exists", hint="choose another name, or add --overwrite")
        check_result_file(path, "target", lambda _: True)


def run(options: argparse.Namespace, progress: ProgressLine) -> None:
    from modules.trainer.distributed import choose_device
    from modules.trainer.evaluate import image_losses

    if not 1 <= options.levels <= MAX_LEVELS:
        raise ConfigError(f"{options.levels} is not between 1 and {MAX_LEVELS}", "--levels")
    for name in ("images", "adapter"):
        path = getattr(options, name)
        if path is not None and not path.exists():
            raise DataError(f"{path} does not exist", hint="check the path")
    if not options.target.name:
        raise ConfigError("the name of the table is empty", "target", "give a name that ends with .csv")
    if options.target.suffix.lower() == ".png":
        raise ConfigError(f"{options.target} is the name of an image", "target", "choose a name that ends with .csv")
    check_free(options)
    config = image_losses.settings_of(load_layered(None, options.config), options.images)
    check_config(config)
    if options.dry_run:
        print(
            f"the losses of {options.images or 'the concepts of the config'} would be written to {options.target}"
        )
        return
    device = choose_device(config.train_device)
    found = image_losses.image_losses(config, options.adapter, options.levels, device, progress.count)
    for one in found[:SHOWN]:
        print(f"{one.loss:.6f}  {one.path}")
    if len(found) > SHOWN:
        print(f"and {len(found) - SHOWN} more in the table")
    write(found, options)
    print(options.target)
    print(image_losses.sheet_of(options.target))


def write(found: list[ImageLoss], options: argparse.Namespace) -> None:
    """Write both files. If somebody has created one of them since the check, the other is written anyway."""
    from modules.trainer.evaluate import image_losses

    errors = []
    for part in (image_losses.write_table, image_losses.write_sheet):
        try:
            part(found, options.target, options.overwrite)
        except UserError as error:
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else UserErrors(errors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; see ``--help``."""
    parser = command_parser(__doc__)
    LOSSES.add_to(parser)
    options = parser.parse_args(arguments)
    progress = ProgressLine()
    return exit_status(lambda: run(options, progress), progress)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
