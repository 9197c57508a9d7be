"""Picking from the images of a round over two streams of lines, as in the pair tool without a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

from modules.curation.commands import serve_pairs
from modules.curation.CurationMode import DEFAULT_MODE, CurationMode
from modules.curation.group_state import SessionSettings
from modules.curation.intake.groups import ScanOptions
from modules.project.Project import Project
from modules.project.Round import Round
from modules.util.errors import UserError

Progress = Callable[[str], None]


def round_to_pick_from(project: Project) -> Round:
    """The current round. Raises ``UserError`` if it has no images yet."""
    one = project.round
    if not one.candidates.is_dir():
        raise UserError(f"{one.name} has no images yet", hint="make some with generate")
    return one


def settings_of(project: Project) -> SessionSettings:
    """Settings of the last picking in this project; the defaults if there was none yet."""
    known = {mode.value: mode for mode in CurationMode}
    rounds = project.rounds()[::-1]
    mode = next((known[way] for way in (one.way for one in rounds) if way in known), DEFAULT_MODE)
    goal = next((one.goal for one in rounds if one.goal is not None), None)
    return SessionSettings(mode) if goal is None else SessionSettings(mode, *goal)


def serve_picks(
    project: Project, settings: SessionSettings, requests: IO[bytes], replies: IO[str], progress: Progress
) -> None:
    """Pick from the current round; see ``PairServer``."""
    one = round_to_pick_from(project)
    alike = project.file.near_duplicates
    scan = ScanOptions(project.file.seed, None if alike < 0 else alike)
    serve_pairs(one.candidates, one.pairs, settings, scan, requests, replies, progress)
