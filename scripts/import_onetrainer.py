"""Turn a OneTrainer config, concept list or sample list into one of ours; list what is not carried over."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.config.config_list import save_list  # noqa: E402
from modules.util.config.onetrainer.onetrainer_import import import_onetrainer, import_onetrainer_list  # noqa: E402
from modules.util.errors import UserError  # noqa: E402
from modules.util.jsonio import read_json  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """0 when the config was written, 2 when it cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="a OneTrainer config, concept list or sample list (.json)")
    parser.add_argument("target", help="the file to write")
    options = parser.parse_args(arguments)
    try:
        if isinstance(read_json(options.source, "OneTrainer file"), list):
            items, not_carried = import_onetrainer_list(options.source)
            save_list(items, options.target)
        else:
            config, not_carried = import_onetrainer(options.source)
            config.save(options.target)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    for line in not_carried:
        print(f"not carried over: {line}")
    print(f"wrote {options.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
