"""What the pair tool remembers between starts. No Tk here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from modules.curation.CurationMode import DEFAULT_MODE, CurationMode
from modules.util.errors import UserError
from modules.util.jsonio import read_json, write_json

FILE_NAME = "pair_tool.json"
MAX_RECENT = 12


@dataclass
class PairToolMemory:
    """The fields of the start page as they were left.

    Args:
        certainty: percent.
        near_duplicates: bits; -1 keeps near-identical images apart.
        validation: percent.
        sources: ComfyUI's input folder, or the source of all images; empty for neither.
        edits: all images are edits.
        recent: (source, output) of earlier sessions, newest first.
        folder: what was chosen last when a folder was asked for.
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

    @classmethod
    def load(cls, folder: Path) -> PairToolMemory:
        """What of the file makes sense; the rest keeps its default."""
        made = cls()
        path = folder / FILE_NAME
        if not path.exists():
            return made
        try:
            data = read_json(path, "settings of the pair tool")
        except UserError:
            return made
        for one in fields(cls) if isinstance(data, dict) else ():
            value = data.get(one.name)
            default = getattr(made, one.name)
            if type(value) is type(default) or (isinstance(default, float) and type(value) is int):
                setattr(made, one.name, value)
        if made.mode not in {mode.value for mode in CurationMode}:
            made.mode = DEFAULT_MODE.value
        pairs = [p for p in made.recent if isinstance(p, list) and len(p) == 2]
        made.recent = [p for p in pairs if all(isinstance(name, str) for name in p)][:MAX_RECENT]
        return made

    def save(self, folder: Path) -> None:
        """Raises ``OSError`` when the folder cannot be written."""
        write_json(folder / FILE_NAME, asdict(self))

    def remember(self) -> None:
        """Put the present folders at the top of the recent ones."""
        pair = [self.source, self.output]
        self.recent = [pair, *(other for other in self.recent if other != pair)][:MAX_RECENT]
