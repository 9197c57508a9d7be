"""Tag patterns with bounded matching time: all alternatives are followed at once, without backtracking.

Common regular expressions are supported (letters, classes, groups, alternatives, repeats, anchors).
Backreferences and lookaround, which need backtracking, are refused.
"""

from __future__ import annotations

import re
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

_MAX_STATES = 5000
_ONE = frozenset((_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY))
_REPEATS = frozenset((_constants.MAX_REPEAT, _constants.MIN_REPEAT))


class Pattern:
    """A pattern for whole texts. Matching takes time proportional to its length times that of the text.

    Raises:
        ValueError: it is invalid, too large, or uses an unsupported form.
    """

    def __init__(self, text: str) -> None:
        try:
            tree = _parser.parse(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from error
        self._state = tree.state
        self._letters: list[tuple[re.Pattern[str], int] | None] = []
        """By state: what its letter must match, and the next state."""
        self._free: list[list[tuple[re.Pattern[str] | None, int]]] = []
        """By state: states reachable without a letter, and the condition on the position."""
        self._end = self._new()
        self._start = self._sequence(list(tree), self._end)

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        states = self._closure({self._start}, text, 0)
        for at in range(len(text)):
            further = {
                step[1]
                for state in states
                if (step := self._letters[state]) is not None and step[0].match(text, at)
            }
            if not further:
                return False
            states = self._closure(further, text, at + 1)
        return self._end in states

    def _closure(self, states: set[int], text: str, at: int) -> set[int]:
        waiting = list(states)
        while waiting:
            for condition, further in self._free[waiting.pop()]:
                if further not in states and (condition is None or condition.match(text, at)):
                    states.add(further)
                    waiting.append(further)
        return states

    # -- states, from the end to the start ---------------------------------------------------------------------

    def _new(self) -> int:
        if len(self._free) >= _MAX_STATES:
            raise ValueError("it is too large")
        self._letters.append(None)
        self._free.append([])
        return len(self._free) - 1

    def _sequence(self, items: list[Any], end: int) -> int:
        for item in reversed(items):
            end = self._item(item, end)
        return end

    def _item(self, item: Any, end: int) -> int:
        """The state from which ``item`` leads to ``end``."""
        kind, about = item
        if kind in _ONE:
            start = self._new()
            self._letters[start] = (self._compiled(item), end)
            return start
        if kind is _constants.AT:
            return self._fork([end], self._compiled(item))
        if kind is _constants.SUBPATTERN and not about[1] and not about[2]:
            return self._sequence(list(about[3]), end)
        if kind is _constants.BRANCH:
            return self._fork([self._sequence(list(way), end) for way in about[1]])
        if kind in _REPEATS:
            least, most, inside = about
            return self._repeated(least, most, inside, end)
        raise ValueError(f"it uses {str(kind).lower().replace('_', ' ')}")

    def _repeated(self, least: int, most: int, inside: Any, end: int) -> int:
        if most is _constants.MAXREPEAT:
            loop = self._new()
            self._free[loop] = [(None, self._sequence(list(inside), loop)), (None, end)]
            end = loop
        else:
            for _ in range(most - least):
                end = self._fork([self._sequence(list(inside), end), end])
        for _ in range(least):
            end = self._sequence(list(inside), end)
        return end

    def _fork(self, ways: list[int], condition: re.Pattern[str] | None = None) -> int:
        start = self._new()
        self._free[start] = [(condition, way) for way in ways]
        return start

    def _compiled(self, item: Any) -> re.Pattern[str]:
        made: re.Pattern[str] = _compiler.compile(_parser.SubPattern(self._state, [item]))
        return made
