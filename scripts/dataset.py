"""Folders of images: rename, resize, convert, find duplicates, count. Every change can be undone.

Captions and masks follow their images. Nothing is overwritten without --overwrite, and --dry-run shows what would
be done. Files that are replaced or removed are kept in FOLDER/.tastemaker-tools until `forget`.

Exit status: 0 done, 2 something to fix first, 130 stopped.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.tools.catalog import DATASET_TOOLS  # noqa: E402
from modules.tools.dataset import looking, renaming, rewriting  # noqa: E402
from modules.tools.dataset.captioning import Outcome, Tell  # noqa: E402
from modules.tools.dataset.files import DataImage, find_images  # noqa: E402
from modules.tools.Journal import Journal  # noqa: E402
from modules.util.display import command_parser, counted, print_any_text  # noqa: E402
from modules.util.errors import ConfigError  # noqa: E402
from scripts.curate import ProgressLine, exit_status  # noqa: E402

SHOWN = 20
Options = argparse.Namespace


def teller(progress: ProgressLine, total: int) -> Tell:
    return lambda number, name: progress.count(number + 1, total, name)


def put_in_order(options: Options) -> None:
    """Roll back what a killed command left unfinished, before anything is planned."""
    if not options.dry_run:
        Journal(options.folder).put_in_order()


def run_rename(options: Options, progress: ProgressLine) -> None:
    put_in_order(options)
    plan = renaming.plan_renaming(options.folder, options.pattern, options.start, options.subfolders)
    for old, new in plan.names.items():
        print(f"{old} -> {new}")
    for name in plan.taken:
        print(f"{name} would be removed" if options.overwrite else f"{name} already exists")
    if not options.dry_run and plan.names:
        renaming.carry_out(options.folder, plan, options.overwrite)
    say_done(options, counted(len(plan.names), "file"), "renamed")


def run_rewrite(options: Options, progress: ProgressLine) -> None:
    put_in_order(options)
    wanted = rewriting.Wanted(
        options.edge or 0, options.area or 0, options.enlarge, options.to or "", options.quality, options.turn,
        options.strip,
    )  # fmt: skip
    wanted.check()
    if wanted == rewriting.Wanted(enlarge=options.enlarge, quality=options.quality):
        raise ConfigError(
            "nothing to do", "--edge, --area, --to, --turn, --strip", "give one or more of these"
        )
    images = find_images(options.folder, options.subfolders)
    plan = []
    for files in rewriting.plan_rewriting(options.folder, images, wanted):
        plan.append(files)
        for one in files:
            print(f"{one.old}: left as it is: {one.skip}" if one.skip else f"{one.old}: {one.what}")
    if not options.dry_run:
        todo = sum(not files[0].skip for files in plan)
        tell = teller(progress, todo)
        rewriting.rewrite(options.folder, images, plan, wanted, options.overwrite, tell)
    done = sum(not one.skip for files in plan for one in files)
    say_done(options, counted(done, "file"), "written")


def run_duplicates(options: Options, progress: ProgressLine) -> None:
    put_in_order(options)
    if not 0 <= options.distance <= 64:
        raise ConfigError(f"{options.distance} is not between 0 and 64", "--distance")
    images = find_images(options.folder, options.subfolders)
    found = looking.find_duplicates(options.folder, images, options.distance, teller(progress, len(images)))
    for one in found:
        print(f"{one.image.name} {'is the same file as' if one.exact else 'is near'} {one.original}")
    print(f"{counted(len(found), 'duplicate')} among {counted(len(images), 'image')}")
    if options.remove:
        if found and not options.dry_run:
            looking.take_out(options.folder, images, found)
        say_done(options, counted(len(found), "image"), "removed")


def run_stats(options: Options, progress: ProgressLine) -> None:
    images = find_images(options.folder, options.subfolders)
    found = looking.statistics(options.folder, images, options.resolution, teller(progress, len(images)))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' ')}: {shown(value)}")


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return _first([f"{name} ({count})" for name, count in value.items()]) or "none"
    if isinstance(value, list):
        return f"{len(value)}" + (f": {_first(value)}" if value else "")
    return str(value)


def _first(names: Sequence[str]) -> str:
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])


def run_undo(options: Options, progress: ProgressLine) -> None:
    journal = Journal(options.folder)
    if options.dry_run:
        for name in journal.jobs():
            print(name)
        return
    undone = journal.undo()
    for line in journal.lost:
        print(f"not restored: {line}")
    print(f"undone: {undone}" if undone else "there is nothing to undo")


def run_forget(options: Options, progress: ProgressLine) -> None:
    print(f"{counted(Journal(options.folder).forget(), 'change')} can no longer be undone")


def carry_out(
    options: Options, progress: ProgressLine, plan: Sequence[DataImage], images: Sequence[DataImage], what: str,
    write: Callable[[Tell], Outcome],
) -> None:  # fmt: skip
    """Write the captions or masks of a plan and print what was done; after --dry-run print what would be done."""
    if options.dry_run:
        for one in plan:
            print(one.name)
        print(f"{counted(len(plan), 'image')} of {len(images)} would get a {what}; nothing was changed")
    elif not plan:
        print(f"no image lacks a {what} ({counted(len(images), 'image')} checked)")
    else:
        done = write(teller(progress, len(plan)))
        say_left(done.left)
        print(f"{counted(len(done.written), what)} written")


def say_left(left: Mapping[str, str]) -> None:
    """Print the files that are not changed, with the reasons."""
    for name, reason in left.items():
        print(f"{name}: left as it is: {reason}")


def say_done(options: Options, what: str, done: str) -> None:
    print(f"{what} would be {done}; nothing was changed" if options.dry_run else f"{what} {done}")


def make_parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    runs = {"rename": run_rename, "rewrite": run_rewrite, "duplicates": run_duplicates, "stats": run_stats}
    for spec in DATASET_TOOLS:
        command = spec.add_command(verbs, runs[spec.verb])
        if not spec.previews:
            command.add_argument("--json", action="store_true", help="print everything as JSON, for programs")
    add_undo(verbs)
    forget = verbs.add_parser("forget", help="delete the files that are kept to undo changes")
    forget.set_defaults(run=run_forget)
    forget.add_argument("folder", type=Path, help="the folder with the images")
    return parser


def add_undo(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command that undoes the last change of a folder."""
    undo = verbs.add_parser("undo", help="undo the last change of a folder")
    undo.set_defaults(run=run_undo)
    undo.add_argument(
        "--dry-run", action="store_true", help="list the changes that can be undone, oldest first"
    )
    undo.add_argument("folder", type=Path, help="the folder with the images")


@contextmanager
def stoppable() -> Iterator[None]:
    """Treat a window's request to stop like Ctrl+C, so that the folder is put in order first."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_stoppable(options: Options) -> int:
    """Run a command on a folder and return its exit status."""
    progress = ProgressLine()

    def work() -> None:
        with stoppable():
            options.run(options, progress)

    return exit_status(work, progress)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; see ``--help``."""
    return run_stoppable(make_parser().parse_args(arguments))


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
