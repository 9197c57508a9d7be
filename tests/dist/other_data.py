"""The trainer's command line with another config in each process, as if files had changed while they started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts import train

sys.exit(train.main(["--config-path", sys.argv[1 + int(os.environ["RANK"])]]))
