"""Update the program: its files with git, then its packages. Standard library only.

    python scripts/update.py --dry-run     show what an update would bring, and change nothing
    python scripts/update.py               update

Files of yours are never touched: runs, pairs, presets and settings are not part of the program. If you changed a
file of the program, or have commits of your own, nothing is updated and the message names them. Nothing is merged,
stashed or deleted for you.

Exit status: 0 up to date, 2 something to do first, 130 stopped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.display import command_parser, print_any_text  # noqa: E402
from scripts import bootstrap  # noqa: E402
from scripts.bootstrap import SetupError  # noqa: E402

SHOWN = 10
PACKAGE_FILES = ("requirements.txt", "requirements-dev.txt", "constraints.txt")
UNFINISHED = ("MERGE_HEAD", "rebase-merge", "rebase-apply", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG")
BY_HAND = (
    "Download the new version into a new folder, start it there, and open your projects and runs from it.\n"
    "  Your own folders and settings work with both. Delete the old folder when you no longer need it.\n"
    "  To update with this command in future: git clone the program instead of downloading it."
)


class Update(NamedTuple):
    """New changes upstream."""

    branch: str
    here: str
    there: str
    commits: list[str]
    files: list[tuple[str, str]]
    """Kind of change (A added, M changed, D removed, T kind of file) and path."""


def say(text: str) -> None:
    """Print text without terminal control characters, because much of it comes from elsewhere."""
    print("".join(c if c.isprintable() or c == "\n" else "?" for c in text), flush=True)


class Checkout:
    """The program's folder as git sees it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._git = shutil.which("git") or ""

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run git here, in English, without prompts and without changes that the user's git settings would add."""
        environment = {**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
        for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
            environment.pop(name, None)
        command = [self._git, "-C", str(self.root), "-c", "core.quotePath=false", *arguments]
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
            errors="replace", check=False,
        )  # fmt: skip

    def tell(self, *arguments: str) -> str:
        """Output of git.

        Raises:
            SetupError: it fails.
        """
        done = self.ask(*arguments)
        if done.returncode != 0:
            raise SetupError(f"git {arguments[0]} failed:\n  {done.stderr.strip() or 'it did not say why'}")
        return done.stdout.rstrip("\n")

    def check(self) -> str:
        """The current branch.

        Raises:
            SetupError: it cannot be updated; the message says what to do.
        """
        if not (self.root / ".git").exists():
            raise SetupError(f"{self.root} is not a git clone, so this command cannot update it.\n  {BY_HAND}")
        if not self._git:
            raise SetupError("git is not installed: install it (https://git-scm.com), then update again")
        top = self.ask("rev-parse", "--show-toplevel").stdout.rstrip("\n")
        if not top or os.path.realpath(top) != os.path.realpath(self.root):
            raise SetupError(f"git cannot read {self.root}: {self.ask('status').stderr.strip() or top}")
        for name in UNFINISHED:
            if Path(self.root, self.tell("rev-parse", "--git-path", name)).exists():
                raise SetupError(f"git has an unfinished operation ({name}): finish or abort it first")
        branch = self.ask("symbolic-ref", "--quiet", "--short", "HEAD").stdout.strip()
        if not branch:
            raise SetupError("no branch is checked out: choose one first, for example with  git switch main")
        if self.ask("rev-parse", "--abbrev-ref", "@{upstream}").returncode != 0:
            raise SetupError(
                f"the branch {branch} has no upstream branch. If it comes from origin:\n"
                f"  git branch --set-upstream-to=origin/{branch}"
            )
        changed = self.lines("status", "--porcelain=v1", "-z", "--untracked-files=no", "--no-renames")
        if changed:
            raise SetupError(
                f"you changed files of the program, and an update could lose your changes:\n{listed(changed)}\n"
                "  Keep the changes:  git stash        then update, then  git stash pop\n"
                "  Or commit them:    git commit -a    then  git pull --rebase"
            )
        return branch

    def lines(self, *arguments: str) -> list[str]:
        """Output of git, split at NUL."""
        return [part for part in self.tell(*arguments).split("\0") if part]

    def look(self, branch: str) -> Update:
        """Ask the remote for new commits. Only the remote-tracking branches change.

        Raises:
            SetupError: it does not answer, or has another history.
        """
        remote = self.tell("config", f"branch.{branch}.remote")
        done = self.ask("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", remote)
        if done.returncode != 0:
            raise SetupError(
                f"{remote} cannot be reached: {done.stderr.strip()}\n  Check the network, then try again"
            )
        own = self.tell("rev-list", "--count", "@{upstream}..HEAD")
        commits = self.lines("log", "-z", "--format=%h %s", "HEAD..@{upstream}")
        if own != "0" and commits:
            raise SetupError(
                f"the branch {branch} has commits of its own ({own}) besides new ones upstream ({len(commits)}).\n"
                "  Put yours on top of the new ones:  git pull --rebase\n"
                "  Or keep yours in a branch:         git branch mine && git reset --keep @{upstream}"
            )
        parts = self.lines("diff", "--name-status", "-z", "--no-renames", "HEAD..@{upstream}")
        files = list(zip(parts[::2], parts[1::2], strict=True)) if commits else []
        here, there = (self.tell("rev-parse", "--short", name) for name in ("HEAD", "@{upstream}"))
        return Update(branch, here, there, commits, files)

    def in_the_way(self, update: Update) -> list[str]:
        """The user's files, including ignored ones, with the name of a new file of the program."""
        removed = {path for kind, path in update.files if kind == "D"}
        return sorted({
            taken
            for kind, path in update.files
            if kind == "A"
            for taken in self._taken(path)
            if taken not in removed
        })  # fmt: skip

    def _taken(self, path: str) -> list[str]:
        """Existing files in the place of a new file or of one of its folders."""
        place = self.root / path
        if place.is_dir() and not place.is_symlink():
            return [
                Path(folder, name).relative_to(self.root).as_posix()
                for folder, _, names in os.walk(place)
                for name in names
            ]
        names = [path, *(parent.as_posix() for parent in list(Path(path).parents)[:-1])]
        places = [(name, self.root / name) for name in names]
        return [name for name, at in places if os.path.lexists(at) and (at.is_symlink() or not at.is_dir())]

    def forward(self, update: Update) -> None:
        """Fast-forward to the new commits; git itself refuses anything else, or if a file is in the way."""
        self.tell(
            "-c", "merge.autoStash=false", "-c", "submodule.recurse=false",
            "merge", "--ff-only", "--no-overwrite-ignore", "--quiet", update.there,
        )  # fmt: skip


def listed(names: Sequence[str]) -> str:
    more = [f"    and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return "\n".join([*(f"    {name}" for name in names[:SHOWN]), *more])


def describe(update: Update) -> None:
    """Print the changes."""
    say(f"{update.branch}: {update.here} -> {update.there}, new commits: {len(update.commits)}")
    say(listed(update.commits))
    kinds = {"A": "added", "D": "removed"}
    counts: dict[str, int] = {}
    for kind, _ in update.files:
        name = kinds.get(kind, "changed")
        counts[name] = counts.get(name, 0) + 1
    say("files of the program: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    if any(path in PACKAGE_FILES for _, path in update.files):
        say("packages change: pip will download the new versions")


def had_dev(root: Path) -> bool:
    """Return whether the environment was created with the test requirements."""
    try:
        return bootstrap.is_installed(root / ".venv", bootstrap.wanted_hash(root, ["dev"]))
    except SetupError:  # a requirement file is missing; the update may add it
        return False


def refresh(root: Path, dev: bool) -> None:
    """Install what the new version needs, with its own script.

    Raises:
        SetupError: it failed.
    """
    command = [sys.executable, str(root / "scripts" / "bootstrap.py"), *(["--dev"] if dev else [])]
    if subprocess.run(command, check=False).returncode != 0:
        raise SetupError(
            "the program's files are new, but its packages are not complete; the lines above say why.\n"
            "  Run this again, or scripts/setup.sh, to continue"
        )


def update_program(root: Path, dry_run: bool) -> None:
    """See what is new, and take it over unless ``dry_run``.

    Raises:
        SetupError: something has to be done first; nothing of the program was changed then.
    """
    checkout = Checkout(root)
    branch = checkout.check()
    dev = had_dev(root)
    update = checkout.look(branch)
    if not update.commits:
        say(f"{branch} is up to date ({update.here})")
    else:
        describe(update)
        taken = checkout.in_the_way(update)
        if taken:
            raise SetupError(
                f"files of yours have names that the new version needs:\n{listed(taken)}\n"
                "  Move them elsewhere, then update again; they are left as they are"
            )
    if dry_run:
        say("nothing was changed (--dry-run)")
        return
    if update.commits:
        checkout.forward(update)
    refresh(root, dev)
    if update.commits:
        say("updated. Start the program again, and then stop and resume every run that is training")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="show what is new and change nothing")
    options = parser.parse_args(arguments)
    try:
        update_program(ROOT, options.dry_run)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; run it again to continue", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
