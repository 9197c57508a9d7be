"""Preference pairs without a window: find prompts, pick, import, check, review, finalise, export."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.curation import commands  # noqa: E402
from modules.curation.choosing.base import DEFAULT_THRESHOLD  # noqa: E402
from modules.curation.CurationMode import DEFAULT_MODE, CurationMode  # noqa: E402
from modules.curation.exchange.public_formats import FORMATS  # noqa: E402
from modules.curation.group_state import SessionSettings  # noqa: E402
from modules.curation.intake.edit_sources import EditOptions  # noqa: E402
from modules.curation.intake.groups import ScanOptions  # noqa: E402
from modules.util.display import INTERRUPTED, READER_ENDED, print_any_text  # noqa: E402
from modules.util.errors import UserError, system_refusal  # noqa: E402
from modules.util.files.result_file import check_result_file, json_with, rows_with  # noqa: E402
from modules.util.jsonio import atomic_path, write_json  # noqa: E402

FAULTS_FOUND = 1
USER_ERROR = 2
TERMINAL_SECONDS = 0.25
LOG_SECONDS = 5.0
RESULTS = {
    "scan": rows_with("path", "prompt", "group", "error"),
    "finalize": json_with("train", "val", "concepts", "unconditional"),
    "check": json_with("ok", "buckets"),
    "review": json_with("pairs", "faults", "fixed", "undone"),
    "import": json_with("pairs", "imported", "already_there"),
    "export": json_with("pairs", "format", "target"),
    "likes": json_with("likes", "dislikes", "seen", "marks"),
    "stats": json_with("pairs", "events", "undone", "answers"),
}
"""Checks that recognise an earlier result of each command, which a new one may replace."""

Options = argparse.Namespace


def tell(line: str) -> None:
    """Print a permanent line on stderr."""
    print(line, file=sys.stderr, flush=True)


class ProgressLine:
    """Progress on stderr: one changing line on a terminal, otherwise a new line from time to time."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every = TERMINAL_SECONDS if self._terminal else LOG_SECONDS
        self._next = time.monotonic() + self._every
        self._open = False

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            self._open = self._terminal
            start, end = ("\r", "\x1b[K") if self._terminal else ("", "\n")
            print(f"{start}{text}", end=end, file=sys.stderr, flush=True)

    def count(self, done: int, total: int, name: str) -> None:
        """Say how much is done, and what is next."""
        self(f"{done}/{total} {name}")

    def end(self, text: str = "") -> None:
        """Finish the line with a final text."""
        if self._open:
            print(file=sys.stderr)
            self._open = False
        if text:
            print(text, file=sys.stderr)


def run_scan(options: Options, progress: ProgressLine) -> None:
    arguments = (not options.flat, options.stealth, edit_options(options), progress)
    if options.json is None:
        count = commands.scan(options.folder, sys.stdout, *arguments)
    else:
        with atomic_path(options.json) as temporary, temporary.open("w", encoding="utf-8") as stream:
            count = commands.scan(options.folder, stream, *arguments)
            check_files(options)
    progress.end(str(count))


def check_files(options: Options) -> None:
    """Check that the files that the command writes are free, or hold earlier results.

    Raises:
        UserError: one holds something else.
    """
    if options.json is not None:
        check_result_file(options.json, "--json", RESULTS[options.verb])
    likes = getattr(options, "likes", None)
    if likes is not None:
        check_result_file(likes, "--likes", json_with("file", "prompt", "mark", "why"))


def edit_options(options: Options) -> EditOptions:
    return EditOptions(options.edits, options.input_dir, options.source)


def run_serve(options: Options, progress: ProgressLine) -> None:
    settings = SessionSettings(
        CurationMode(options.mode), options.pairs_per_group, options.threshold, options.seed
    )
    keep_all = options.near_duplicates < 0
    scan = ScanOptions(
        options.seed,
        None if keep_all else options.near_duplicates,
        not options.flat,
        options.stealth,
        edit_options(options),
    )
    streams = (sys.stdin.buffer, sys.stdout)
    commands.serve_pairs(options.folder, options.output, settings, scan, *streams, progress)


def run_finalize(options: Options, progress: ProgressLine) -> dict[str, Any]:
    result = commands.finalize(options.output, options.val_percentage)
    for warning in result["warnings"]:
        progress.end(f"warning: {warning}")
    return result


def run_import(options: Options, progress: ProgressLine) -> dict[str, Any]:
    if options.file.is_dir():
        if options.format is not None:
            raise UserError("a folder of images has no format", "--format", "leave it out")
        result = commands.import_marks(
            options.file, options.output, options.favourites, options.likes, progress
        )
    elif options.favourites is not None or options.likes is not None:
        raise UserError(
            "only a folder of images has likes", "--favourites, --likes", "give a folder, or leave them out"
        )
    else:
        result = commands.import_file(options.file, options.output, options.format, progress)
    for warning in result["warnings"]:
        progress.end(f"warning: {warning}")
    return result


def run_export(options: Options, progress: ProgressLine) -> dict[str, Any]:
    return commands.export_folder(options.output, options.target, options.format)


def run_stats(options: Options, progress: ProgressLine) -> dict[str, Any]:
    return commands.statistics(options.output, options.scores)


def run_likes(options: Options, progress: ProgressLine) -> dict[str, Any]:
    return commands.likes(options.output)


def run_check(options: Options, progress: ProgressLine) -> dict[str, Any]:
    chosen, rejected = options.folder, options.rejected
    if rejected is None:
        chosen, rejected = options.folder / "chosen", options.folder / "rejected"
    found = commands.check(chosen, rejected, options.resolution, options.batch_size)
    edits = commands.check_edits(options.folder) if options.rejected is None else {}
    return {**found, "ok": found["ok"] and edits["ok"], "sources": edits} if edits else found


def run_review(options: Options, progress: ProgressLine) -> dict[str, Any]:
    order = commands.ReviewOrder(
        undo=options.undo,
        remove=options.remove,
        swap=options.swap,
        captions=[(pair_id, text) for pair_id, text in options.caption],
        fix=options.fix,
        empty_trash=options.empty_trash,
    )
    return commands.review(options.output, options.resolution, order)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="curate.py",
        description=__doc__,
        epilog=(
            "The result is JSON on stdout, progress and errors are on stderr. Exit status: 0 done, 1 "
            "check found faults, 2 an error that you can fix."
        ),
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    def verb(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(run=run, json=None)
        if run is not run_serve:
            made.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE instead")
        return made

    command = verb("scan", run_scan, "list the metadata of every image in a folder")
    command.add_argument("folder", type=Path, help="folder with images")
    add_scanning(command)

    command = verb("serve-pairs", run_serve, "pick pairs over JSON lines on stdin and stdout")
    add_picking(command)
    add_scanning(command)

    command = verb("finalize", run_finalize, "sort the pairs into train and val, write concepts.json")
    command.add_argument("output", type=Path, help="output folder of a picking session")
    command.add_argument("--val-percentage", type=float, default=10.0, help="percentage of pairs for validation (10)")

    command = verb("check", run_check, "compare the sides pair by pair; count pairs per bucket")
    command.add_argument("folder", type=Path, help="an output folder, or the folder of the chosen images")
    command.add_argument("rejected", type=Path, nargs="?", help="the folder of the rejected images")
    add_resolution(command)
    command.add_argument("--batch-size", type=positive, default=1, help="batch size of the training run (1)")

    command = verb("review", run_review, "list pairs and their faults; remove, swap, re-caption or fix them")
    command.add_argument("output", type=Path, help="output folder of a picking session")
    add_resolution(command)
    add_review(command)

    command = verb(
        "import", run_import, "import public preference data, or stars and ratings, into an output folder"
    )
    add_import(command)

    command = verb(
        "export", run_export, "copy the finalised pairs into a folder that other programs can read"
    )
    command.add_argument("output", type=Path, help="output folder of a picking session")
    command.add_argument("target", type=Path, help="a new folder")
    command.add_argument("--format", choices=("datasets", "jsonl"), default="datasets", help="(datasets)")

    command = verb("likes", run_likes, "list every like and dislike of a session, with its prompt")
    command.add_argument("output", type=Path, help="output folder of a picking session")

    command = verb("stats", run_stats, "count the answers of a session and show how consistent they are")
    add_statistics(command)
    return parser


def add_statistics(command: argparse.ArgumentParser) -> None:
    command.add_argument("output", type=Path, help="output folder of a picking session")
    command.add_argument(
        "--scores",
        type=Path,
        metavar="FILE",
        help='a reward model\'s scores as JSON, {"image.png": 0.7, ...}',
    )


def add_import(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "file",
        type=Path,
        help="parquet, JSON or JSONL; or a folder of images with stars of SwarmUI or XMP ratings",
    )
    command.add_argument("output", type=Path, help="output folder, new or not")
    command.add_argument("--format", choices=FORMATS, help="detected by default")
    command.add_argument("--favourites", type=Path, metavar="DIR", help="folder with copies of liked images")
    command.add_argument("--likes", type=Path, metavar="FILE", help="list every like and dislike as JSON")


def add_picking(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=Path, help="folder with images")
    command.add_argument("output", type=Path, help="output folder, new or not")
    command.add_argument("--mode", choices=list(CurationMode), default=DEFAULT_MODE,
                         help=f"way of choosing ({DEFAULT_MODE})")  # fmt: skip
    command.add_argument("--pairs-per-group", type=positive, default=1, metavar="N",
                         help="pairs of a prompt before the next prompt (1)")  # fmt: skip
    command.add_argument(
        "--threshold", type=float, default=DEFAULT_THRESHOLD, help="certainty at which a pair is saved"
    )
    command.add_argument("--seed", type=int, default=42, help="seed of positions and order (42)")
    command.add_argument(
        "--near-duplicates",
        type=int,
        default=2,
        metavar="BITS",
        help="images whose hashes differ in at most this many of 64 bits count as one image (2); -1 keeps all images",
    )


def add_review(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--undo", nargs="?", type=positive, const=1, default=0, metavar="N",
        help="first undo the last step (or N steps), including those of earlier calls and of the window",
    )  # fmt: skip
    command.add_argument("--remove", nargs="+", default=[], metavar="PAIR", help="remove both sides of pairs")
    command.add_argument("--swap", nargs="+", default=[], metavar="PAIR", help="swap chosen and rejected")
    command.add_argument(
        "--caption",
        nargs=2,
        action="append",
        default=[],
        metavar=("PAIR", "TEXT"),
        help="set the caption of both sides",
    )
    command.add_argument("--fix", action="store_true", help="fix every fault that has a fix")
    command.add_argument("--empty-trash", action="store_true", help="delete removed pairs for good")


def add_scanning(command: argparse.ArgumentParser) -> None:
    command.add_argument("--flat", action="store_true", help="skip subfolders")
    command.add_argument("--stealth", action="store_true", help="look for text hidden in the pixels; slow")
    add_edits(command)


def add_edits(command: argparse.ArgumentParser) -> None:
    """Add the options that say where the source images of edits are."""
    command.add_argument(
        "--edits",
        action="store_true",
        help="all images are edits; each source image is next to its image, or named in the metadata",
    )
    places = command.add_mutually_exclusive_group()
    places.add_argument(
        "--input-dir",
        type=Path,
        metavar="DIR",
        help="all images are edits; DIR is ComfyUI's input folder with the source images",
    )
    places.add_argument(
        "--source", type=Path, metavar="FILE", help="all images are edits of this source image"
    )


def add_resolution(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--resolution", type=positive, default=512, help="resolution whose crop buckets are used (512)"
    )


def exit_status(work: Callable[[], int | None], progress: ProgressLine | None = None) -> int:
    """Run ``work`` and return its status (0 for ``None``), or that of the error that ended it, which is printed."""
    progress = progress or ProgressLine()
    try:
        status = work() or 0
        progress.end()
        return status
    except UserError as error:
        progress.end()
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_ENDED
    except KeyboardInterrupt:
        progress.end("stopped")
        return INTERRUPTED
    except (OSError, sqlite3.DatabaseError) as error:
        progress.end()
        refusal = system_refusal(error) if isinstance(error, OSError) else str(error)
        print(f"error: {refusal}", file=sys.stderr)
        return USER_ERROR
    except RuntimeError as error:
        circle = error.__context__
        if isinstance(circle, OSError) and circle.errno == errno.ELOOP:
            progress.end()
            print(f"error: {system_refusal(circle)}", file=sys.stderr)
            return USER_ERROR
        # the name tells it, because most commands do without torch
        if type(error).__name__ != "OutOfMemoryError":
            raise
        progress.end()
        fault = UserError(
            f"the graphics card has too little memory: {str(error).splitlines()[0]}",
            hint="close other programs that use it, do less at once, or let the CPU do it",
        )
        print(f"error: {fault}", file=sys.stderr)
        return USER_ERROR


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; see ``--help``."""
    options = make_parser().parse_args(arguments)
    progress = ProgressLine()

    def work() -> int:
        check_files(options)
        result = options.run(options, progress)
        if result is None:
            pass
        elif options.json is None:
            print(json.dumps(result, indent=2))
        else:
            check_files(options)
            write_json(options.json, result)
        return FAULTS_FOUND if result is not None and result.get("ok") is False else 0

    return exit_status(work, progress)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
