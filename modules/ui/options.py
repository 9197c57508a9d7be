"""The command line options of the window, kept separate so that ``--help`` need not load it."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The parser of ``train_ui.py``."""
    made = argparse.ArgumentParser(
        prog="train_ui.py", description="Tastemaker: teach image models your taste."
    )
    made.add_argument("config", nargs="?", type=Path, help="config to open")
    made.add_argument("--settings-dir", type=Path, help="folder of the program's own settings")
    made.add_argument(
        "--pair-tool", nargs="?", const="", metavar="SOURCE", help="open only the pair tool, on this folder"
    )
    return made
