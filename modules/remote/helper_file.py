"""The far side as a single file: the modules it needs, packed so that any Python can run them."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from modules.util.program_files import ROOT

START = "modules.remote.there.serving"
_MAIN = f"import sys\nfrom {START} import main\nsys.exit(main())\n"
_IMPORT = re.compile(r"^ *from (modules[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)
"""The only form of import that this program uses for its own modules."""
_DATE = (2000, 1, 1, 0, 0, 0)


def modules_needed() -> dict[str, Path]:
    """Names of the modules that the far side imports, directly or indirectly, with their files."""
    found: dict[str, Path] = {}
    waiting = [START]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imports(path)]
    return found


def _file_of(name: str) -> Path | None:
    place = ROOT.joinpath(*name.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if name.startswith("modules") and path.is_file():
            return path
    return None


def _imports(path: Path) -> Iterator[str]:
    for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        yield module
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


@cache
def helper_file() -> tuple[str, bytes]:
    """Name and content of the file. The name changes with the content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _DATE), _MAIN)
        for _, path in sorted(modules_needed().items()):
            entry = zipfile.ZipInfo(path.relative_to(ROOT).as_posix(), _DATE)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    return f"far-side-{hashlib.sha256(data).hexdigest()[:16]}.pyz", data
