"""Train a model according to a config. Settings come from a preset, a config file and --set; later ones override
earlier ones.

Exit status: 0 finished or stopped with a backup, 2 an error the user can fix, 1 a bug of the program.
Several GPUs of this computer: --set train_device=cuda:0,cuda:1 (one process each).
Several computers: torchrun --nnodes M --nproc-per-node N scripts/train.py ...
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.runner.devices import starts_several  # noqa: E402
from modules.runner.launcher import unfinished  # noqa: E402
from modules.runner.RunDirectory import RunDirectory  # noqa: E402
from modules.trainer.control.LauncherWatch import LauncherWatch  # noqa: E402
from modules.trainer.control.PeerWatch import PeerLost  # noqa: E402
from modules.util.config.load import check_config, load_layered  # noqa: E402
from modules.util.config.TrainConfig import TrainConfig  # noqa: E402
from modules.util.device_names import listed  # noqa: E402
from modules.util.display import INTERRUPTED, command_parser, print_any_text  # noqa: E402
from modules.util.errors import UserError, UserErrors  # noqa: E402

if TYPE_CHECKING:
    import torch

    from modules.trainer.callbacks import Callback
    from modules.trainer.distributed import Processes

MAX_PROFILED = 1000
RESUME = ("--set", "continue_last_backup=true")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument("--config-path", metavar="FILE", help="the run's config (JSON)")
    parser.add_argument(
        "--preset-path", metavar="FILE", help="preset that the config overrides, e.g. training_presets/..."
    )
    parser.add_argument(
        "--set", dest="overrides", metavar="NAME=VALUE", action="append", default=[],
        help="change a setting, e.g. --set learning_rate=1e-5 --set unet.train=true; can be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--run-dir", metavar="DIR", help="folder of the run; workspace_dir of the config by default"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check config and data, print what would be done, and stop"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="with --dry-run: print errors, warnings, steps and memory as JSON, for programs",
    )
    parser.add_argument(
        "--profile", type=_steps, metavar="N", default=0,
        help="also measure where the time of N steps goes, and trace N more; results in the run's folder",
    )  # fmt: skip
    options = parser.parse_args(argv)
    if options.config_path is None and options.preset_path is None:
        parser.error("--config-path is needed (or --preset-path)")
    return options


def _steps(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PROFILED:
        raise argparse.ArgumentTypeError(f"{text} is not a number of steps from 1 to {MAX_PROFILED}")
    return int(text)


def load_config(options: argparse.Namespace, notes: list[str]) -> TrainConfig:
    """Load the config of the arguments; ``notes`` collects settings without effect."""
    layers = (options.preset_path, options.config_path, options.overrides)
    config: TrainConfig = load_layered(*layers, notes=notes)
    if options.run_dir:
        config.workspace_dir = options.run_dir
    return config


def check(config: TrainConfig, world_size: int) -> list[str]:
    """Check everything that can be checked without a model; return lines that describe the run."""
    return look(config, world_size)[0]


def look(config: TrainConfig, world_size: int) -> tuple[list[str], int, int]:
    """Like ``check``, but also return the number of optimizer steps, of the run and of its first epoch."""
    from modules.dataLoader.preflight import check_folders, preflight
    from modules.trainer.online.prompts import online_summary
    from modules.trainer.online.settings import (
        acceleration_plan,
        nominal_steps_per_epoch,
        nominal_total_steps,
    )

    lines = check_group(config, world_size)
    lines += [f"warning: acceleration: {warning}" for warning in acceleration_plan(config).warnings]
    if config.trains_online:
        check_folders(config)
        lines += online_summary(config, world_size)
        return lines, nominal_total_steps(config, world_size), nominal_steps_per_epoch(config, world_size)
    show = _progress if sys.stderr.isatty() else None
    found = preflight(config, show, world_size=world_size)
    return lines + found.lines(), found.total_steps, found.steps_per_epoch


def output(config: TrainConfig) -> list[str]:
    """One line if a run on this computer replaces the result of an earlier one."""
    from modules.util.files.output_place import replaced_output

    replaced = replaced_output(config)
    return [f"warning: {replaced}"] if replaced else []


def check_group(config: TrainConfig, world_size: int) -> list[str]:
    """Check settings and devices without looking at a file; return lines of warnings."""
    from modules.trainer.assembly import check_settings
    from modules.trainer.distributed import check_devices

    lines = [f"warning: {warning}" for warning in check_config(config)]
    check_devices(config.train_device, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
    check_settings(config, world_size)
    return lines


def memory(config: TrainConfig) -> list[str]:
    """Lines about the memory the run needs, and whether this machine's graphics card has it.

    Raises:
        UserError: the model is missing, or does not fit the config.
    """
    from modules.trainer.memory.memory_advice import advise
    from modules.trainer.memory.shape_only import ModelNotLocal

    try:
        return advise(config)
    except ModelNotLocal as error:
        hint = f" ({error.hint})" if error.hint else ""
        return [f"memory cannot be estimated: {error.message}{hint}"]


def predict_memory(config: TrainConfig) -> None:
    """Print what a model's configs tell, then see whether the run could load it."""
    for line in memory(config):
        print(line)
    see_model(config)


def see_model(config: TrainConfig) -> None:
    """See whether the run could load its model; a resumed one reads the files that it began with.

    Raises:
        UserError: it could not.
    """
    from modules.trainer.assembly import check_model
    from modules.trainer.resume.checkpoint import newest_state

    resumes = config.continue_last_backup
    state = newest_state(RunDirectory(config.workspace_dir).backup_dir) if resumes else None
    check_model(config, None if state is None else state.get("weight_files", {}))


def findings(options: argparse.Namespace, world_size: int) -> dict[str, Any]:
    """Return what a dry run finds wrong with settings, files and model, as plain data; where nothing is wrong,
    also the number of optimizer steps and the memory the run will take.
    """
    from modules.trainer.memory.memory_advice import forecast

    errors: list[UserError] = []
    lines: list[str] = []
    notes: list[str] = []
    try:
        config = load_config(options, notes)
    except UserError as error:
        return {"errors": _as_data([error]), "warnings": []}
    steps, epoch_steps, world_size = 0, 0, planned(config, world_size)

    def data() -> None:
        nonlocal steps, epoch_steps
        found, steps, epoch_steps = look(config, world_size)
        lines.extend(found + output(config))

    parts: tuple[Callable[[], object], ...] = (data, lambda: see_model(config))
    for part in parts:
        try:
            part()
        except UserError as error:
            errors.append(error)
    warnings = notes + [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]
    planned_memory: dict[str, Any] = {}
    try:
        planned_memory = {} if errors else forecast(config)
    except UserError as error:
        errors.append(error)
    made = {"errors": _as_data(errors), "warnings": warnings}
    if errors:
        return made
    return {**made, "steps": steps, "steps_per_epoch": epoch_steps, "memory": planned_memory}


def _as_data(errors: Sequence[UserError]) -> list[dict[str, str | None]]:
    made: list[dict[str, str | None]] = []
    for error in errors:
        if isinstance(error, UserErrors):
            made += _as_data(error.errors)
        else:
            made.append({"field": error.field, "message": error.message, "hint": error.hint})
    return made


def planned(config: TrainConfig, world_size: int) -> int:
    """The number of processes of the run, which this process may still have to start."""
    return len(listed(config.train_device)) if starts_several(config.train_device) else world_size


def _progress(what: str, done: int, total: int) -> None:
    sys.stderr.write(f"\r\x1b[K{what} {done}/{total}" + ("\r\x1b[K" if done == total else ""))
    sys.stderr.flush()


def has_memory_of_its_own(device: torch.device) -> bool:
    """Return whether the memory that a run will take there can be predicted and compared with what is free."""
    return device.type == "cuda"


def train(
    config: TrainConfig,
    run: RunDirectory,
    rank: int,
    profiled: int = 0,
    launcher: LauncherWatch | None = None,
) -> str:
    """Run the training in this process; return its final status.

    Args:
        profiled: numbers of steps that the first process times and traces.
        launcher: watches the launcher of this process, if it has one.
    """
    from modules.trainer.callbacks import Callbacks, Console, EventLog, TensorBoardLog
    from modules.trainer.diagnosis import fault_of
    from modules.trainer.distributed import Processes
    from modules.trainer.GenericTrainer import GenericTrainer
    from modules.trainer.memory.memory_advice import log_memory
    from modules.trainer.tensorboard_folder import log_folder

    members: list[Callback] = []
    if rank == 0:
        config = config.packed()
        run.write_config(config.to_dict())
        members += [EventLog(run.writer(), run.path), Console()]
        if config.tensorboard:
            members.append(TensorBoardLog(log_folder(run.tensorboard_dir, config.continue_last_backup)))
    processes = Processes.start(config.train_device, launcher)
    if rank == 0 and processes.world_size == 1:
        run.compute_on(str(processes.device))
    callbacks = Callbacks(members)
    fault = None
    try:
        if rank == 0 and has_memory_of_its_own(processes.device):
            log_memory(config, callbacks)
        if profiled and rank == 0:
            return profile(config, run, callbacks, processes, profiled)
        return GenericTrainer(config, run, callbacks, processes).run()
    except Exception as error:
        fault = fault_of(error)
        raise
    finally:
        processes.stop(fault)


def profile(
    config: TrainConfig, run: RunDirectory, callback: Callback, processes: Processes, steps: int
) -> str:
    """Like ``train``, but print a table of times at the end."""
    from modules.trainer.profile.ProfiledTrainer import ProfiledTrainer

    trainer = ProfiledTrainer(config, run, callback, processes, steps)
    status = trainer.run()
    for line in trainer.results:
        print(line)
    return status


def previous_run(config: TrainConfig, given: Sequence[str], world_size: int) -> list[str]:
    """One line if a run that ended early lies where a new one would begin, and how to resume it.

    Args:
        given: the arguments of this command.
    """
    run = RunDirectory(config.workspace_dir)
    left = None if config.continue_last_backup else unfinished(run)
    if left is None:
        return []
    same = [argument for argument in given if argument != "--dry-run"]
    command = shlex.join([sys.executable, str(ROOT / "scripts" / "train.py"), *same, *RESUME])
    by_torchrun = world_size > 1 and len(listed(config.train_device)) == 1
    how = f"instead: {command}" if not by_torchrun else f"instead, add {shlex.join(RESUME)} to the command"
    return [
        f"warning: {run.path} holds a run that ended early, with a backup of step {left[0]} of {left[1]}. "
        f"This config begins a new run. To resume the old run {how}"
    ]


def leave_at_once(status: int) -> None:
    """Exit without cleanup, which would wait for messages to a process that is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if options.dry_run and options.json:
        found = findings(options, world_size)
        print(json.dumps(found))
        return 2 if found["errors"] else 0
    launcher = LauncherWatch.begin() if world_size > 1 else None
    notes: list[str] = []
    try:
        if launcher is not None and (gone := launcher.look()) is not None:
            raise gone
        config = load_config(options, notes)
        if not options.dry_run and starts_several(config.train_device):
            from modules.trainer.distributed import train_on_each

            check_group(config, planned(config, 1))
            given = sys.argv[1:] if argv is None else argv
            return train_on_each(config.train_device, Path(__file__).resolve(), given)
        world_size = planned(config, world_size)
        if rank == 0:
            lines = [f"warning: {note}" for note in notes] + check(config, world_size) + output(config)
            for line in lines + previous_run(config, sys.argv[1:] if argv is None else argv, world_size):
                print(line)
        if options.dry_run:
            if rank == 0:
                predict_memory(config)
            return 0
        run = RunDirectory(config.workspace_dir)
        if rank == 0:
            run.lock(config.train_device if world_size in (1, len(listed(config.train_device))) else "auto")
        try:
            if rank == 0:
                from modules.trainer.resume.leftovers import clear_leftovers

                clear_leftovers(config, run)
            train(config, run, rank, options.profile, launcher)
        finally:
            run.unlock()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PeerLost as error:
        print(error.text(), file=sys.stderr)
        leave_at_once(error.exit_status)
    except KeyboardInterrupt:
        print("interrupted; continue_last_backup resumes from the last backup", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # the outermost place: everything else is a bug and shows its traceback
        if options.dry_run and isinstance(error, BrokenPipeError):
            raise
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
