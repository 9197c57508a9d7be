from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.pipeline.nodes.Pattern import Pattern
from modules.pipeline.nodes.prompts import (
    augment_text,
    choose_line,
    complete_prompt,
    read_lines,
    special_tags,
    text_variations,
)
from modules.util.config.ConceptConfig import ConceptTextConfig
from modules.util.errors import DataError

TAGS = "main, a, b, c, d, e"


def settings_of(**values: Any) -> ConceptTextConfig:
    return ConceptTextConfig.from_dict(values)


def many(settings: ConceptTextConfig, count: int = 300, prompt: str = TAGS) -> list[str]:
    return [augment_text(prompt, settings, 3, "item", variation) for variation in range(count)]


def test_lines_are_alternatives(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeff one \r\n\n\t\ntwo, three\n".encode())
    assert read_lines(path) == ("one", "two, three")
    for empty in (b"", b"\n\n", b"  "):
        path.write_bytes(empty)
        assert read_lines(path) == ("",)


def test_captions_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content, reason in (
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a\0b", "not text"),
        (b"x" * (2 << 20), "larger"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=reason) as caught:
            read_lines(path)
        assert str(path) in str(caught.value)
    with pytest.raises(FileNotFoundError):
        read_lines(tmp_path / "none.txt")
    (tmp_path / "dir.txt").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        read_lines(tmp_path / "dir.txt")


@given(st.lists(st.text(max_size=5), min_size=1, max_size=8), st.integers(0, 100), st.text(max_size=5))
def test_every_alternative_has_its_turn(prompts: list[str], seed: int, item: str) -> None:
    count = text_variations(prompts, 1, augmented=False)
    first = [choose_line(prompts, seed, item, v) for v in range(count)]
    assert Counter(first) == Counter(prompts)
    assert [choose_line(prompts, seed, item, count + v) for v in range(count)] == first


def test_items_take_their_alternatives_in_different_orders() -> None:
    orders = {tuple(choose_line("abcd", 0, str(item), v) for v in range(4)) for item in range(40)}
    assert len(orders) > 10


def test_plain_settings_change_nothing() -> None:
    assert augment_text(" odd ,, text ", settings_of(), 1, "a", 1) == " odd ,, text "


def test_shuffling_keeps_the_first_and_loses_none() -> None:
    made = many(settings_of(enable_tag_shuffling=True, keep_tags_count=2))
    assert len(set(made)) == 24
    assert all(text.startswith("main, a, ") and Counter(text) == Counter(TAGS) for text in made)


def test_full_dropout_takes_all_or_none() -> None:
    made = Counter(many(settings_of(tag_dropout_enable=True, tag_dropout_probability=0.3)))
    assert set(made) == {"main", TAGS} and 60 < made["main"] < 120


def test_random_dropout_takes_each_alone_and_weighted_the_later_more() -> None:
    def share(mode: str) -> list[float]:
        settings = settings_of(tag_dropout_enable=True, tag_dropout_mode=mode, tag_dropout_probability=0.5)
        made = [text.split(", ") for text in many(settings, 600)]
        return [sum(tag in tags for tags in made) / len(made) for tag in TAGS.split(", ")]

    plain, weighted = share("RANDOM"), share("RANDOM_WEIGHTED")
    assert plain[0] == 1.0 and all(0.4 < s < 0.6 for s in plain[1:])
    assert weighted[0] == 1.0 and weighted[1] > 0.8 and 0.4 < weighted[-1] < 0.6
    assert weighted == sorted(weighted, reverse=True)


def test_special_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    gone = {"tag_dropout_enable": True, "tag_dropout_probability": 1.0, "tag_dropout_mode": "RANDOM"}
    listed = tmp_path / "tags.txt"
    listed.write_text("b\nd\n", encoding="utf-8")
    for special in ("b, d", str(listed), "~/tags.txt"):
        white = settings_of(
            tag_dropout_special_tags_mode="WHITELIST", tag_dropout_special_tags=special, **gone
        )
        black = settings_of(
            tag_dropout_special_tags_mode="BLACKLIST", tag_dropout_special_tags=special, **gone
        )
        assert set(many(white, 5)) == {"main, b, d"}
        assert set(many(black, 5)) == {"main, a, c, e"}
    pattern = settings_of(
        tag_dropout_special_tags_mode="WHITELIST", tag_dropout_special_tags="[a-c]",
        tag_dropout_special_tags_regex=True, **gone,
    )  # fmt: skip
    assert set(many(pattern, 5)) == {"main, a, b, c"}


def test_bad_special_tags_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        special_tags(settings_of(tag_dropout_special_tags=str(tmp_path / "none.txt")))
    with pytest.raises(DataError, match="not a valid pattern"):
        special_tags(settings_of(tag_dropout_special_tags="(", tag_dropout_special_tags_regex=True))


def test_capitals() -> None:
    def cases(mode: str, **more: Any) -> set[str]:
        settings = settings_of(
            caps_randomize_enable=True, caps_randomize_mode=mode, caps_randomize_probability=1.0, **more
        )
        return set(many(settings, 200, "Keep Me, red fox, BIG"))

    assert cases("capslock") == {"Keep Me, RED FOX, BIG"}
    assert cases("title") == {"Keep Me, Red Fox, Big"}
    assert cases("first") == {"Keep Me, Red fox, Big"}
    assert len(cases("random")) > 50
    assert cases("capslock", caps_randomize_lowercase=True) == {"keep me, RED FOX, BIG"}
    never = settings_of(caps_randomize_enable=True, caps_randomize_lowercase=True)
    assert augment_text("A, B", never, 0, "a", 0) == "a, b"


def test_own_delimiter() -> None:
    settings = settings_of(enable_tag_shuffling=True, tag_delimiter=";", keep_tags_count=0)
    assert set(many(settings, 50, "a, b; c")) == {"a, b; c", "c; a, b"}


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"(a+)+$", ["a", "aaa", "", "b", "a" * 40 + "!"]),
        (r"(?:a|aa)*b?", ["", "aaab", "b", "c"]),
        (r"red|blue (eyes|hair)", ["red", "blue eyes", "red eyes", "blue"]),
        (r"\d{1,3} girls?", ["1 girl", "1234 girls", "12 girls"]),
        (r"[^x-z]{2,}?", ["ab", "a", "ax"]),
        (r"(?i)Red.*\bfox\b", ["red hot FOX", "redfox", "RED fox"]),
        (r"^a$", ["a", "aa"]),
        (r"(?:)*a{0}", ["", "a"]),
    ],
)
def test_patterns_match_as_regular_expressions_do(pattern: str, texts: list[str]) -> None:
    made = Pattern(pattern)
    for text in texts[:-1] if "+)+" in pattern else texts:
        assert made.matches(text) == (re.fullmatch(pattern, text) is not None), text


@given(st.text("ab|*+?().[]^$", max_size=8), st.text("ab", max_size=6))
def test_random_patterns_match_as_regular_expressions_do(pattern: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = re.fullmatch(pattern, text) is not None
            made = Pattern(pattern)
        except (re.error, ValueError):
            return
    assert made.matches(text) == expected


def test_a_pattern_that_would_never_end_ends() -> None:
    settings = settings_of(
        tag_dropout_enable=True, tag_dropout_probability=1.0, tag_dropout_mode="RANDOM",
        tag_dropout_special_tags_mode="WHITELIST", tag_dropout_special_tags="(a+)+$",
        tag_dropout_special_tags_regex=True,
    )  # fmt: skip
    start = time.process_time()
    assert augment_text(f"main, {'a' * 40}!, {'a' * 40}", settings, 1, "x", 0) == f"main, {'a' * 40}"
    assert time.process_time() - start < 1


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)b", "(?<!a)b", "((a{300}){300})", "(", "(?>a)"])
def test_patterns_that_are_not_taken_are_named(pattern: str) -> None:
    with pytest.raises(DataError, match="special tag") as caught:
        special_tags(settings_of(tag_dropout_special_tags=pattern, tag_dropout_special_tags_regex=True))
    assert repr(pattern) in str(caught.value)


@pytest.mark.parametrize(
    ("word", "prompt", "made"),
    [
        ("sks", "a row of desks", "sks a row of desks"),
        ("sks", "a photo of sks, at night", "a photo of sks, at night"),
        ("sks", "sks_person in masks", "sks_person in masks"),
        ("ohwx man", "an ohwx man", "an ohwx man"),
        ("<fox>", "a<fox>b", "a<fox>b"),
        ("猫", "黒猫がいる", "黒猫がいる"),
        ("fox", "two foxes", "two foxes"),
        ("sks", "a desk, sksstyle", "a desk, sksstyle"),
        ("dog", "two [trigger]s", "two dogs"),
        ("sks", "[trigger]style house", "sksstyle house"),
        ("sks", "a de[trigger]", "a desks"),
    ],
)
def test_a_trigger_word_inside_another_word_does_not_count(word: str, prompt: str, made: str) -> None:
    assert complete_prompt(prompt, ConceptTextConfig.from_dict({"trigger_word": word})) == made
