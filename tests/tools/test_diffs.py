"""The diff that people are shown: what `patch` makes of it is the new text, and it is short whatever the texts are."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from holdfast.tools.diffs import MAX_DIFF_CHARACTERS, unified

texts = some.lists(some.sampled_from(["a\n", "b\n", "c\n", "\n", "a", "é\u2028\n"]), max_size=12).map("".join)


def test_lines_around_a_change_are_shown_with_their_numbers() -> None:
    before = "".join(f"{number}\n" for number in range(1, 21))
    after = before.replace("10\n", "ten\n").replace("12\n", "")
    assert unified(before, after, "n.txt") == (
        "--- a/n.txt\n+++ b/n.txt\n@@ -7,9 +7,8 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n-12\n 13\n 14\n 15\n"
    )


def test_the_same_text_has_no_diff() -> None:
    assert unified("a\n", "a\n", "n") == ""


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=texts, after=texts)
def test_patch_makes_the_new_text_of_the_old_one(tmp_path: Path, before: str, after: str) -> None:
    if before == after or not before or not after:
        return  # `patch` would create or remove the file, by rules of its own.
    (tmp_path / "n").write_bytes(before.encode())
    command = ["patch", "-s", "-p1", "--posix", "n"]
    done = subprocess.run(command, input=unified(before, after, "n").encode(), cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "n").read_bytes() == after.encode()


def test_a_long_diff_is_cut_and_says_so() -> None:
    diff = unified("", "a line\n" * 10_000, "n")
    assert len(diff) < MAX_DIFF_CHARACTERS + 100
    assert diff.endswith("\n(… and more)\n")
    assert unified("x" * 600_000, "y" * 600_000, "n") == "(too much to be shown: 600,000 characters become 600,000)"
    assert unified("", "\n" * 30_000, "n") == "(too much to be shown: 0 characters become 30,000)"


def test_texts_that_have_nothing_in_common_are_compared_quickly() -> None:
    before = "".join(f"{number % 50}\n" for number in range(9_000))
    after = "".join(f"{number % 49}\n" for number in range(9_000))
    nothing = "\n" * 9_000
    started = time.process_time()
    for old, new in ((before, after), (nothing, nothing), ("", nothing)):
        unified(f"x\n{old}y", f"z\n{new}w", "n")
    assert time.process_time() - started < 0.5
