"""Watch a training run and send it commands through its folder, from any terminal.

    scripts/runctl.py workspace/run status
    scripts/runctl.py workspace/run backup --wait
    scripts/runctl.py workspace/run follow
    scripts/runctl.py workspace/run votes
    scripts/runctl.py workspace/run votes --question 0123456789abcdef --like 0 3 --dislike 1
    scripts/runctl.py workspace/run votes --file votes.jsonl

Commands are carried out between two steps. stop makes a backup first, so that continue_last_backup resumes from there;
with --wait it returns when the trainer has ended. votes lists the questions of a run whose reward is a person, or
answers them; a vote is saved before the command returns, and can be given while the run is stopped. Exit status: 0
done, 2 not possible, failed or no answer in time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.runner.commands import COMMANDS  # noqa: E402
from modules.runner.RunDirectory import RunDirectory  # noqa: E402
from modules.runner.status import RunStatus, StatusFollower, read_status  # noqa: E402
from modules.runner.votes.VoteBook import MOST_BYTES, Vote, VoteBook  # noqa: E402
from modules.util.display import INTERRUPTED, command_parser, print_any_text  # noqa: E402
from modules.util.errors import UserError, system_refusal  # noqa: E402
from modules.util.jsonio import parse_json, read_bytes  # noqa: E402

POLL_SECONDS = 0.1
ANSWERS = ("done", "failed")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__, "runctl.py")
    parser.add_argument("run", help="folder of the run (its workspace_dir)")
    parser.add_argument(
        "action", choices=["status", "follow", "tensorboard", "votes", *COMMANDS], help="what to do"
    )
    votes = parser.add_argument_group("votes")
    votes.add_argument("--question", metavar="KEY", help="the question to answer")
    for name, what in (("like", "liked"), ("dislike", "disliked")):
        votes.add_argument(
            f"--{name}",
            type=int,
            nargs="*",
            default=[],
            metavar="N",
            help=f"numbers of the {what} images, counted from 0",
        )
    votes.add_argument("--best", type=int, metavar="N", help="number of the image you prefer to all others")
    votes.add_argument(
        "--file",
        type=Path,
        metavar="JSONL",
        help='answers, one per line: {"question": KEY, "likes": [0, 3], "dislikes": [1], "best": 3}',
    )
    parser.add_argument("--wait", action="store_true", help="wait until the command is done")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="maximum waiting time in seconds (600)"
    )
    parser.add_argument("--all", action="store_true", help="follow: also print earlier events")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(argv)


def open_run(path: str) -> RunDirectory:
    """Open the run in a folder; ``UserError`` if there never was one."""
    run = RunDirectory(path)
    if not any(p.exists() for p in (run.events_path, run.config_path, run.launch_path, run.process_path)):
        raise UserError(f"{run.path} is not the folder of a run", hint="give the run's workspace_dir")
    return run


# -- commands ------------------------------------------------------------------------------------------------


def give_order(run: RunDirectory, options: argparse.Namespace) -> int:
    reader = run.reader()
    reader.poll()
    trainer = run.trainer()
    identity = run.post(options.action)
    if not options.wait:
        tell({"id": identity, "state": "ordered"}, f"{options.action}: sent", options.json)
        return 0
    until = time.monotonic() + options.timeout
    answer: dict[str, Any] | None = None
    while answer is None:
        alive = run.trainer() is not None
        answers = [e for e in reader.poll() if e["kind"] == "command" and e.get("id") == identity]
        answer = next((event for event in answers if event.get("state") in ANSWERS), None)
        if answer is None and not alive:
            raise UserError("the training ended before it answered", hint=f"see {run.log_path} and status")
        if answer is None:
            sleep_until(until, options.timeout)
    if options.action == "stop" and answer["state"] == "done":
        while trainer is not None and trainer.alive() and run.trainer() == trainer:
            sleep_until(until, options.timeout)
    message = answer.get("message")
    tell(answer, f"{options.action}: {answer['state']}" + (f" ({message})" if message else ""), options.json)
    return 0 if answer["state"] == "done" else 2


def sleep_until(until: float, timeout: float) -> None:
    """Sleep for a moment; ``UserError`` if the time is up."""
    if time.monotonic() >= until:
        raise UserError(
            f"no answer within {timeout:g} s", hint="commands wait for the current optimizer step to end"
        )
    time.sleep(POLL_SECONDS)


# -- looking -------------------------------------------------------------------------------------------------


def show_status(run: RunDirectory, options: argparse.Namespace) -> int:
    status = read_status(run)
    tell(status.to_dict(), "\n".join(status_lines(status)), options.json)
    return 0


def status_lines(status: RunStatus) -> list[str]:
    """Format a status for people."""
    lines = [f"{status.path}: {status.state}" + (f" (process {status.pid})" if status.pid else "")]
    events = [event for event in (status.phase, status.step, status.validation, status.error) if event]
    lines += [f"  {event_line(event)}" for event in sorted(events, key=lambda event: event["seq"])]
    lines += [f"  last {kind}: {path}" for kind, path in sorted(status.files.items())]
    if status.warnings:
        lines.append(f"  warnings: {status.warnings}")
    if status.updated is not None:
        lines.append(f"  last event {max(0.0, time.time() - status.updated):.0f} s ago")
    return lines


def follow(run: RunDirectory, options: argparse.Namespace) -> int:
    """Print the status of the run, then events as they come until it has ended; 0 if it ended well."""
    follower = StatusFollower(run)
    events = follower.poll()
    if not options.all and follower.status.pid is None and follower.status.state != "starting":
        raise UserError(
            f"no training is running in {run.path} ({follower.status.state})",
            hint="--all shows earlier events",
        )
    if not options.all:
        events = []
        if not options.json:
            print("\n".join(status_lines(follower.status)), flush=True)
    while True:
        for event in events:
            tell(event, event_line(event), options.json)
        if follower.status.state not in ("starting", "running", "paused"):
            return 0 if follower.status.state in ("finished", "stopped") else 2
        time.sleep(POLL_SECONDS)
        events = follower.poll()


def event_line(event: dict[str, Any]) -> str:
    """Format an event as one line."""
    fields = {name: value for name, value in event.items() if name not in ("t", "seq", "kind", "traceback")}
    progress, metrics = fields.pop("progress", None), fields.pop("metrics", None)
    words = [str(event["kind"])]
    if isinstance(progress, dict):
        total = fields.pop("total_steps", None)
        words.append(f"{progress.get('global_step')}" + (f"/{total}" if total is not None else ""))
    words += [f"{name}={short(value)}" for name, value in fields.items() if value not in (None, "")]
    if isinstance(metrics, dict):
        words += [f"{name}={short(value)}" for name, value in sorted(metrics.items())]
    return " ".join(words).replace("\n", "\n    ")


def short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def tell(data: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(data) if as_json else text, flush=True)


# -- voting --------------------------------------------------------------------------------------------------


def vote(run: RunDirectory, options: argparse.Namespace) -> int:
    """Answer questions, or list the open ones."""
    book = VoteBook(run.path)
    book.refresh()
    if options.file is not None:
        votes = read_votes(options.file)
    elif options.question is not None:
        votes = [(options.question, Vote(tuple(options.like), tuple(options.dislike), options.best, True))]
    elif options.like or options.dislike or options.best is not None:
        raise UserError(
            "no question is named", "--question", "list them: runctl.py RUN votes"
        )
    else:
        for one in book.open_questions():
            images = [str(book.image(one, number)) for number in range(one.images)]
            sources = [{"name": name, "path": str(book.source(one, n))} for n, name in enumerate(one.sources)]
            facts = {"question": one.key, "prompt": one.prompt, "images": images, "sources": sources}
            lines = [*(f"source {shown['name']}: {shown['path']}" for shown in sources), *images]
            tell(facts, f"{one.key}  {one.prompt}\n    " + "\n    ".join(lines), options.json)
        return 0
    for key, given in votes:
        book.give(key, given)
        tell({"question": key, "state": "done"}, f"{key}: answered", options.json)
    return 0


def read_votes(path: Path) -> list[tuple[str, Vote]]:
    """Read all answers of a file before the first is given."""
    made = []
    for number, line in enumerate(read_bytes(path, "file of votes", MOST_BYTES).split(b"\n"), start=1):
        if not line.strip():
            continue
        what = f"line {number} of {path}"
        data = parse_json(line, what)
        known = {"question", "likes", "dislikes", "best"}
        if (
            not isinstance(data, dict)
            or not isinstance(data.get("question"), str)
            or not data.keys() <= known
        ):
            raise UserError(
                f"{what} is not a vote", "--file", f"write an object with {', '.join(sorted(known))}"
            )
        likes, dislikes = data.get("likes", []), data.get("dislikes", [])
        if not isinstance(likes, list) or not isinstance(dislikes, list):
            raise UserError(f"{what}: likes and dislikes are lists of numbers", "--file")
        made.append((data["question"], Vote(tuple(likes), tuple(dislikes), data.get("best"), True)))
    return made


def tensorboard(run: RunDirectory) -> int:
    """Show the run's curves in a browser, on the port its config names, until interrupted."""
    from modules.util.config.load import load_config
    from modules.util.config.TrainConfig import TrainConfig

    config: TrainConfig = load_config(run.config_path)
    logs, port = str(run.tensorboard_dir), str(config.tensorboard_port)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logs, "--port", port]
    return 2 if subprocess.run(command, check=False).returncode else 0


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    try:
        run = open_run(options.run)
        if options.action == "status":
            return show_status(run, options)
        if options.action == "follow":
            return follow(run, options)
        if options.action == "tensorboard":
            return tensorboard(run)
        if options.action == "votes":
            return vote(run, options)
        return give_order(run, options)
    except BrokenPipeError:
        raise  # the reader of the output has ended
    except (UserError, OSError) as refused:
        error = refused if isinstance(refused, UserError) else UserError(system_refusal(refused))
        if options.json:
            print(json.dumps({"state": "error", "message": error.message, "hint": error.hint}))
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
