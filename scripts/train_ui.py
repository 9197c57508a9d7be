"""The window of the program.

python scripts/train_ui.py [CONFIG]              the trainer
python scripts/train_ui.py --pair-tool [SOURCE]  the pair tool alone, on a folder of generated images
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.display import print_any_text  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Open the window; return when it is closed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(argument.split("=")[0] == "--pair-tool" for argument in given):
        from modules.ui.curation.windows import main as pair_tool

        return pair_tool(given)
    from modules.ui.options import parser

    parser().parse_args(given)  # --help and errors end here, before the window is loaded
    from modules.ui.MainWindow import main as main_window

    return main_window(given)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
