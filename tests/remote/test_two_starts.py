"""Two starts of the same run at the same time."""

from __future__ import annotations

import pytest

from modules.remote import starting
from modules.remote.Far import Far
from modules.util.config.load import load_config
from modules.util.errors import UserError
from tests.remote.support import begin, write_light
from tests.remote.test_copying import inputs

pytestmark = pytest.mark.child


def test_of_two_starts_of_a_run_at_once_the_trainer_reads_the_files_of_the_one_that_begins(
    server, remote, program, tmp_path, monkeypatch
):
    config = write_light(tmp_path / "job", remote)
    other = write_light(tmp_path / "other", remote)
    (tmp_path / "other" / "images" / "a.png").write_bytes(b"another image")
    ask, second = Far.ask, []

    async def race(self, kind, verb, **more):
        if verb == "begin" and not second:
            second.append(starting.Start(starting.Wanted(remote, load_config(other), "run-1"), lambda _: None))
            answer = await ask(self, kind, verb, **more)
            # the second start looked before this trainer began
            monkeypatch.setattr(starting.Start, "_has_begun", nothing_yet)
            with pytest.raises(UserError, match="already running"):
                await second[0].work(self)
            return answer
        return await ask(self, kind, verb, **more)

    async def nothing_yet(*_):
        return False

    monkeypatch.setattr(Far, "ask", race)
    begin(config)
    images = [data for name, data in inputs(server).items() if name.endswith("a.png")]
    assert images == [b"image"]
