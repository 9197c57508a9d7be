"""The taste loop without a window: prove by blind comparisons that one set of images is preferred to another."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.arena.Arena import USUAL_VOTES, Arena, Ballot  # noqa: E402
from modules.arena.ArenaServer import ArenaServer  # noqa: E402
from modules.arena.Contestant import Contestant  # noqa: E402
from modules.arena.VoteStore import VoteStore  # noqa: E402
from modules.util.errors import UserError  # noqa: E402
from scripts.curate import INTERRUPTED, USER_ERROR, describe, positive  # noqa: E402

Options = argparse.Namespace
Json = dict[str, Any]


def contestants(text: str) -> list[Contestant]:
    """``[NAME=]FOLDER,[NAME=]FOLDER`` as those who are compared."""
    found = []
    for part in text.split(","):
        name, equals, folder = part.strip().rpartition("=")
        place = Path(folder).expanduser()
        name = name.strip() if equals else place.resolve().name
        if not name or not folder:
            raise UserError(
                f"{part!r} is not NAME=FOLDER", "--between", "for example before=FOLDER,after=FOLDER"
            )
        found.append(Contestant.of_folder(name, name, place))
    return found


def run_compare(options: Options) -> Json | None:
    with VoteStore(options.dir / "arena") as store:
        arena = Arena(store, contestants(options.between), options.seed, options.votes)
        if options.headless:
            ArenaServer(arena, sys.stdin.buffer, sys.stdout).serve()
            return None
        if not options.result:
            vote_at_terminal(arena)
        return arena.tally.to_dict()


def vote_at_terminal(arena: Arena) -> None:
    """Ask until there is no further question, the person stops or the input ends."""
    acts: dict[str, Callable[[], None]] = {
        "1": lambda: arena.answer(0),
        "2": lambda: arena.answer(1),
        "=": lambda: arena.answer(None),
        "s": lambda: arena.answer(None, skipped=True),
        "u": arena.undo,
    }
    while (ballot := arena.ballot) is not None:
        said = ask(ballot, arena.tally.votes)
        if said in ("q", ""):
            return
        try:
            acts[said]()
        except KeyError:
            print(f"there is no answer {said!r}", file=sys.stderr)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)


def ask(ballot: Ballot, votes: int) -> str:
    """One question on stderr; what was typed, empty at the end of the input."""
    print(f"\n{votes + 1}. {ballot.prompt}", file=sys.stderr)
    for number, path in enumerate(ballot.show, start=1):
        print(f"  {number}  {path}", file=sys.stderr)
    print("better: 1 or 2, = a tie, s skip, u undo, q stop > ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.strip().lower() or ("?" if line else "")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taste.py",
        description=__doc__,
        epilog="Results are on stdout, progress, questions and errors on stderr. Status: 0 done, 2 something to "
        "fix first.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    def verb(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        made.add_argument("dir", type=Path, metavar="DIR", help="the project's folder")
        made.add_argument("--json", action="store_true", help="the result as JSON")
        return made

    command = verb("compare", run_compare, "vote blindly on images of the same prompts and seeds")
    command.add_argument(
        "--between", required=True, metavar="A,B[,C]", help="who is compared: [NAME=]FOLDER of images each"
    )
    command.add_argument(
        "--votes", type=positive, default=USUAL_VOTES, help=f"stop undecided after this many ({USUAL_VOTES})"
    )
    command.add_argument("--seed", type=int, default=42, help="of sides and orders (42)")
    command.add_argument("--headless", action="store_true", help="JSON lines on stdin and stdout")
    command.add_argument("--result", action="store_true", help="ask nothing, say what the votes say")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status; see ``--help``."""
    options = make_parser().parse_args(arguments)
    try:
        result = options.run(options)
        if result is not None:
            print(json.dumps(result, indent=2, ensure_ascii=False) if options.json else result["sentence"])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except (OSError, sqlite3.DatabaseError) as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        return USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
