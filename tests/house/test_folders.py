"""A folder holds what one can take in at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from tests.house.exceptions import breaches
from tests.source_tree import sources

MOST_MODULES = 15
REGISTRIES = {
    "modules/modelSetup/families",
    "modules/spec/families",
    "modules/spec/modes",
    "modules/objective/preference",
    "modules/objective/policy_gradient",
    "modules/reward",
    "modules/ui/pages",
    "modules/ui/texts",
    "modules/curation/choosing",
}
"""Folders with one file for each registered thing: they grow with what the program can do."""
ALLOWED: dict[str, str] = {}


def crowded(files: Iterable[str]) -> dict[str, str]:
    """Folders with too many modules, and how many they have."""
    paths = (PurePosixPath(file) for file in files)
    counts = Counter(path.parent.as_posix() for path in paths if path.name != "__init__.py")
    return {
        folder: f"{count} modules, split it by idea into folders of at most {MOST_MODULES}"
        for folder, count in counts.items()
        if count > MOST_MODULES and folder not in REGISTRIES
    }


def test_no_folder_is_crowded():
    files = [source.relative for source in sources("modules")]
    assert len(files) > 400
    faults = breaches(crowded(files), ALLOWED)
    assert not faults, "\n".join(faults)


def test_a_crowded_folder_is_found():
    full = [f"modules/x/m{i}.py" for i in range(15)]
    assert not crowded([*full, "modules/x/__init__.py", "modules/x/deeper/y.py"])
    assert crowded([*full, "modules/x/z.py"]).keys() == {"modules/x"}
    assert not crowded(f"modules/reward/m{i}.py" for i in range(40))
