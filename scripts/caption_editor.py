"""The caption editor: scripts/caption_editor.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.ui.captions.windows import main  # noqa: E402
from modules.util.display import print_any_text  # noqa: E402

if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
