"""Captions for a folder of images: by a model of transformers, a tagger, or a server. Every change can be undone.

Captions that are written stay after Ctrl+C. The same command then writes the missing ones; with REPLACE it writes all
again. --dry-run shows which images would get a caption, without loading a model.

replace, add and delete change existing captions: either all changes are made or none. --dry-run shows old and new.

Exit status: 0 done, 2 something to fix first, 130 stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.tools.catalog import CAPTION_EDITS, CAPTION_TOOLS  # noqa: E402
from modules.tools.dataset.caption_edits import (  # noqa: E402
    carry_out_edits,
    list_captions,
    plan_edits,
    read_caption,
)
from modules.tools.dataset.captioning import Mode, Outcome, Tell, Wanted, plan_captions, write_captions  # noqa: E402
from modules.tools.dataset.files import find_images  # noqa: E402
from modules.tools.dataset.tags import (  # noqa: E402
    Edit,
    adding,
    count_tags,
    deleting,
    replacing_tag,
    replacing_text,
)
from modules.util.display import command_parser, counted, print_any_text  # noqa: E402
from modules.util.errors import ConfigError  # noqa: E402
from scripts.curate import ProgressLine  # noqa: E402
from scripts.dataset import add_undo, carry_out, put_in_order, run_stoppable, say_done, say_left, teller  # noqa: E402

if TYPE_CHECKING:
    from modules.captioner.Captioner import Captioner

MOST = {"batch": 256, "parallel": 256, "length": 4096, "seconds": 86400}
DTYPES = {"FLOAT_32": "float32", "FLOAT_16": "float16", "BFLOAT_16": "bfloat16"}
Options = argparse.Namespace


def describer(options: Options) -> Captioner:
    from modules.captioner.TransformersCaptioner import TransformersCaptioner
    from modules.trainer.distributed import choose_only_device

    device = choose_only_device(options.device)
    return TransformersCaptioner(
        str(options.model), options.prompt or "", DTYPES[options.dtype], device, options.length
    )


def tagger(options: Options) -> Captioner:

    import torch

    from modules.captioner.Tagger import Tagger, TagRules, can_run_on
    from modules.trainer.distributed import choose_only_device

    device = choose_only_device(options.device)
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
    put_in_order(options)
    images = find_images(options.folder, options.subfolders)
    plan = plan_captions(options.folder, images, mode)

    def write(tell: Tell) -> Outcome:
        return write_captions(options.folder, plan, wanted, MAKERS[options.verb](options).describe, tell)

    carry_out(options, progress, plan, images, "caption", write)


EDITS: dict[str, Callable[[Options], Edit]] = {
    "replace": lambda given: (replacing_tag if given.tags else replacing_text)(given.find, given.by or ""),
    "add": lambda given: adding(given.tag, given.end),
    "delete": lambda given: deleting(given.tag),
}


def run_edit(options: Options, progress: ProgressLine) -> None:
    edit, only = EDITS[options.verb](options), options.only or ""
    names = [name for _, name in list_captions(options.folder, options.subfolders, not options.dry_run)]
    plan = plan_edits(options.folder, names, edit, (lambda text: only in text) if only else None)
    for name, (old, new) in plan.changes.items():
        print(
            f"{name}: {json.dumps(old.text or '', ensure_ascii=False)} -> {json.dumps(new, ensure_ascii=False)}"
        )
    say_left(plan.left)
    if not options.dry_run:
        carry_out_edits(options.folder, plan, teller(progress, len(plan.changes)))
    say_done(options, counted(len(plan.changes), "caption"), "changed")


def run_count(options: Options, progress: ProgressLine) -> None:
    listed = list_captions(options.folder, options.subfolders, tidy=False)
    found = {name: read_caption(options.folder, name) for _, name in listed}
    tags = count_tags(caption.text or "" for caption in found.values())
    blank = [image.name for image, name in listed if found[name].blank]
    faults = {name: caption.fault for name, caption in found.items() if caption.fault}
    if options.json:
        print(json.dumps({"tags": dict(tags), "without_caption": blank, "unreadable": faults}, indent=2))
        return
    for tag, count in tags:
        print(f"{count}\t{tag}")
    for name, fault in faults.items():
        print(f"{name}: {fault}")
    for name in blank:
        print(f"{name}: no caption")
    print(f"{counted(len(tags), 'tag')} in {counted(len(found) - len(faults), 'caption')}")


def make_parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    for spec in CAPTION_TOOLS:
        spec.add_command(verbs, run_captions)
    for spec in CAPTION_EDITS:
        command = spec.add_command(verbs, run_edit if spec.previews else run_count)
        if not spec.previews:
            command.add_argument("--json", action="store_true", help="print everything as JSON, for programs")
    add_undo(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; see ``--help``."""
    return run_stoppable(make_parser().parse_args(arguments))


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
