"""Check this computer: Python, window, packages, graphics card, disk, token and folders. Each problem comes with a fix.

Exit status: 0 all good or only warnings, 2 something that training needs is missing or broken.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.runner.doctor import FAULT, Finding, examine  # noqa: E402
from modules.util.display import command_parser, print_any_text  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, for programs")
    parser.add_argument(
        "--folder", action="append", default=[], metavar="DIR", help="another folder that must be writable"
    )
    options = parser.parse_args(argv)
    folders = {f"folder {name}": Path(name) for name in options.folder}
    found: list[Finding] = []
    for finding in examine(folders):
        found.append(finding)
        if not options.json:
            print(f"{finding.state:8}{finding.what}: {finding.found}", flush=True)
            if finding.cure:
                print(f"        -> {finding.cure}")
    if options.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    return 2 if any(finding.state == FAULT for finding in found) else 0


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
