"""Follow a run and show it elsewhere: trackio, wandb, or a webhook when it ends.

This reads events.jsonl in a separate process. It can be started and stopped at any time, also after the run has
ended; the run neither waits for it nor notices it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.project.ProjectFile import NAME  # noqa: E402
from modules.runner.trackers.Tracker import Tracker, follow_run  # noqa: E402
from modules.runner.trackers.Trackio import Trackio  # noqa: E402
from modules.runner.trackers.WandB import WandB  # noqa: E402
from modules.runner.trackers.Webhook import Webhook  # noqa: E402
from modules.util.display import print_any_text  # noqa: E402
from scripts.curate import exit_status  # noqa: E402

Options = argparse.Namespace
TRACKERS: dict[str, Callable[[Options, str], Tracker]] = {
    "trackio": lambda options, name: Trackio(options.project, name),
    "wandb": lambda options, name: WandB(options.project, name),
    "webhook": lambda options, name: Webhook(options.url, name),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="track.py", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--to", required=True, choices=list(TRACKERS), help="where to send the metrics or the message"
    )
    parser.add_argument(
        "--project", default="tastemaker", help="project name in trackio and wandb (tastemaker)"
    )
    parser.add_argument(
        "--name", default="", help="name of the run; by default that of its folder, or of its project and round"
    )
    parser.add_argument("--url", default="", help="address of the webhook")
    return parser


def name_of(folder: Path) -> str:
    """The name of a run by its folder; for a run of a project, the names of the project and the round."""
    one = folder.parent
    return f"{one.parent.name} {one.name}" if (one.parent / NAME).is_file() else folder.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0 when done, 2 if something has to be fixed first, 130 if stopped."""
    options = make_parser().parse_args(arguments)

    def work() -> None:
        name = options.name or name_of(options.run.resolve())
        count = follow_run(options.run, TRACKERS[options.to](options, name))
        print(f"{count} events")

    return exit_status(work)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
