"""Command lines that are parsed with certainty, and those that are not. tests/security compares it with real bash."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.shell_grammar import (
    MAX_CHARACTERS,
    OTHER_BUILTINS,
    PLAIN_BUILTINS,
    RESERVED_WORDS,
    NotCertain,
    Redirection,
    SimpleCommand,
    parse,
)


def words(command: str) -> list[list[str]]:
    return [list(found.words) for found in parse(command).commands]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ls", [["ls"]]),
        ("  ls \t -la  docs ", [["ls", "-la", "docs"]]),
        ("ls \\\n  -la", [["ls", "-la"]]),
        ("\n\nls\n\npwd\n", [["ls"], ["pwd"]]),
        ("ls;pwd;", [["ls"], ["pwd"]]),
        ("ls ;\n pwd", [["ls"], ["pwd"]]),
        ("a&&b||c|d", [["a"], ["b"], ["c"], ["d"]]),
        ("a &&\n\n b |\n c", [["a"], ["b"], ["c"]]),
        ("echo 'a b' \"c d\" e\\ f", [["echo", "a b", "c d", "e f"]]),
        ("echo '' \"\"", [["echo", "", ""]]),
        ("echo 'it'\\''s'", [["echo", "it's"]]),
        ("l's' \"-l\"a", [["ls", "-la"]]),
        ("echo '$HOME `id` $(id) * ! ~ # \\'", [["echo", "$HOME `id` $(id) * ! ~ # \\"]]),
        ('echo "a \\"b\\" \\$c \\`d\\` \\\\ \\e * ~ # ; | & \'"', [["echo", 'a "b" $c `d` \\ \\e * ~ # ; | & \'']]),
        (
            "echo \\$HOME \\`id\\` \\; \\| \\& \\* \\# \\~ \\! \\\\ \\a",
            [["echo", *["$HOME", "`id`", ";", "|", "&", "*", "#", "~", "!", "\\", "a"]]],
        ),
        ("echo 'a\nb' \"c\nd\"", [["echo", "a\nb", "c\nd"]]),
        (
            "git diff HEAD~1 HEAD^^ a#b x=1 a:b,c 50% +x @",
            [["git", *["diff", "HEAD~1", "HEAD^^", "a#b", "x=1", "a:b,c", "50%", "+x", "@"]]],
        ),
        ("git commit -m 'größer' \"日本\"", [["git", "commit", "-m", "größer", "日本"]]),
        ("./run.sh --file=/tmp/x", [["./run.sh", "--file=/tmp/x"]]),
        ("test -f a && echo b", [["test", "-f", "a"], ["echo", "b"]]),
        ("ls 2", [["ls", "2"]]),
    ],
)
def test_words_are_those_that_a_program_is_started_with(command: str, expected: list[list[str]]) -> None:
    assert words(command) == expected


def test_operators_are_kept_in_order_and_a_line_end_is_a_semicolon() -> None:
    assert parse("a && b || c | d ; e\nf;\ng").operators == ("&&", "||", "|", ";", ";", ";")
    assert parse("a;\n").operators == ()


def test_plain_redirections_belong_to_their_command() -> None:
    script = parse("a <in >out 2>>'e r' x | b 2>&1 >&- 3<&0")
    assert script.commands == (
        SimpleCommand(("a", "x"), (Redirection("<", "in"), Redirection(">", "out"), Redirection(">>", "e r"))),
        SimpleCommand(("b",), (Redirection(">&", "1"), Redirection(">&", "-"), Redirection("<&", "0"))),
    )
    assert parse("a '2'>b c2>d").commands[0].words == ("a", "2", "c2")


@pytest.mark.parametrize(
    "command",
    [
        *("", " ", "\n", ";", ";ls", "ls;;ls", "ls;;", "&&ls", "ls&&", "ls ||", "|ls", "ls | | ls", "ls |", "ls\n;ls"),
        *("ls &", "ls & pwd", "ls |& pwd", "ls &&& pwd", "& ls", "ls ;& pwd"),
        *("echo $x", "echo $", "echo ${x}", "echo $(id)", "echo $((1))", "echo $[1]", "echo $'x'", 'echo $"x"'),
        *('echo "$x"', 'echo "$"', 'echo "a$(id)"', "echo `id`", 'echo "`id`"', "$x", "a$", "a`"),
        *("echo *", "echo ?", "echo [a]", "echo a]", "echo {a,b}", "echo {}", "echo }", "echo ~", "echo ~root"),
        *("echo a:~", "echo a=~", "echo a=~/x", "echo /~", "echo !", "echo !x", "echo a!b", 'echo "a!"', "! ls"),
        *(
            "(ls)",
            "ls ()",
            "ls)",
            "{ ls; }",
            "f() { ls; }",
            "a=(1)",
            "a+=b ls",
            "x=1",
            "x=1 ls",
            "a[0]=1 ls",
            "'x=1' ls",
        ),
        *("echo #x", "#x", "ls #", "ls;#x", "echo '' #x", "ls\n#x\nls"),
        *("cat <<X\nX", "cat <<<x", "cat <<-X\nX", "cat <(ls)", "tee >(ls)", "ls <>x", "ls >|x", "ls &>x", "ls &>>x"),
        *("ls >&x", "ls >& 1", "ls 2>&1x", "ls >&1-", "ls 2>&1&&ls", "ls >", "ls > ; ls", "> x", "2> x", "ls >\nx"),
        *("ls > $x", "ls > *", "ls > ~", "ls 10>x", "ls 12345678901>x", "ls > 2> x", "{x}>y ls", "ls >&10"),
        *("echo 'a", 'echo "a', "echo \\", "echo a\\", 'echo "a\\"', "echo 'a'b'", "e\\\ncho", "ls\\\n", "ls\n\\\nls"),
        *('echo "a\\\nb"', "echo a&\\\n&b", "ls |\\\n| ls"),
        *("ls\r", "ls \r\n pwd", "ls\0", "ls \x01", "ls '\x7f'", "ls '\x1b[A'", "ls\x0b-l", "ls\x0c", "ls '\ud800'"),
        *("ls\u00a0-l", "ls\u2003x", "ls\u3000x", "ls é", "é", "ls \\é", 'ls "é\\" x"', "ls\u2028pwd", "ls\u0085pwd"),
        *(
            "%1",
            "%ls",
            "-",
            "-x ls",
            "--help",
            "+x",
            "ls; -x",
            "'-x'",
            "''",
            '""',
            "'' ls",
            "\\",
            "test -v x",
            "test ! -v x",
            "test -R x",
            "'test' '-v' x",
        ),
        "x" * (MAX_CHARACTERS + 1),
    ],
)
def test_anything_else_is_not_certain(command: str) -> None:
    with pytest.raises(NotCertain):
        parse(command)


@pytest.mark.parametrize("name", sorted(RESERVED_WORDS | OTHER_BUILTINS))
def test_a_name_that_is_no_plain_program_is_not_certain_in_any_spelling(name: str) -> None:
    quoted = "'" + name + "'"
    for command in (
        f"{name} x",
        name,
        f"{quoted} x",
        f"ls; {quoted}",
        f"ls | {quoted} x",
        f"\\{name} x",
        f">x {quoted} x",
    ):
        with pytest.raises(NotCertain):
            parse(command)
    assert words(f"echo {quoted}") == [["echo", name]]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_every_builtin_and_keyword_of_bash_is_known() -> None:
    printed = subprocess.run(
        ["bash", "-c", "compgen -b; compgen -k"], capture_output=True, text=True, check=True
    ).stdout
    assert set(printed.split()) - PLAIN_BUILTINS - OTHER_BUILTINS - RESERVED_WORDS == set()


@given(given_words=some.lists(some.text(alphabet="ab1.~#=:'\"\\$` *;|&\n\té日", max_size=6), min_size=1, max_size=5))
def test_a_command_s_own_text_is_taken_apart_into_the_same_words(given_words: list[str]) -> None:
    command = SimpleCommand(("ls", *given_words))
    assert parse(command.text).commands == (command,)
    assert parse(command.text).commands[0].text == command.text


@given(text=some.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        script = parse(text)
    except NotCertain:
        return
    assert len(script.operators) == len(script.commands) - 1
    assert all(command.words[0] for command in script.commands)


def test_two_different_commands_never_have_the_same_text() -> None:
    texts = [parse(command).commands[0].text for command in ("a 'b c'", "a b c", "a 'b' 'c '", "a b\\ c\\ ", "'a b' c")]
    assert texts == ["a 'b c'", "a b c", "a b 'c '", "a 'b c '", "'a b' c"]
