"""The memory of the pair tool between starts. No Tk here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from modules.curation.CurationMode import DEFAULT_MODE, CurationMode
from modules.ui.state.SessionStore import MAX_RECENT, Memory, newest_first
from modules.util.errors import UserError
from modules.util.jsonio import read_json, write_json

FILE_NAME = "pair_tool.json"


@dataclass
class PairToolMemory(Memory):
    """The fields of the start page as last used.

    Args:
        certainty: percent.
        near_duplicates: tolerance in bits; -1 does not group near-duplicates.
        validation: percent.
        sources: ComfyUI's input folder, or the source of all images; empty for neither.
        edits: all images are edits.
        recent: (source, output) of earlier sessions, newest first.
        folder: the folder chosen last in a dialog.
    """

    source: str = ""
    output: str = ""
    mode: str = DEFAULT_MODE.value
    pairs_per_group: int = 1
    certainty: float = 95.0
    near_duplicates: int = 2
    blind: bool = False
    ask_to_continue: bool = True
    validation: float = 10.0
    sources: str = ""
    edits: bool = False
    recent: list[list[str]] = field(default_factory=list)
    folder: str = ""

    def __post_init__(self) -> None:
        self._opened: list[list[str]] = []

    @classmethod
    def load(cls, folder: Path) -> PairToolMemory:
        """Read the valid values of the file. The rest keep their defaults."""
        made = cls()
        path = folder / FILE_NAME
        if not path.exists():
            return made
        try:
            data = read_json(path, "settings of the pair tool")
        except UserError:
            return made
        made.take(data)
        if made.mode not in {mode.value for mode in CurationMode}:
            made.mode = DEFAULT_MODE.value
        pairs = [p for p in made.recent if isinstance(p, list) and len(p) == 2]
        made.recent = [p for p in pairs if all(isinstance(name, str) for name in p)][:MAX_RECENT]
        return made

    def save(self, folder: Path) -> None:
        """Write the file, with the recent folders that another pair tool has saved meanwhile.

        Raises:
            OSError: the folder is not writable.
        """
        saved = PairToolMemory.load(folder).recent
        write_json(
            folder / FILE_NAME, {**asdict(self), "recent": _newest_first(self._opened, saved, self.recent)}
        )

    def remember(self) -> None:
        """Put the current folders at the top of the recent ones."""
        pair = [[self.source, self.output]]
        self._opened = _newest_first(pair, self._opened)
        self.recent = _newest_first(pair, self.recent)


def _newest_first(*lists: list[list[str]]) -> list[list[str]]:
    return [list(pair) for pair in newest_first(*(map(tuple, pairs) for pairs in lists))]
