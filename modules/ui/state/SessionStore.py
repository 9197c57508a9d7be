"""The memory of the program between starts: the settings and the window. No Tk here."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

from modules.ui.texts import files as words
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.files.locking import try_lock
from modules.util.jsonio import read_json, write_bytes, write_json
from modules.util.owned_files import TEMPORARY, Owned

VERSION = 1
MAX_RECENT = 12
MAX_WINDOWS = 20
Recent = TypeVar("Recent", bound=Hashable)


@dataclass
class Memory:
    """Values that are kept between starts."""

    def take(self, data: object) -> None:
        """Take over the valid values of ``data``: those of the same type. The rest stay."""
        if not isinstance(data, dict):
            return
        for one in fields(self):
            value, own = data.get(one.name), getattr(self, one.name)
            if type(value) is type(own) or (isinstance(own, float) and type(value) is int):
                setattr(self, one.name, value)


@dataclass
class WindowMemory(Memory):
    """The last state of the window.

    Args:
        geometry: in Tk's format (``1200x800+10+10``); empty for the default.
        maximized: whether it filled the screen.
        appearance: ``System``, ``Dark`` or ``Light``.
        scale: percent.
        page: key of the open page.
        recent: config files, newest first.
        folder: the folder chosen last in a dialog.
        demo_answered: whether the person has accepted or declined the demo project.
        more: keys of the pages that show all settings.
        project: folder of the open taste project; empty for none.
        projects: folders of taste projects, newest first.
        notices: whether a desktop notification is shown when a run ends.
    """

    geometry: str = ""
    maximized: bool = False
    appearance: str = "System"
    scale: int = 100
    page: str = "home"
    recent: list[str] = field(default_factory=list)
    folder: str = ""
    demo_answered: bool = False
    more: list[str] = field(default_factory=list)
    project: str = ""
    projects: list[str] = field(default_factory=list)
    notices: bool = True

    def __post_init__(self) -> None:
        self._opened: list[str] = []
        self._projects_opened: list[str] = []

    @classmethod
    def from_dict(cls, data: object) -> WindowMemory:
        """Read the valid values of ``data``. The rest keep their defaults."""
        made = cls()
        made.take(data)
        made.more = [key for key in made.more if isinstance(key, str)]
        for names in (made.recent, made.projects):
            names[:] = [name for name in names if isinstance(name, str)][:MAX_RECENT]
        made.scale = min(200, max(75, made.scale))
        return made

    def remember(self, path: Path) -> None:
        """Put a config file at the top of the recent ones."""
        name = str(path.absolute())
        self._opened = newest_first([name], self._opened)
        self.recent = newest_first([name], self.recent)

    def remember_project(self, folder: Path) -> None:
        """Note the open project."""
        self.project = str(folder.absolute())
        self._projects_opened = newest_first([self.project], self._projects_opened)
        self.projects = newest_first([self.project], self.projects)

    def to_save(self, saved: WindowMemory) -> dict[str, Any]:
        """The state as plain data, with the files and projects that another window has saved meanwhile."""
        lists = {
            "recent": newest_first(self._opened, saved.recent, self.recent),
            "projects": newest_first(self._projects_opened, saved.projects, self.projects),
        }
        return {"version": VERSION, **asdict(self), **lists}


def newest_first(*lists: Iterable[Recent]) -> list[Recent]:
    """Join lists of recent things, the newest first, without repetitions."""
    return list(dict.fromkeys(chain(*lists)))[:MAX_RECENT]


@dataclass
class Session:
    """The last state of the settings.

    Args:
        config: the complete config as plain data.
        path: the file they were loaded from or saved to; empty if none.
        saved: whether that file holds the same settings.
        typed: texts that were not valid values, by field.
        run: folder of the watched run.
        digest: of the content that the file had when it was opened or saved last; empty if unknown.
    """

    config: dict[str, Any]
    path: str = ""
    saved: bool = True
    typed: dict[str, str] = field(default_factory=dict)
    run: str = ""
    digest: str = ""


class SessionStore:
    """The files of the settings folder. Each is written completely or not at all.

    Args:
        folder: the settings folder; created on the first write.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.session_path = self.folder / "session.json"
        self.window_path = self.folder / "window.json"
        self.queue_path = self.folder / "queue.json"
        self._lock: IO[bytes] | None = None
        self.log_path = self.folder / "tastemaker.log"

    def claim(self) -> int:
        """Lock this window's session against other windows until ``release`` or the end of the process.

        The first window uses ``session.json``. A second one starts with a copy in ``session-2.json``, so that
        neither overwrites the other's session. Returns the number.

        Removes partly written files of a killed program.
        """
        Owned(self.folder, local=True).sweep(TEMPORARY)
        for number in range(1, MAX_WINDOWS + 1):
            ending = "" if number == 1 else f"-{number}"
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                handle = (self.folder / f"session{ending}.lock").open("a+b")
            except OSError:
                return 1  # nothing can be saved there, which saving will report
            if try_lock(handle):
                self._lock = handle
                mine = self.folder / f"session{ending}.json"
                if number > 1 and self.session_path.is_file() and not mine.exists():
                    write_bytes(mine, self.session_path.read_bytes())
                self.session_path = mine
                return number
            handle.close()
        return 1

    def release(self) -> None:
        """Release the session for other windows."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def load_window(self) -> tuple[WindowMemory, str]:
        """The last state of the window, and a message if it could not be read."""
        if not self.window_path.exists():
            return WindowMemory(), ""
        try:
            return WindowMemory.from_dict(read_json(self.window_path, "window settings")), ""
        except UserError as error:
            return WindowMemory(), f"{self._set_aside(self.window_path, error)}"

    def save_window(self, memory: WindowMemory) -> None:
        """Save the state of the window. Raises ``OSError`` if the folder is not writable."""
        try:
            saved = WindowMemory.from_dict(read_json(self.window_path, "window settings"))
        except UserError:
            saved = WindowMemory()
        write_json(self.window_path, memory.to_save(saved))

    def load_session(
        self, model: type[TrainConfig] = TrainConfig
    ) -> tuple[TrainConfig | None, Session | None, str]:
        """The last settings; ``None`` if there are none, with a message if they are unreadable.

        An unusable file is kept under another name, never overwritten.
        """
        if not self.session_path.exists():
            return None, None, ""
        try:
            session = self._read_session()
            return model.from_dict(session.config), session, ""
        except UserError as error:
            return None, None, self._set_aside(self.session_path, error)

    def _read_session(self) -> Session:
        data = read_json(self.session_path, "saved session")
        if not isinstance(data, Mapping) or not isinstance(data.get("config"), Mapping):
            raise UserError(f"{self.session_path} is not a saved session")
        if data.get("version") != VERSION:
            raise UserError(
                f"the saved session has format {data.get('version')}; this program knows format {VERSION}",
                hint="it was written by a newer version of the program",
            )
        typed = data.get("typed")
        texts = {str(k): str(v) for k, v in typed.items()} if isinstance(typed, Mapping) else {}
        path, run, digest = (str(data.get(name) or "") for name in ("path", "run", "digest"))
        return Session(dict(data["config"]), path, data.get("saved") is True, texts, run, digest)

    def save_session(self, session: Session) -> None:
        """Save the settings. Raises ``OSError`` if the folder is not writable."""
        write_json(self.session_path, {"version": VERSION, "saved_at": time.time(), **asdict(session)})

    def _set_aside(self, path: Path, error: UserError) -> str:
        aside = path.with_name(f"{path.stem}.unreadable-{time.strftime('%Y%m%d-%H%M%S')}.json")
        try:
            Owned(path.parent, local=True).move(path.name, aside.name)
        except (OSError, UserError) as problem:
            why = problem.message if isinstance(problem, UserError) else problem.strerror
            return words.STAYS.format(error=error, reason=why)
        return words.KEPT_ASIDE.format(error=error, path=aside)
