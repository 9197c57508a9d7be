"""``taste.py`` as a program of its own, with a trainer that trains nothing; a test kills it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from modules.project import training  # noqa: E402
from modules.runner import launcher  # noqa: E402
from scripts import taste  # noqa: E402
from tests.runner.support import fake_command  # noqa: E402


def launch(run, config):
    adapter = Path(config["output_model_destination"])
    adapter.write_text(f"adapter of {adapter.parent.name}")
    return launcher.launch(run, config, fake_command(run, "finish"))


if __name__ == "__main__":
    training.launch = launch
    sys.exit(taste.main(sys.argv[1:]))
