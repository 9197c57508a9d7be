"""Make the documents that follow from the config classes, or check that they are up to date (``--check``)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.config.reference import settings_page, train_config_schema  # noqa: E402
from modules.util.jsonio import write_text  # noqa: E402

DOCUMENTS = {
    "resources/schema/train_config.json": train_config_schema,
    "docs/config.md": settings_page,
}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Write the documents below ``root``; with ``--check`` name the stale ones and return 1 if there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail when a document is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for name, make in DOCUMENTS.items():
        path, text = root / name, make()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            write_text(path, text)
    for name in stale:
        print(f"{name} is stale: run scripts/generate_docs.py" if check else f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
