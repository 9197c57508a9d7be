"""What each way of choosing has exported from its window trains as it is, by the training command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open

from modules.curation.CurationMode import CurationMode
from modules.util.dpo_curation_util import UNCONDITIONAL, load_manifest
from tests.trainer.builders import events, train, write_config
from tests.ui.curation.drivers import Hands, answer_as_liked, choose_everything
from tests.ui.curation.test_sessions import finalise_by_keyboard

pytestmark = pytest.mark.gui

GROUPS, PER_GROUP, BLANK = 4, 4, 1
STEPS = 2


def answer_ranked(hands: Hands) -> None:
    """A few answers, then the ranking, put in order by hand, and two pairs of it in one go."""
    if len(hands.shot.state.answers) < 3:
        answer_as_liked(hands)
        return
    hands.press("r")
    view = hands.page.view
    for place in range(len(view.order)):
        best = max(range(place, len(view.order)), key=lambda at: hands.quality(view.order[at]))
        while best > place:
            view.move(best, best - 1)
            best -= 1
    hands.press("plus", "Return")


def session(hands: Hands, mode: CurationMode, answer: Callable[[Hands], None]) -> None:
    hands.begin(mode, certainty=80.0)
    choose_everything(hands, answer)
    finalise_by_keyboard(hands)
    hands.close()


def train_exported(folder: Path, concepts: Path) -> tuple[Path, Path]:
    """Run the training command for a few steps; (its run folder, the adapter)."""
    changes = {"rlhf_dpo_validation": True, "rlhf_dpo_validation_draws": 1, "max_steps": STEPS, "epochs": 9}
    config = write_config(folder, concepts=None, concept_file_name=str(concepts), **changes)
    done = train(config)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run", folder / "out.safetensors"


CASES = {mode.value: (mode, answer_as_liked) for mode in CurationMode}
CASES["RANKED_REVIEW"] = (CurationMode.ELO, answer_ranked)
QUICK, *REST = [pytest.param(*case, id=name) for name, case in CASES.items()]


@pytest.mark.parametrize(
    ("mode", "answer"), [QUICK, *(pytest.param(*p.values, id=p.id, marks=pytest.mark.slow) for p in REST)]
)
def test_what_the_window_exports_trains_without_an_edit(
    sit_down, tmp_path: Path, mode: CurationMode, answer: Callable[[Hands], None]
):
    session(sit_down(GROUPS, PER_GROUP, BLANK), mode, answer)
    output = tmp_path / "pairs"
    pairs = load_manifest(output)["pairs"]
    assert len(pairs) == GROUPS * (2 if answer is answer_ranked else 1)
    for pair in pairs:
        assert pair["sources"]["chosen"] > pair["sources"]["rejected"], "later images are better"
    made = len(pairs) // GROUPS
    assert [pair["prompt"] for pair in pairs].count(UNCONDITIONAL) == BLANK * made
    assert [p.read_bytes() for p in output.glob("*/*/*.txt")].count(b"") == 2 * BLANK * made
    before = {p: p.read_bytes() for p in output.rglob("*") if p.is_file()}
    run, adapter = train_exported(tmp_path / "training", output / "concepts.json")
    assert {p: p.read_bytes() for p in output.rglob("*") if p.is_file()} == before, "training only reads"
    with safe_open(adapter, "np") as weights:
        assert any(bool(weights.get_tensor(name).any()) for name in weights.keys() if "lora_up" in name)  # noqa: SIM118
    happened = events(run)
    assert sum(event["kind"] == "step" for event in happened) == STEPS
    assert happened[-1]["kind"] == "run_finished"
