"""Turn a OneTrainer config, concept list or sample list into one of ours; list what is not carried over."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.config.config_list import save_list  # noqa: E402
from modules.util.config.onetrainer.Notes import Note  # noqa: E402
from modules.util.config.onetrainer.onetrainer_import import import_onetrainer, import_onetrainer_list  # noqa: E402
from modules.util.errors import UserError  # noqa: E402
from modules.util.jsonio import read_json, write_json  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """0 when the config was written; 2, and nothing is written, when it cannot be read or asks for what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="a OneTrainer config, concept list or sample list (.json)")
    parser.add_argument(
        "target", help="the file to write; a config holds only what differs from the defaults"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="write nothing if something that changes the weights is not carried over",
    )
    options = parser.parse_args(arguments)
    try:
        lost = _convert(options.source, options.target, options.strict)
    except UserError as error:
        print(f"{error}\nnothing was written", file=sys.stderr)
        return 2
    _print_notes(lost)
    print(f"wrote {options.target}")
    return 0


def _convert(source: str, target: str, strict: bool) -> Sequence[Note]:
    """Read ``source``, write ``target``; what is not carried over.

    Raises:
        UserError: it cannot be read, or ``strict`` and something is lost that changes the weights.
    """
    if isinstance(read_json(source, "OneTrainer file"), list):
        items, lost = import_onetrainer_list(source)
        _refuse(lost, strict)
        save_list(items, target)
    else:
        config, lost = import_onetrainer(source)
        _refuse(lost, strict)
        write_json(target, config.sparse_dict())
    return lost


def _refuse(lost: Sequence[Note], strict: bool) -> None:
    changing = [note for note in lost if note.changes_weights]
    if strict and changing:
        listed = "\n".join(f"    {note}" for note in changing)
        raise UserError(
            f"not carried over, and changes the weights that are trained:\n{listed}",
            hint="change these settings in OneTrainer and export the config again, or leave out --strict",
        )


def _print_notes(lost: Sequence[Note]) -> None:
    changing = sum(note.changes_weights for note in lost)
    if changing:
        print("These change the weights that are trained:")
    for place, note in enumerate(lost):
        if place == changing and changing:
            print("These do not:")
        print(f"not carried over: {note}")


if __name__ == "__main__":
    sys.exit(main())
