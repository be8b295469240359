"""Detection of output that ends in a prompt: the command waits for input."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.tasks.prompts import PROMPT_TAIL_BYTES, looks_like_a_prompt

QUESTIONS = [
    "user@host:~$ ",
    "$",
    ">>> ",
    "mysql> ",
    "root@host:/# ",
    "Password:",
    "password: ",
    "[sudo] password for ann: ",
    "Enter passphrase for key '/home/ann/.ssh/id': ",
    "Proceed ([y]/n)? [y/n]",
    "Do you want to continue? [Y/n] ",
    "Overwrite? [y/N]",
    "Overwrite? (y/n)",
    "Is this ok [yes/no]: ",
    "Really? (yes/no)",
    "Really? (yes/no)?",
    "Really? (Yes/No/Cancel)",
    "Are you sure you want to continue connecting (yes/no/[fingerprint])? ",
    "Press any key to continue",
    "Press ENTER to continue...",
    "Press any key to continue . . . ",
    "Press RETURN to continue:",
    "Are you sure?",
    "Are you sure you want to delete all 41 files? ",
    "Continue?",
    "Do you want to proceed? ",
    "Continue? (default no)",
    "Enter your name: ",
    "enter a value:",
    "Please enter the code that was sent to you:\n",
    "two\nlines\nPassword: ",
    "\x1b[1mPassword:\x1b[0m ",
    "\x1b[32m?\x1b[39m Overwrite? \x1b[2m(y/N)\x1b[22m ",
    "Fortsetzen? [j/n] (y/n) ",
    "naïve ünïcode ➜ Continue? ",
    "Password: \n\n",
]

NOT_QUESTIONS = [
    "",
    "\n\n",
    "Compiling holdfast v0.1",
    "Listening on port 8080",
    "done.",
    "100%",
    "Password: \nThank you.",
    "Continue? y\nInstalling …",
    "Are you sure? yes\nok",
    "[y/n] was answered with y",
    "Press any key to continue\nGoing on",
    "passwords were changed",
    "entered: 4",
    "enter",
    "price: 5$ or so",
    "a > b is true",
    "# a comment that goes on",
    "proceeding",
    "to be continued",
    "0 errors, 2 warnings",
    "http://localhost:3000/",
]


@pytest.mark.parametrize("tail", QUESTIONS)
def test_a_question_at_the_end_of_the_output_is_recognised(tail: str) -> None:
    assert looks_like_a_prompt(tail.encode())


@pytest.mark.parametrize("tail", NOT_QUESTIONS)
def test_anything_else_is_not(tail: str) -> None:
    assert not looks_like_a_prompt(tail.encode())


@pytest.mark.parametrize("tail", QUESTIONS)
def test_a_question_that_something_was_written_after_is_answered(tail: str) -> None:
    assert not looks_like_a_prompt(f"{tail}\nGoing on, then.\n".encode())


@pytest.mark.parametrize("tail", ["Password:", "Continue?", "[y/n]"])
def test_however_long_the_output_only_its_end_counts(tail: str) -> None:
    long = b"x" * 1_000_000
    assert looks_like_a_prompt(long + b"\n" + tail.encode())
    assert not looks_like_a_prompt(tail.encode() + b"\n" + long)
    assert len(long) > PROMPT_TAIL_BYTES


@settings(max_examples=300, deadline=None)
@given(tail=st.binary(max_size=600))
def test_prompts_are_looked_for_in_any_bytes_without_an_error(tail: bytes) -> None:
    assert looks_like_a_prompt(tail) in (True, False)


@settings(max_examples=50, deadline=None)
@given(before=st.binary(max_size=600), question=st.sampled_from(QUESTIONS))
def test_question_is_recognised_below_any_other_lines(before: bytes, question: str) -> None:
    assert looks_like_a_prompt(before + b"\n" + question.encode())
