"""A dry run that looks at nothing: ``dry_run.py FOLDER --config-path FILE`` prints what ``FOLDER/outcome.json`` holds.

Each call adds a line to ``FOLDER/calls`` and one with its config to ``FOLDER/asked``; while there is a file
``FOLDER/hold``, it does not end. One that is not ended by others adds a line to ``FOLDER/ended``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

DRY_RUN = Path(__file__)


def main() -> None:
    folder = Path(sys.argv[1])
    with (folder / "calls").open("a") as calls:
        calls.write("x\n")
    with (folder / "asked").open("a") as asked:
        asked.write(json.dumps(json.loads(Path(sys.argv[-1]).read_text())) + "\n")
    while (folder / "hold").exists():
        time.sleep(0.02)
    with (folder / "ended").open("a") as ended:
        ended.write("x\n")
    outcome = folder / "outcome.json"
    print(outcome.read_text() if outcome.exists() else '{"errors": [], "warnings": []}')


if __name__ == "__main__":
    main()
