"""Real files, where a folder with them lies next to the project; the file ``expected.json`` says what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.util.image_metadata_util import read_metadata

_FOLDER = Path(__file__).parents[4] / "shared" / "data" / "metadata_samples"
_EXPECTED = _FOLDER / "expected.json"
_SAMPLES: dict[str, dict[str, Any]] = json.loads(_EXPECTED.read_text("utf-8")) if _EXPECTED.is_file() else {}

if _SAMPLES:

    @pytest.mark.parametrize("name", sorted(_SAMPLES))
    def test_real_files(name: str) -> None:
        expected = _SAMPLES[name]
        about = read_metadata(_FOLDER / name, stealth=True)
        assert about.error is None
        assert (about.prompt, about.negative_prompt) == (expected["prompt"], expected["negative"])
        assert about.generator == expected["generator"]
        assert [about.width, about.height] == expected["size"]
