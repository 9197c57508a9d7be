"""Commands and signals, heard by all processes alike and answered once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from modules.runner.commands import COMMANDS, Command, post_command
from modules.runner.RunDirectory import RunDirectory
from modules.trainer.callbacks import Callback
from modules.trainer.control import Commands as commands_module
from modules.trainer.control.Commands import BACKUP, PAUSE, RESUME, SAMPLE, SAVE, STOP, Commands
from modules.trainer.control.StopSignals import StopSignals
from modules.trainer.distributed import Processes

BITS = {
    "stop": STOP,
    "backup": BACKUP,
    "sample": SAMPLE,
    "save": SAVE,
    "pause": PAUSE,
    "resume": RESUME,
}


class Answers(Callback):
    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.warnings: list[str] = []

    def command(self, command: Command, state: str, message: str = "") -> None:
        self.told.append((command.kind, state, message))

    def warning(self, message: str) -> None:
        self.warnings.append(message)


@dataclass
class Desk:
    """Orders of a run, and what is said about them."""

    run: RunDirectory
    signals: StopSignals = field(default_factory=StopSignals)
    answers: Answers = field(default_factory=Answers)
    rank: int = 0

    def __post_init__(self) -> None:
        processes = Processes(self.rank, 1, 0, torch.device("cpu"))
        self.commands = Commands(self.run, self.signals, self.answers, processes)

    def post(self, kind: str) -> None:
        post_command(self.run.commands_dir, kind)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(commands_module, "PAUSE_SECONDS", 0.0)
    return Desk(RunDirectory(tmp_path / "run").create())


def test_each_command_has_a_bit_of_its_own() -> None:
    assert set(BITS) == set(COMMANDS)
    assert len({*BITS.values()}) == len(BITS)


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_is_heard_until_it_is_answered(desk: Desk, kind: str) -> None:
    assert desk.commands.hear() == 0
    desk.post(kind)
    assert [desk.commands.hear(), desk.commands.hear()] == [BITS[kind]] * 2
    desk.commands.done(BITS[kind], "there it is")
    assert desk.commands.hear() == 0
    assert desk.answers.told == [(kind, "taken", ""), (kind, "done", "there it is")]


def test_several_are_heard_together_and_answered_apart(desk: Desk) -> None:
    for kind in ("backup", "sample", "backup"):
        desk.post(kind)
    assert desk.commands.hear() == BACKUP | SAMPLE
    desk.commands.done(BACKUP, "b")
    assert desk.commands.hear() == SAMPLE
    desk.commands.failed(SAMPLE, "no room")
    assert desk.commands.hear() == 0
    assert desk.answers.told[3:] == [
        ("backup", "done", "b"),
        ("backup", "done", "b"),
        ("sample", "failed", "no room"),
    ]


def test_an_answer_nobody_waits_for_is_not_given(desk: Desk) -> None:
    desk.commands.done(SAVE)
    desk.commands.failed(STOP, "the run has ended")
    assert desk.answers.told == []


def test_a_signal_is_a_wish_to_stop(desk: Desk) -> None:
    assert not desk.commands.stop_wanted()
    desk.signals.received = "SIGTERM"
    assert desk.commands.stop_wanted()
    assert desk.commands.hear() == STOP


def test_in_the_middle_of_work_only_a_stop_counts_and_the_rest_waits(desk: Desk) -> None:
    desk.post("sample")
    assert not desk.commands.stop_wanted()
    desk.post("stop")
    assert desk.commands.stop_wanted()
    assert desk.commands.hear() == STOP | SAMPLE


def test_files_that_hold_no_command_are_told_and_gone(desk: Desk) -> None:
    (desk.run.commands_dir / "zzz.json").write_text("{ not json")
    assert desk.commands.hear() == 0
    assert desk.answers.warnings == ["the file commands/zzz.json holds no command"]
    assert list(desk.run.commands_dir.iterdir()) == []


def test_only_the_first_process_takes_commands_but_all_hear_their_signals(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run").create()
    second = Desk(run, rank=1)
    second.post("stop")
    assert second.commands.hear() == 0
    assert len(list(run.commands_dir.iterdir())) == 1
    second.signals.received = "SIGINT"
    assert second.commands.hear() == STOP


class Paused:
    """What happens while a run waits: one entry a round."""

    def __init__(self, desk: Desk, *rounds: str) -> None:
        self.desk, self.rounds = desk, list(rounds)
        self.carried_out: list[int] = []

    def other(self, wishes: int) -> None:
        self.carried_out.append(wishes)
        for bit in (BACKUP, SAMPLE, SAVE):
            if wishes & bit:
                self.desk.commands.done(bit)
        assert self.rounds, "it should not wait any longer"
        kind = self.rounds.pop(0)
        if kind == "signal":
            self.desk.signals.received = "SIGINT"
        elif kind:
            self.desk.post(kind)


def test_a_pause_lasts_until_it_is_resumed_and_does_what_is_asked_meanwhile(desk: Desk) -> None:
    desk.post("pause")
    assert desk.commands.hear() == PAUSE
    paused = Paused(desk, "", "sample", "pause", "resume")
    assert desk.commands.wait_while_paused(paused.other) == 0
    assert [wishes & SAMPLE for wishes in paused.carried_out] == [0, 0, SAMPLE, 0]
    assert paused.rounds == []
    assert [told for told in desk.answers.told if told[1] == "done"] == [
        ("pause", "done", ""), ("sample", "done", ""), ("pause", "done", ""), ("resume", "done", "")
    ]  # fmt: skip
    assert desk.commands.hear() == 0


@pytest.mark.parametrize("how", ["stop", "signal"])
def test_a_paused_run_can_be_stopped(desk: Desk, how: str) -> None:
    desk.post("pause")
    desk.commands.hear()
    assert desk.commands.wait_while_paused(Paused(desk, how).other) == STOP


def test_what_came_with_the_resume_is_still_to_be_done(desk: Desk) -> None:
    desk.post("pause")
    desk.commands.hear()
    desk.post("backup")
    desk.post("resume")
    assert desk.commands.wait_while_paused(Paused(desk).other) == BACKUP
