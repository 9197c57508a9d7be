"""Packages that others are not shown while they are imported."""

from __future__ import annotations

import importlib.util
import sys
import threading
from types import ModuleType

import pytest

from modules.model.libraries import unseen

PACKAGE = "this_package_is_made_by_a_test"


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / f"{PACKAGE}.py").write_text("here = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(PACKAGE, None)


def test_a_package_is_unseen_inside_and_there_afterwards(package):
    with pytest.raises(RuntimeError), unseen(PACKAGE):
        assert importlib.util.find_spec(PACKAGE) is None
        with pytest.raises(ImportError):
            importlib.import_module(PACKAGE)
        raise RuntimeError
    assert importlib.import_module(PACKAGE).here


def test_a_package_that_is_loaded_stays(package):
    loaded = importlib.import_module(PACKAGE)
    with unseen(PACKAGE):
        assert importlib.import_module(PACKAGE) is loaded
    assert sys.modules[PACKAGE] is loaded


def test_what_was_put_there_inside_stays(package):
    made = ModuleType(PACKAGE)
    with unseen(PACKAGE):
        sys.modules[PACKAGE] = made
    assert sys.modules[PACKAGE] is made
    with unseen("another_package_of_a_test"):
        del sys.modules["another_package_of_a_test"]
    assert "another_package_of_a_test" not in sys.modules


def test_one_thread_at_a_time_hides_a_package(package):
    found = []
    with unseen(PACKAGE):
        other = threading.Thread(target=lambda: found.append(hidden()))
        other.start()
        other.join(0.1)
        assert not found, "it waits"
    other.join(10)
    assert found == [True] and importlib.import_module(PACKAGE).here


def hidden() -> bool:
    with unseen(PACKAGE):
        return importlib.util.find_spec(PACKAGE) is None


def test_what_others_removed_stays_removed(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with unseen(PACKAGE):
        pass
    assert PACKAGE in sys.modules and sys.modules[PACKAGE] is None
