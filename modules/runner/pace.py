"""Predicts the time of a run from the duration of optimizer steps in earlier runs of the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.runner.events import step_of
from modules.runner.known_runs import known_runs
from modules.runner.RunDirectory import CONFIG_BYTES, RunDirectory
from modules.spec.registry import MODES
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.jsonio import read_json

MAX_EVENTS = 1 << 26
MAX_LOOKED_AT = 100


@dataclass(frozen=True)
class Pace:
    """Duration of one optimizer step, including everything between steps.

    Args:
        seconds: mean over a run, in seconds.
        steps: number of steps it was measured over.
        source: folder of the run.
    """

    seconds: float
    steps: int
    source: Path


def kind_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config (plain data) that determine the time of a step. Missing ones have their
    defaults.

    Runs that agree in all of them are of the same kind.
    """
    defaults = TrainConfig().to_dict()
    made: dict[str, Any] = {}
    for setting in iter_settings(TrainConfig):
        if setting.cost:
            value = _value_at(config, setting.path, _value_at(defaults, setting.path, None))
            made[setting.path] = bool(value) if setting.cost == "switch" else value
    return made


def _value_at(data: Any, path: str, default: Any) -> Any:
    for name in path.split("."):
        if not isinstance(data, Mapping) or name not in data:
            return default
        data = data[name]
    return data


def last_pace(config: Mapping[str, Any]) -> Pace | None:
    """The pace of the newest run of the same kind on this computer; ``None`` if there is none. Slow."""
    wanted = kind_of(config)
    for path in list(reversed(known_runs()))[:MAX_LOOKED_AT]:
        run = RunDirectory(path)
        try:
            settings = read_json(run.config_path, max_bytes=CONFIG_BYTES)
        except UserError:  # moved, deleted, or never started
            continue
        if isinstance(settings, Mapping) and kind_of(settings) == wanted:
            found = pace_of(run, makes_images(settings))
            if found is not None:
                return found
    return None


def makes_images(config: Mapping[str, Any]) -> bool:
    """Return whether a run with these settings (plain data) makes the images it learns from."""
    mode = MODES.get(str(config.get("rlhf_mode", "")))
    return config.get("rlhf_enabled") is True and mode is not None and mode.online


def pace_of(run: RunDirectory, online: bool = False) -> Pace | None:
    """The pace of a run's last start with at least two steps, excluding pauses.

    Online training is measured from its beginning, because images are made before the first step. Other
    training is measured from its first step, which takes longer than others.

    Args:
        online: whether it makes the images it learns from.
    """
    found: Pace | None = None
    begin: tuple[float, int] | None = None
    paused_at, away = 0.0, 0.0
    for event in run.reader().poll(MAX_EVENTS):
        kind, when, at = event["kind"], event.get("t"), step_of(event)
        if not isinstance(when, (int, float)):
            continue
        if kind == "run_started":
            begin, away, paused_at = ((when, at or 0) if online else None), 0.0, 0.0
        elif kind == "command" and event.get("command") == "pause" and not paused_at:
            paused_at = when
        elif kind == "command" and event.get("command") == "resume" and paused_at:
            away, paused_at = away + when - paused_at, 0.0
        elif kind == "step" and at is not None:
            if begin is None:
                begin = (when, at)
            elif at > begin[1]:
                done = at - begin[1]
                found = Pace(max(0.0, when - begin[0] - away) / done, done, run.path)
    return found
