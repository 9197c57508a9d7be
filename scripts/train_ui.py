"""The window.

python scripts/train_ui.py                      the trainer
python scripts/train_ui.py --pair-tool [SOURCE] the pair tool alone, on a folder of generated images
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Open the window; returns when it is closed."""
    sys.path.insert(0, str(ROOT))
    parser = argparse.ArgumentParser(description="The window of the program.")
    parser.add_argument(
        "--pair-tool", nargs="?", const="", metavar="SOURCE", help="open only the pair tool, on this folder"
    )
    options = parser.parse_args(arguments)
    if options.pair_tool is not None:
        from modules.ui.curation.windows import run_pair_tool

        run_pair_tool(Path(options.pair_tool) if options.pair_tool else None)
        return 0
    from modules.ui.MainWindow import run_main_window

    run_main_window()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
