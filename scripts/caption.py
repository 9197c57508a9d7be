"""Captions for a folder of images: by a model of transformers, a tagger, or a server. Every change can be undone.

What is written stays after Ctrl+C; the same command does the rest, unless it is to REPLACE. --dry-run shows which
images would get a caption, without loading a model.

Exit status: 0 done, 2 something to fix first, 130 stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.tools.catalog import CAPTION_TOOLS  # noqa: E402
from modules.tools.dataset.captioning import Mode, Wanted, plan_captions, write_captions  # noqa: E402
from modules.tools.dataset.files import find_images  # noqa: E402
from modules.tools.Journal import Journal  # noqa: E402
from modules.util.counted import counted  # noqa: E402
from modules.util.errors import ConfigError  # noqa: E402
from scripts.curate import ProgressLine, exit_status  # noqa: E402
from scripts.dataset import run_undo, stoppable, teller  # noqa: E402

if TYPE_CHECKING:
    from modules.captioner.Captioner import Captioner

MOST = {"batch": 256, "parallel": 256, "length": 4096, "seconds": 86400}
DTYPES = {"FLOAT_32": "float32", "FLOAT_16": "float16", "BFLOAT_16": "bfloat16"}
Options = argparse.Namespace


def describer(options: Options) -> Captioner:
    from modules.captioner.TransformersCaptioner import TransformersCaptioner
    from modules.trainer.distributed import choose_device

    device = choose_device(options.device)
    return TransformersCaptioner(
        str(options.model), options.prompt or "", DTYPES[options.dtype], device, options.length
    )


def tagger(options: Options) -> Captioner:

    import torch

    from modules.captioner.Tagger import Tagger, TagRules, can_run_on
    from modules.trainer.distributed import choose_device

    device = choose_device(options.device)
    if options.device == "auto" and not can_run_on(options.model, device):
        print(
            "the tagger runs on the CPU: the installed onnxruntime cannot use the graphics card", flush=True
        )
        device = torch.device("cpu")
    drop = tuple(tag.strip() for tag in (options.drop or "").split(",") if tag.strip())
    rules = TagRules(options.threshold, options.character, options.underscores, drop)
    return Tagger(options.model, rules, device)


def asker(options: Options) -> Captioner:
    from modules.captioner.ServerCaptioner import ServerCaptioner

    return ServerCaptioner(
        options.url, options.model, options.prompt, options.remote, options.seconds,
        options.length,
    )  # fmt: skip


MAKERS: dict[str, Callable[[Options], Captioner]] = {"describe": describer, "tag": tagger, "ask": asker}


def check_numbers(options: Options) -> None:
    for name, most in MOST.items():
        value = getattr(options, name, 1)
        if not 1 <= value <= most:
            raise ConfigError(f"{value} is not between 1 and {most}", f"--{name}")


def run_captions(options: Options, progress: ProgressLine) -> None:
    check_numbers(options)
    mode = Mode(options.mode)
    at_once = {"ask": "parallel", "describe": "batch"}.get(options.verb)
    wanted = Wanted(
        mode, options.prefix or "", options.suffix or "", getattr(options, at_once) if at_once else 1
    )
    if not options.dry_run:
        Journal(options.folder).put_in_order()
    images = find_images(options.folder, options.subfolders)
    plan = plan_captions(options.folder, images, mode)
    if options.dry_run:
        for one in plan:
            print(one.name)
        print(f"{counted(len(plan), 'image')} of {len(images)} would get a caption; nothing was changed")
        return
    if not plan:
        print(f"all of {counted(len(images), 'image')} have a caption")
        return
    describe = MAKERS[options.verb](options).describe
    done = write_captions(options.folder, plan, wanted, describe, teller(progress, len(plan)))
    for name, reason in done.left.items():
        print(f"{name}: left as it is: {reason}")
    print(f"{counted(len(done.written), 'caption')} written")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    for spec in CAPTION_TOOLS:
        command = verbs.add_parser(spec.verb, help=spec.about, description=spec.about)
        command.set_defaults(run=run_captions)
        spec.add_to(command)
    undo = verbs.add_parser("undo", help="undo the last change of a folder")
    undo.set_defaults(run=run_undo)
    undo.add_argument(
        "--dry-run", action="store_true", help="list the changes that can be undone, oldest first"
    )
    undo.add_argument("folder", type=Path, help="the folder with the images")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status; see ``--help``."""
    options = make_parser().parse_args(arguments)
    progress = ProgressLine()

    def work() -> None:
        with stoppable():
            options.run(options, progress)
        progress.end()

    return exit_status(work, progress)


if __name__ == "__main__":
    sys.exit(main())
