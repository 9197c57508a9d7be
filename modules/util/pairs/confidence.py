"""The person's certainty about each pair, in a small file next to the chosen images of a concept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from modules.util.errors import DataError
from modules.util.jsonio import parse_json, read_bytes, write_json
from modules.util.owned_files import Owned

CONFIDENCE_NAME = "confidence.json"


def is_certainty(value: object) -> bool:
    """Return whether a value is a probability that the chosen image is the better one."""
    return isinstance(value, float | int) and not isinstance(value, bool) and 0.5 <= value <= 1


def write_confidence(owned: Owned, place: str, certainties: Mapping[str, float]) -> None:
    """Write the file of a folder of chosen images. If there is nothing to write, the file is removed.

    Args:
        place: the folder, relative to the output folder.
        certainties: probability by name of the pair.
    """
    name = f"{place}/{CONFIDENCE_NAME}"
    if certainties:
        with owned.write(name) as temporary:
            write_json(temporary, dict(certainties))
    else:
        owned.remove(name)


def read_confidence(folder: Path) -> dict[str, float]:
    """Read the probabilities, from 0.5 to 1, that the chosen image is the better one, by name of the pair;
    empty without a file.

    Raises:
        DataError: the file is invalid.
    """
    file = folder / CONFIDENCE_NAME
    if not file.is_file():
        return {}
    found = parse_json(read_bytes(file), str(file))
    if not isinstance(found, dict) or not all(map(is_certainty, found.values())):
        raise DataError(
            f"{file} is not an object of numbers from 0.5 to 1", hint="finalise the pairs again, or remove it"
        )
    return {name: float(value) for name, value in found.items()}
