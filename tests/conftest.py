"""What every test gets: settings of its own, so that it neither reads nor changes those of the person at work.

``--quick`` leaves out what takes long: windows, child processes, and all model families but one.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modules.util.enum.ModelType import ModelType
from modules.util.files.user_folder import FOLDER_VARIABLE
from tests import memory_folder, tiny
from tests.source_tree import ROOT
from tests.usual import changed_since, folders_of, share_of

QUICK_FAMILY = "STABLE_DIFFUSION_15"
LEFT_OUT = ("gui", "dist", "child", "slow")
TEMPORARY = "PYTEST_DEBUG_TEMPROOT"
_FAMILIES = {family.value for family in ModelType}


@pytest.fixture(scope="session")
def all_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where each test gets a folder: pytest would look at the folders of all earlier tests to number the next one."""
    root = tmp_path_factory.mktemp("settings")
    return (root / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_settings(all_settings: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty settings folder for this test and the programs it starts."""
    folder = next(all_settings)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="no windows, no child processes, one model family in the contracts",
    )
    parser.addoption(
        "--comfyui-url",
        default="",
        metavar="URL",
        help="a running ComfyUI, for the tests with the real program",
    )
    parser.addoption(
        "--share",
        metavar="K/N",
        help="every N-th test only, beginning with the K-th: -m slow --share 3/20 runs a twentieth of the slow tests",
    )
    parser.addoption(
        "--since",
        metavar="COMMIT",
        help="only tests of the folders in which files have changed since a commit: -m slow --since main",
    )


def pytest_configure(config: pytest.Config) -> None:
    # before there are workers, so that all of them share the models that one has written
    tiny.root()
    keep_bytecode()
    hear_interrupts()
    if not hasattr(config, "workerinput"):
        use_memory()
    if config.getoption("quick") and (
        hasattr(config, "workerinput") or not config.getoption("numprocesses", 0)
    ):
        sys.addaudithook(refuse_children)


def use_memory() -> None:
    """Keep the files of tests in memory where there is room: the program waits for the disk after each file that it
    promises to keep, which a full run does many thousand times. A folder named on the command line or in
    ``PYTEST_DEBUG_TEMPROOT`` is used as it is. The files of tests that failed stay until the next start.
    """
    if TEMPORARY in os.environ:
        return
    made = memory_folder.make_folder()
    if made is not None:
        os.environ[TEMPORARY] = str(made)


def keep_reserve(session: pytest.Session) -> None:
    """Let the session end after this test if its files have taken too much memory."""
    given = Path(os.environ.get(TEMPORARY, ""))
    if not (given / memory_folder.MARKER).is_file():
        return
    free = memory_folder.room(given)
    if free < memory_folder.RESERVE:
        session.shouldstop = (
            f"only {free >> 20} MiB of memory are free, in which tests keep their files: close other programs, "
            f"remove {given} once no test runs, or name a folder on a disk in {TEMPORARY}"
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    keep_reserve(item.session)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not hasattr(session.config, "workerinput") and exitstatus == 0:
        memory_folder.remove_own()


def hear_interrupts() -> None:
    """Let the programs that tests start hear Ctrl+C. A shell that starts a command in the background makes it and all
    its children deaf to it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_bytecode() -> None:
    """Programs are started hundreds of times: where the surroundings keep no bytecode, each would compile every module
    that it imports again, which takes longer than most of them run.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """What is imported by now lives as long as the process, and no search for cycles need look at it again. The
    searches come less often too, since most objects that a test makes live until it ends.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def refuse_children(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook under which no test starts a process.

    Raises:
        RuntimeError: it does.
    """
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"):
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if test.endswith("(call)"):
            raise RuntimeError(f"{test} starts a process: mark it with pytest.mark.child")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share, quick, since = (config.getoption(name) for name in ("share", "quick", "since"))
    if share is None and since is None and not quick:
        return
    near = items
    if since is not None:
        folders = folders_of(changed_since(since, ROOT))
        near = [item for item in items if item.path.relative_to(ROOT / "tests").parts[0] in folders]
    mine = near if share is None else share_of(near, share)
    kept = [item for item in mine if not quick or is_quick(item)]
    staying = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in staying])
    items[:] = kept


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is in the quick run: by its marks, and in the contracts by its model family."""
    if any(item.get_closest_marker(name) for name in LEFT_OUT):
        return False
    if "contracts" not in item.path.parts:
        return True
    named = {
        family for family in _FAMILIES if family in item.name.replace("-", "[").replace("]", "[").split("[")
    }
    return not named or QUICK_FAMILY in named
