"""Chooses from a surplus of images those to ask about: the ones whose order the learned taste is least sure of."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from modules.project.Project import Project
from modules.project.Round import Candidate, Round
from modules.project.taste_head import taste_file
from modules.runner.LineProcess import LineProcess, result_of
from modules.util.errors import UserError
from modules.util.program_files import ROOT

SCRIPT = ROOT / "scripts" / "least_sure.py"
Progress = Callable[[str], None]


def choose_shown(project: Project, one: Round, progress: Progress) -> None:
    """Choose the candidates from a surplus of images. Does nothing if that is already done.

    Raises:
        UserError: the learned taste no longer exists, or its features cannot be computed.
    """
    pools, chosen = one.to_choose(), one.chosen()
    unsure = {prompt: pool for prompt, pool in pools.items() if len(chosen.get(prompt, ())) < one.shown}
    found = _ask(project, one, unsure, progress) if unsure else {}
    if pools:
        one.choose(found)


def _ask(
    project: Project, one: Round, pools: dict[str, list[Candidate]], progress: Progress
) -> dict[str, list[str]]:
    head = taste_file(project)
    if head is None:
        raise UserError(
            f"the images of {one.name} to show are chosen by your learned taste, but there is none",
            hint="learn it again, then run generate",
        )
    before = one.chosen()
    told: list[dict[str, Any]] = [
        {
            "prompt": pool[0].prompt,
            "images": [str(one.made(image)) for image in pool],
            "chosen": [place for place, image in enumerate(pool) if image.file in before.get(group, ())],
        }
        for group, pool in pools.items()
    ]
    request = {"taste": str(head), "base": project.file.model.base, "count": one.shown, "groups": told}
    command = [sys.executable, str(SCRIPT), "--device", project.file.device]

    def heard(line: str) -> None:
        progress(f"{one.name}: choosing what to show, {line}")

    said = result_of(LineProcess(command, json.dumps(request).encode(), "choosing what to show", heard))
    places = said.get("chosen")
    if not isinstance(places, list) or len(places) != len(pools):
        raise UserError("the helper that chooses what to show did not answer", hint="run generate again")
    return {
        prompt: [pool[place].file for place in rows]
        for (prompt, pool), rows in zip(pools.items(), places, strict=True)
    }
