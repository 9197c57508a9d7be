"""Convert a config, concept list or sample list of another program to this one; list the differences.

Exit status: 0 written, and the training is the same; 3 written, but some settings that change the training could not be
imported; 2 refused, and nothing is written. With a folder, every file below it is imported, and the status is the
worst one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.config.foreign.importing import (  # noqa: E402
    AUTO,
    PROGRAMS,
    REFUSED,
    FolderImport,
    comparison,
    import_file,
    report,
)
from modules.util.display import command_parser, print_any_text  # noqa: E402
from modules.util.errors import UserError, system_refusal  # noqa: E402


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument("source", help="a config, concept list or sample list, or a folder with such files")
    parser.add_argument("target", nargs="?", help="the file (or folder) to write")
    parser.add_argument(
        "--from", dest="program", choices=PROGRAMS, default=AUTO,
        help="the program that wrote the file; auto detects it",
    )  # fmt: skip
    parser.add_argument(
        "--family", default="", metavar="FAMILY",
        help="the model's family, such as FLUX_DEV_1, if a file of kohya or ai-toolkit does not say it",
    )  # fmt: skip
    parser.add_argument(
        "--lenient", action="store_true",
        help="files of OneTrainer: replace what is not supported with its nearest equivalent, and note it",
    )  # fmt: skip
    parser.add_argument(
        "--strict", action="store_true",
        help="write nothing if a setting is unknown, or if one that changes the training cannot be imported",
    )  # fmt: skip
    parser.add_argument("--diff", action="store_true", help="write nothing; show what is changed or lost")
    parser.add_argument("--full", action="store_true", help="write all settings, not only changed ones")
    parser.add_argument(
        "--overwrite", action="store_true",
        help="replace files that have other content; what is imported is never replaced",
    )  # fmt: skip
    parser.add_argument(
        "--user-only", action="store_true", help="for a folder: leave out built-in presets (#name.json)"
    )
    options = parser.parse_args(argv)
    if options.target is None and not options.diff:
        parser.error("TARGET is needed, unless --diff is given")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, 2 or 3 as described in the module's docstring."""
    options = arguments(argv)
    try:
        return _folder(options) if Path(options.source).is_dir() else _file(options)
    except UserError as error:
        print(f"{error}\nnothing was written", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        raise  # the reader of the output has ended
    except OSError as error:
        print(f"error: {system_refusal(error)}", file=sys.stderr)
        return REFUSED


def _file(options: argparse.Namespace) -> int:
    imported = import_file(options.source, options.lenient, options.strict, options.program, options.family)
    if options.diff:
        print("\n".join(comparison(imported.notes)))
        return imported.outcome()
    imported.write(Path(options.source), Path(options.target), options.full, options.overwrite)
    for line in report(imported.notes.listed()):
        print(line)
    print(f"wrote {options.target}")
    return imported.outcome()


def _folder(options: argparse.Namespace) -> int:
    target = None if options.diff else Path(options.target)
    work = FolderImport(
        Path(options.source), target, options.lenient, options.strict, options.full, options.user_only,
        options.program, options.family, options.overwrite,
    )  # fmt: skip
    for line in work.lines():
        print(line, flush=True)
    return work.outcome


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
