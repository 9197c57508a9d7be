"""Runs tests in this process as ``python -m pytest`` does, even if PyTorch has been imported before."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
import torch._dynamo  # noqa: E402

os.chdir(ROOT)
# PyTorch reads the variable when it is imported
torch._dynamo.config.disable = os.environ.get("TORCHDYNAMO_DISABLE") == "1"
sys.exit(pytest.main(sys.argv[1:]))
