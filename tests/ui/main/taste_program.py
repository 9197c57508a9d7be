"""``taste.py`` with a generator that draws without a model and a trainer that trains nothing; for a process of its own.

``DRAWER_FAILS_AFTER`` and ``DRAWER_SECONDS`` in the environment: after how many images it breaks, seconds for each.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from modules.generator import registry  # noqa: E402
from modules.project import judging, training  # noqa: E402
from modules.runner import launcher  # noqa: E402
from scripts import taste  # noqa: E402
from tests.project.conftest import Drawer  # noqa: E402
from tests.runner.support import fake_command  # noqa: E402


class SlowDrawer(Drawer):
    """Takes its time."""

    def generate(self, requests):
        for image in super().generate(requests):
            time.sleep(float(os.environ.get("DRAWER_SECONDS", "0")))
            yield image


def draw(settings):
    made = SlowDrawer()
    made.fails_after = int(os.environ.get("DRAWER_FAILS_AFTER", made.fails_after))
    return made


def launch(run, config):
    adapter = Path(config["output_model_destination"])
    adapter.write_text(f"adapter of {adapter.parent.name}")
    return launcher.launch(run, config, fake_command(run, "finish"))


if __name__ == "__main__":
    registry.GENERATORS["own"] = draw
    training.launch = launch
    judging.SCRIPT = ROOT / "tests" / "project" / "fake_judges.py"
    sys.exit(taste.main())
