"""Train on another computer over SSH.

    scripts/train_remote.py start --config-path my-taste.json --host gpu.example.org --user me
    scripts/train_remote.py follow                    # Ctrl+C stops looking, not the run
    scripts/train_remote.py send sample
    scripts/train_remote.py fetch --watch
    scripts/train_remote.py status
    scripts/train_remote.py clean

start copies the program, the config and all files that the config names, unless they are already there. It then starts
the trainer and prints the name of the run. The run continues when this computer is switched off. The other commands
apply to the newest run, or to the run that is named. A computer is trusted once with `trust`.

Exit status: 0 done, 2 not possible (for follow: or the run failed), 130 stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.remote import records, starting  # noqa: E402
from modules.remote.again import persistently  # noqa: E402
from modules.remote.Connection import host_key  # noqa: E402
from modules.remote.Far import Far, far_side  # noqa: E402
from modules.remote.fetching import Fetch, Report  # noqa: E402
from modules.remote.Following import Following  # noqa: E402
from modules.remote.host_keys import place_of, trust  # noqa: E402
from modules.remote.there.limits import RUN_ID  # noqa: E402
from modules.runner.commands import COMMANDS  # noqa: E402
from modules.util.config.load import load_layered  # noqa: E402
from modules.util.config.remote.RemoteConfig import RemoteConfig  # noqa: E402
from modules.util.config.settings import iter_settings  # noqa: E402
from modules.util.config.TrainConfig import TrainConfig  # noqa: E402
from modules.util.display import INTERRUPTED, command_parser, counted, print_any_text  # noqa: E402
from modules.util.errors import UserError, list_offenders, system_refusal  # noqa: E402
from scripts.runctl import event_line  # noqa: E402
from scripts.update import say  # noqa: E402

WATCH_SECONDS = 15.0
ENDED = ("finished", "stopped", "failed", "died")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__, "train_remote.py")
    verbs = parser.add_subparsers(dest="verb", required=True)
    begin = verbs.add_parser("start", help="copy missing files there and start a run")
    _add_config(begin)
    begin.add_argument("--run", metavar="NAME", help="resume this run, in its folder there")
    begin.add_argument(
        "--there", metavar="NAME=PATH", action="append", default=[],
        help="the file of this setting is already there, e.g. --there base_model_name=/models/sdxl.safetensors",
    )  # fmt: skip
    begin.add_argument(
        "--to", type=Path, metavar="DIR", help="folder on this computer for the run's events and files"
    )
    begin.add_argument(
        "--alongside", action="store_true", help="start even while another run uses the device there"
    )
    begin.add_argument("--follow", action="store_true", help="follow the run after the start")
    follow = verbs.add_parser(
        "follow", help="print events as they happen; Ctrl+C ends the output, not the run"
    )
    follow.add_argument("--all", action="store_true", help="also print events that were printed before")
    fetch = verbs.add_parser("fetch", help="copy samples, saved models and logs here")
    fetch.add_argument("--backups", action="store_true", help="also copy backups")
    fetch.add_argument("--watch", action="store_true", help="repeat until the run has ended")
    fetch.add_argument("--overwrite", action="store_true", help="also replace files that were changed here")
    send = verbs.add_parser("send", help="send a command to the run")
    send.add_argument("command", choices=COMMANDS, help="the command")
    send.add_argument("--wait", action="store_true", help="wait until the command is done")
    status = verbs.add_parser("status", help="show the state of the run")
    status.add_argument("--json", action="store_true", help="print JSON")
    clean = verbs.add_parser("clean", help="remove a run there that has ended; files that were not fetched stay")
    clean.add_argument("--yes", action="store_true", help="do not ask")
    for verb in (follow, fetch, send, status, clean):
        verb.add_argument("run", nargs="?", metavar="RUN", help="name of the run; the newest by default")
    known = verbs.add_parser("trust", help="remember the key of a computer")
    _add_config(known)
    known.add_argument("--fingerprint", metavar="SHA256:...", help="do not ask: the key has this fingerprint")
    return parser.parse_args(argv)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-path", metavar="FILE", help="the run's config (JSON)")
    parser.add_argument("--preset-path", metavar="FILE", help="preset that the config overrides")
    parser.add_argument(
        "--set", dest="overrides", metavar="NAME=VALUE", action="append", default=[], help="change a setting"
    )
    for one in iter_settings(RemoteConfig):
        option = f"--{one.path.replace('_', '-')}"
        parser.add_argument(
            option, metavar=one.path.upper(), help=f"{one.title}; remote.{one.path} of the config"
        )


def load(options: argparse.Namespace) -> TrainConfig:
    """Load the config of the arguments."""
    given = {one.path: getattr(options, one.path) for one in iter_settings(RemoteConfig)}
    overrides = [f"remote.{name}={value}" for name, value in given.items() if value is not None]
    made: TrainConfig = load_layered(
        options.preset_path, options.config_path, [*options.overrides, *overrides]
    )
    return made


def ask(question: str) -> str | None:
    """Ask for a password, which is not stored."""
    return getpass.getpass(question) if sys.stdin.isatty() else None


# -- start ---------------------------------------------------------------------------------------------------


def look_at_data(config: TrainConfig) -> list[str]:
    """Check settings and data in a dry run; errors are found before anything is copied."""
    from scripts.train import check

    return check(config, 1)


def start(options: argparse.Namespace) -> int:
    config = load(options)
    if not config.remote.host:
        raise UserError("there is no computer to train on", "remote.host", "set remote.host, or use --host")
    if options.run is not None and not RUN_ID.fullmatch(options.run):
        raise UserError(f"{options.run} is not the name of a run", "--run")
    run = options.run or starting.new_name(config)
    before = records.find(run).folder if run in records.known() else None
    folder = (options.to or before or Path(config.workspace_dir).absolute().parent / run).absolute()
    records.check_mirror(run, folder)
    there = dict(_assigned(text) for text in options.there)
    if not there:  # the data are checked here, before anything is copied
        for line in look_at_data(config):
            say(line)
    wanted = starting.Wanted(config.remote, config, run, there, options.alongside, folder)
    task = starting.Start(wanted, say)
    asyncio.run(persistently(config.remote, ask, say, task.work, starting.TRIES))
    say(f"started: {run}\n  files of the run are copied to {folder}\n  train_remote.py follow {run}")
    return watch(run, False) if options.follow else 0


def _assigned(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UserError(f"{text} is not NAME=PATH", "--there")
    return name, value


# -- watching ------------------------------------------------------------------------------------------------


def follow(options: argparse.Namespace) -> int:
    return watch(records.find(options.run).run, options.all)


def watch(run: str, earlier: bool) -> int:
    """Print events until the run has ended; return 0 if it succeeded."""
    follower = Following(records.find(run), lambda event: say(event_line(event)), say, earlier)
    state = asyncio.run(follower.run(ask))
    say(f"{run}: {state}")
    return 0 if state in ("finished", "stopped") else 2


def status(options: argparse.Namespace) -> int:
    record = records.find(options.run)
    found = asyncio.run(_once(record, "status"))
    if options.json:
        say(json.dumps(found))
        return 0
    say(f"{record.run} on {record.remote.address()}: {found.get('state')}")
    events = [found.get(name) for name in ("phase", "step", "validation", "error")]
    for event in events:
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            say(f"  {event_line(event)}")
    if isinstance(found.get("log"), str):
        say(f"  the end of its output:\n{found['log']}")
    return 0


def send(options: argparse.Namespace) -> int:
    record = records.find(options.run)
    done = asyncio.run(_once(record, "control", command=options.command, wait=options.wait))
    say(str(done.get("text")))
    return 0 if done.get("status") == 0 else 2


async def _once(record: records.Record, order: str, **values: Any) -> dict[str, Any]:
    """Ask the other computer one thing about a run."""
    async with far_side(record.remote, ask) as far:
        return await far.ask(dict[str, Any], order, run=record.run, **values)


# -- fetching, cleaning, trusting ----------------------------------------------------------------------------


def fetch(options: argparse.Namespace) -> int:
    record = records.find(options.run)
    task = Fetch(record, options.backups, say, options.overwrite)

    async def work(far: Far) -> tuple[str, Report]:
        found = await far.ask(dict[str, Any], "status", run=record.run)
        return str(found.get("state")), await task.work(far)

    async def again() -> Report:
        while True:
            state, report = await persistently(record.remote, ask, say, work)
            if not options.watch or state in ENDED:
                return report
            await asyncio.sleep(WATCH_SECONDS)

    report = asyncio.run(again())
    say(f"{counted(len(report.fetched), 'file')} fetched, {report.same} unchanged, in {record.folder}")
    if report.refused:
        say(f"refused, because their names lead out of the folder:\n{list_offenders(report.refused)}")
    if report.differ:
        say(f"left as they are here, because they were changed:\n{list_offenders(report.differ)}")
        say("  -> --overwrite replaces them")
    return 2 if report.differ or report.refused else 0


def clean(options: argparse.Namespace) -> int:
    record = records.find(options.run)

    async def work() -> None:
        async with far_side(record.remote, ask) as far:
            same, missing = await Fetch(record, True, say).compare(far)
            say(f"{counted(len(same), 'file')} of {record.run} will be removed on {record.remote.address()}")
            if missing:
                left = list_offenders(missing)
                say(f"these files were not fetched and stay there (fetch --backups gets them):\n{left}")
            if not options.yes and not _agrees("Remove them?"):
                raise UserError("nothing was removed", hint="answer y, or use --yes")
            done = await far.ask(dict[str, Any], "clean", run=record.run, fetched=same)
        freed = done.get("freed")
        say(f"removed; {freed >> 20 if isinstance(freed, int) else 0} MiB of data are free again")
        if done.get("copying"):
            say("files that runs share stay there, because another run is being copied; the next clean removes them")

    asyncio.run(work())
    return 0


def _agrees(question: str) -> bool:
    return sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() == "y"


def trust_host(options: argparse.Namespace) -> int:
    remote = load(options).remote
    key = asyncio.run(host_key(remote, ask))
    found = key.get_fingerprint()
    if options.fingerprint is None and sys.stdin.isatty():
        say(f"{place_of(remote)} has the fingerprint {found}")
        if not _agrees("Does its owner or provider show the same fingerprint?"):
            raise UserError(f"{place_of(remote)} is not trusted")
    elif options.fingerprint != found:
        raise UserError(
            f"{place_of(remote)} has the fingerprint {found}, not {options.fingerprint}",
            "--fingerprint",
            "ask its owner or provider for the right one",
        )
    say(f"{place_of(remote)} is trusted now; its key is in {trust(remote, key)}")
    return 0


VERBS = {
    "start": start, "follow": follow, "fetch": fetch, "send": send, "status": status, "clean": clean,
    "trust": trust_host,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    try:
        return VERBS[options.verb](options)
    except BrokenPipeError:
        raise  # the reader of the output has ended
    except (UserError, OSError) as refused:
        error = refused if isinstance(refused, UserError) else system_refusal(refused)
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if options.verb == "follow":
            print("stopped looking; the run continues", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
