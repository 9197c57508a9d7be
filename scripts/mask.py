"""Masks for a folder of images: by a colour, by words, or without the background. Every change can be undone.

Masks that are written stay after Ctrl+C. --dry-run shows which images would get a mask, without loading a model.

Exit status: 0 done, 2 something to fix first, 130 stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.tools.catalog import MASK_TOOLS  # noqa: E402
from modules.tools.dataset.captioning import Outcome, Tell  # noqa: E402
from modules.tools.dataset.files import find_images  # noqa: E402
from modules.tools.dataset.masking import (  # noqa: E402
    Mode,
    Select,
    Wanted,
    colour_range,
    plan_masks,
    write_masks,
)
from modules.util.display import command_parser, print_any_text  # noqa: E402
from modules.util.errors import DataError  # noqa: E402
from scripts.curate import ProgressLine  # noqa: E402
from scripts.dataset import add_undo, carry_out, put_in_order, run_stoppable  # noqa: E402

Options = argparse.Namespace


def by_colour(options: Options) -> Select:
    return colour_range(options.color, options.tolerance)


def by_words(options: Options) -> Select:
    from modules.captioner.Segmenter import Segmenter
    from modules.trainer.distributed import choose_only_device

    device = choose_only_device(options.device)
    return Segmenter(str(options.model), options.prompt, options.threshold, device).select


def check_words(options: Options) -> None:
    from modules.captioner.Segmenter import check_words as check

    check(options.prompt, options.threshold)


def by_background(options: Options) -> Select:
    from modules.captioner.Subject import Subject
    from modules.trainer.distributed import choose_only_device

    return Subject(str(options.model), options.threshold, choose_only_device(options.device)).select


def check_threshold(options: Options) -> None:
    from modules.captioner.Segmenter import check_threshold as check

    check(options.threshold)


MAKERS: dict[str, Callable[[Options], Select]] = {
    "color": by_colour,
    "prompt": by_words,
    "background": by_background,
}
CHECKS: dict[str, Callable[[Options], object]] = {
    "color": by_colour,
    "prompt": check_words,
    "background": check_threshold,
}
"""Faults that are found before anything is read."""


def run_masks(options: Options, progress: ProgressLine) -> None:
    mode = Mode(options.mode)
    wanted = Wanted(mode, options.invert, options.smooth, options.expand, options.blur, options.alpha)
    wanted.check()
    CHECKS[options.verb](options)
    put_in_order(options)
    images = find_images(options.folder, options.subfolders)
    if not images:
        hint = "check the path" if options.subfolders else "add --subfolders if they are in subfolders"
        raise DataError(f"there are no images in {options.folder}", hint=hint)
    plan = plan_masks(options.folder, images, mode)

    def write(tell: Tell) -> Outcome:
        return write_masks(options.folder, plan, wanted, MAKERS[options.verb](options), tell)

    carry_out(options, progress, plan, images, "mask", write)


def make_parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    for spec in MASK_TOOLS:
        spec.add_command(verbs, run_masks)
    add_undo(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status; see ``--help``."""
    return run_stoppable(make_parser().parse_args(arguments))


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
