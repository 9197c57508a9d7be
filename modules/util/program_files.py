"""Locations of the program's own files: its folder and its resources."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESOURCES = ROOT / "resources"
PRESETS = ROOT / "training_presets"
DOCS = ROOT / "docs"
