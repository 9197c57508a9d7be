"""Bad files end as a listed reason or give the prompt that is in them, within bounds of memory and time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from modules.util.image_metadata.limits import Reason
from modules.util.image_metadata_util import read_metadata
from tests.util.image_metadata import files as f
from tests.util.image_metadata.hazards import GOOD, HAZARDS, Hazard

_MEMORY = """
import resource, sys
from pathlib import Path
from modules.util.image_metadata_util import read_metadata
paths = sys.argv[1:]
read_metadata(paths[0])

def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(list(Path("/proc/self/fd").iterdir()))

before = used()
for path in paths:
    read_metadata(path)
print(*(now - then for now, then in zip(used(), before)))
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of all hazards, only to be read."""
    folder = tmp_path_factory.mktemp("hazards")
    return {hazard.name: hazard.put(folder) for hazard in HAZARDS}


def test_the_corpus_is_large_enough_and_has_no_name_twice() -> None:
    assert len(HAZARDS) >= 36
    assert len({hazard.name for hazard in HAZARDS}) == len(HAZARDS)


@pytest.mark.parametrize("hazard", HAZARDS, ids=lambda hazard: hazard.name)
def test_a_hazard_ends_as_its_reason_or_gives_its_prompt(hazard: Hazard, paths: dict[str, Path]) -> None:
    path = paths[hazard.name]
    start = time.process_time()
    about = read_metadata(path)
    assert time.process_time() - start < 2
    if hazard.reason is None:
        assert (about.error, about.prompt) == (None, hazard.prompt)
        assert about.prompt is not None
        about.prompt.encode()
    else:
        assert about.prompt is None
        assert about.error is not None
        assert about.error.startswith(hazard.reason.value)


@pytest.mark.child
def test_memory_stays_bounded_and_descriptors_are_given_back(paths: dict[str, Path]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _MEMORY, *map(str, paths.values())],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    kibibytes, descriptors = map(int, run.stdout.split())
    assert kibibytes < 64 * 1024
    assert descriptors == 0


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "locked.png"
    path.write_bytes(f.png(f.text("parameters", GOOD)))

    def refuse(*args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("modules.util.image_metadata.containers.source.os.open", refuse)
    assert read_metadata(path).error == Reason.NO_PERMISSION.value


def test_a_file_that_cannot_be_read_halfway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad_sector.png"
    path.write_bytes(f.png(f.chunk(b"teSt", bytes(100_000)), after=f.text("parameters", GOOD)))

    def fail(*args: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("modules.util.image_metadata.containers.source._read_at", fail)
    assert read_metadata(path).error == f"{Reason.READ_ERROR.value}: Input/output error"


@pytest.mark.parametrize("name", ["\0.png", "x" * 5000 + ".png", "no/such/folder.png"])
def test_impossible_names(name: str, tmp_path: Path) -> None:
    about = read_metadata(f"{tmp_path}/{name}")
    assert about.prompt is None
    assert about.error
