"""The claim on a run, what is left behind by dead trainers, and names of files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.runner.commands import post_command
from modules.runner.ProcessId import ProcessId
from modules.runner.RunDirectory import LAUNCHED_IN, RunDirectory
from modules.util.errors import DataError, UserError
from modules.util.TrainProgress import TrainProgress
from tests.changes import full_disk, killed_at, recorded
from tests.runner.support import ROOT, start_fake, taken, wait_until


@pytest.mark.child
def test_a_second_trainer_is_refused_until_the_first_one_is_killed(tmp_path):
    run = RunDirectory(tmp_path / "run").create()
    first = start_fake(run, "obey")
    wait_until(run.trainer)
    assert run.trainer().pid == first.pid
    with taken():
        run.lock()
    with run.undisturbed() as alone:
        assert not alone
    assert run.trainer().pid == first.pid
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert run.process_path.exists()
    assert run.trainer() is None
    with run.locked():
        assert run.trainer() == ProcessId.own()
    assert run.trainer() is None
    assert not run.process_path.exists()


@pytest.mark.child
def test_a_claim_does_not_outlive_its_process_in_forked_helpers(tmp_path):
    program = """
        import os, sys, time
        from modules.runner.RunDirectory import RunDirectory
        run = RunDirectory(sys.argv[1])
        run.lock()
        helper = os.fork()
        if helper:
            print(helper, flush=True)
        time.sleep(60)
    """
    run = RunDirectory(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(run.path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as trainer:
        helper = int(trainer.stdout.readline())
        try:
            assert run.trainer().pid == trainer.pid
            with taken():
                run.lock()
            trainer.kill()
            trainer.wait()
            assert ProcessId.of(helper) is not None
            with run.locked():
                assert run.trainer() == ProcessId.own()
        finally:
            trainer.kill()
            os.kill(helper, signal.SIGKILL)


def test_a_claim_that_cannot_be_written_down_is_given_back(tmp_path):
    run = RunDirectory(tmp_path).create()
    with full_disk("fsync"), pytest.raises(UserError, match="cannot be written: No space left"):
        run.lock()
    with RunDirectory(tmp_path).locked():
        pass


def test_one_process_cannot_claim_a_run_twice(tmp_path):
    with RunDirectory(tmp_path).locked(), taken(), RunDirectory(tmp_path).locked():
        pass


def test_a_watcher_keeps_trainers_out_only_for_a_moment(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with run.undisturbed() as alone:
        assert not alone  # no folder
    assert not run.path.exists()
    run.create()
    with run.undisturbed() as alone:
        assert alone
    with run.locked():
        pass


def test_orders_from_before_the_start_are_dropped(tmp_path):
    run = RunDirectory(tmp_path).create()
    post_command(run.commands_dir, "stop")
    (run.commands_dir / "half.taken").write_text("{}")
    with run.locked():
        assert run.take_commands() == ([], [])
        assert list(run.commands_dir.iterdir()) == []
        identity = run.post("backup", reason="why not")
        assert [(c.id, c.arguments) for c in run.take_commands()[0]] == [(identity, {"reason": "why not"})]


def test_an_order_needs_a_running_trainer_and_a_known_name(tmp_path):
    run = RunDirectory(tmp_path / "run").create()
    with pytest.raises(UserError, match="no training is running"):
        run.post("stop")
    with run.locked(), pytest.raises(UserError, match="selfdestruct"):
        run.post("selfdestruct")


@pytest.mark.parametrize(
    "text",
    [
        '{"pid": OWN, "started": "another boot:1"}',
        json.dumps({"pid": 2**22 + 7, "started": "x:1"}),
        json.dumps({"pid": "1", "started": "x"}),
        json.dumps({"pid": -1, "started": "x"}),
        json.dumps({"pid": True, "started": "x"}),
        json.dumps([1]),
        "{",
        "[" * 50_000,
        "",
        "x" * 100_000,
    ],
)
def test_files_of_other_processes_or_none_name_no_trainer(tmp_path, text):
    run = RunDirectory(tmp_path).create()
    text = text.replace("OWN", str(os.getpid()))
    run.process_path.write_text(text)
    run.launch_path.write_text(text)
    assert run.trainer() is None
    assert run.launched() is None
    assert isinstance(run.launch_record(), dict)
    with run.locked():
        assert run.trainer() == ProcessId.own()


def test_a_trainer_started_by_hand_drops_the_record_of_the_last_launch(tmp_path):
    run = RunDirectory(tmp_path).create()
    dead = {"pid": os.getpid(), "started": "another boot:1"}
    run.launch_path.write_text(json.dumps({"t": 1.0, "process": dead, "ended": True, "log_offset": 0}))
    with run.writer() as writer:
        for _ in range(3):
            writer.emit("step")
    with run.locked():
        assert run.launch_record().keys() == {"t", "sequence"}
        assert run.launch_record()["sequence"] == 3


def test_the_record_of_a_living_launch_stays(tmp_path):
    run = RunDirectory(tmp_path).create()
    run.launch_path.write_text(json.dumps({"t": 1.0, "process": ProcessId.own().to_dict()}))
    with run.locked():
        assert run.launch_record()["t"] == 1.0
        assert run.launched() == ProcessId.own()


def test_a_launched_trainer_is_known_before_its_launcher_has_written_so(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path).create()
    monkeypatch.setenv(LAUNCHED_IN, str(tmp_path / "."))
    with run.locked():
        assert not run.launch_path.exists()
    monkeypatch.setenv(LAUNCHED_IN, str(tmp_path / "another"))
    with run.locked():
        assert run.launch_path.exists()


@pytest.mark.child
def test_processes_end_with_their_helpers(tmp_path):
    program = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        helper = ProcessId.of(int(parent.stdout.readline()))
        process = ProcessId.of(parent.pid)
        assert helper.alive() and process.alive()
        assert ProcessId.from_dict(json.loads(json.dumps(process.to_dict()))) == process
        process.end(grace=5.0)
        assert not process.alive()
        wait_until(lambda: not helper.alive())
    process.end()  # nothing is left to end


@pytest.mark.child
def test_a_process_that_ended_and_was_not_waited_for_is_none():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ended:
        process = ProcessId.of(ended.pid)
        assert process.alive()
        ended.stdin.close()
        wait_until(lambda: not process.alive())
        assert ended.returncode is None  # nobody has asked for its status: the system still lists it
        assert ProcessId.of(ended.pid) is None


@pytest.mark.child
def test_a_process_that_does_not_listen_is_ended_by_force(tmp_path):
    program = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout.readline() == b"deaf\n"
        process = ProcessId.of(deaf.pid)
        process.end(grace=0.3)
        assert not process.alive()


def test_names_do_not_leave_the_folder(tmp_path):
    run = RunDirectory(tmp_path / "run").create()
    assert run / "samples/1.png" == run.path / "samples" / "1.png"
    (run.path / "out").symlink_to(tmp_path)
    for name in ("../x", str(tmp_path), "samples/../../x", "out/x", "a\0b"):
        with pytest.raises(UserError):
            run / name


def test_a_file_where_the_folder_should_be_is_one_clear_error(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="cannot be written") as caught:
        RunDirectory(tmp_path / "run").create()
    assert caught.value.field == "workspace_dir"


@given(st.dictionaries(st.text(max_size=12), st.one_of(st.none(), st.integers(), st.text(), st.booleans())))
def test_progress_reads_four_counts_and_nothing_else(data):
    with pytest.raises(DataError):
        TrainProgress.from_dict(data)
    good = {"epoch": 1, "epoch_step": 2, "epoch_sample": 3, "global_step": 4}
    assert TrainProgress.from_dict({**data, **good}).to_dict() == good
    with pytest.raises(DataError):
        TrainProgress.from_dict({**good, "epoch_step": -1})


def test_settings_that_a_person_had_in_the_folder_are_kept_by_its_first_run(tmp_path):
    mine = tmp_path / "config.json"
    mine.write_text('{"learning_rate": 0.1}')

    def begin(config) -> list[str]:
        RunDirectory(tmp_path).create().write_config(config)
        assert json.loads(mine.read_text()) == config
        return [path.read_text() for path in tmp_path.glob("config.before-*.json")]

    assert begin({"learning_rate": 0.1, "seed": 1}) == ['{"learning_rate": 0.1}']
    # from now on it is the file of the run
    assert begin({"learning_rate": 0.2}) == begin({"learning_rate": 0.3}) == ['{"learning_rate": 0.1}']


@pytest.mark.parametrize("first", ["create", "lock"])
def test_settings_of_a_person_are_kept_after_a_start_that_ended_before_it_wrote_its_own(tmp_path, first):
    mine = tmp_path / "config.json"
    mine.write_text('{"learning_rate": 0.1}')
    run = RunDirectory(tmp_path)
    getattr(run, first)()
    run.unlock()
    for seed in (1, 2):
        RunDirectory(tmp_path).create().write_config({"seed": seed})
        assert json.loads(mine.read_text()) == {"seed": seed}
        kept = [path.read_text() for path in tmp_path.glob("config.before-*.json")]
        assert kept == ['{"learning_rate": 0.1}']


@pytest.mark.child
def test_settings_of_a_person_are_kept_after_a_start_that_was_killed_at_any_moment(tmp_path):
    def folder(name) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"learning_rate": 0.1}')
        return tmp_path / name

    def begin(place, seed) -> None:
        RunDirectory(place).create().write_config({"seed": seed})

    with recorded() as changes:
        begin(folder("counted"), 1)
    for number in range(1, changes.begun + 1):
        place = folder(f"killed at {number}")
        assert killed_at(number, number % 2 == 0, partial(begin, place, 1))
        begin(place, 2)
        assert json.loads((place / "config.json").read_text()) == {"seed": 2}
        kept = [json.loads(path.read_text()) for path in place.glob("config.before-*.json")]
        assert kept == [{"learning_rate": 0.1}], number


def test_settings_that_are_those_of_the_run_need_no_copy(tmp_path):
    (tmp_path / "config.json").write_text('{"seed": 1}')
    RunDirectory(tmp_path).create().write_config({"seed": 1})
    assert not list(tmp_path.glob("config.before-*"))
