"""Rules and their grants: reads inside the folder are allowed, writes and commands ask, access outside is denied."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.events.request import PermissionAsk, PermissionKind
from holdfast.session.permissions import BadRule, Verdict, check_rule, judge, session_rule


def verdict(
    kind: PermissionKind,
    subject: str,
    *allow: str,
    inside: bool = True,
    unattended: bool = False,
    asks_always: bool = False,
    tool: str = "some_tool",
) -> Verdict:
    ask = PermissionAsk(kind=kind, subject=subject, inside=inside)
    return judge(ask, tool_name=tool, allow=list(allow), unattended=unattended, asks_always=asks_always)


@pytest.mark.parametrize(
    ("kind", "inside", "attended", "unattended"),
    [
        ("read", True, "allow", "allow"),
        ("read", False, "deny", "deny"),
        ("write", True, "ask", "deny"),
        ("write", False, "deny", "deny"),
        ("shell", True, "ask", "deny"),
        ("custom-tool", True, "ask", "deny"),
    ],
)
def test_decisions_without_rules(kind: PermissionKind, inside: bool, attended: Verdict, unattended: Verdict) -> None:
    assert verdict(kind, "x", inside=inside) == attended
    assert verdict(kind, "x", inside=inside, unattended=True) == unattended


@pytest.mark.parametrize("kind", ["read", "write", "shell", "custom-tool"])
@pytest.mark.parametrize("inside", [True, False])
def test_session_that_asks_always_asks_for_everything_and_denies_unattended_requests(
    kind: PermissionKind, inside: bool
) -> None:
    assert verdict(kind, "x", inside=inside, asks_always=True) == "ask"
    expected = "allow" if kind == "read" and inside else "deny"
    assert verdict(kind, "x", inside=inside, asks_always=True, unattended=True) == expected
    if inside:
        assert verdict(kind, "x", kind, asks_always=True) == "allow"


@pytest.mark.parametrize(
    ("kind", "subject", "rule", "expected"),
    [
        ("write", "docs/a.md", "write", "allow"),
        ("write", "docs/a.md", "write(docs/*)", "allow"),
        ("write", "src/a.py", "write(docs/*)", "ask"),
        ("write", "docs", "write(docs/*)", "ask"),
        ("write", "DOCS/a.md", "write(docs/*)", "ask"),
        ("write", "a", "read", "ask"),
        ("write", "a", "shell(*)", "ask"),
        ("write", "a", "*", "allow"),
        ("write", "a", "*(a)", "allow"),
        ("write", "b", "*(a)", "ask"),
        ("write", "a(1).txt", "write(a(1).txt)", "allow"),
        ("custom-tool", "deploy", "some_tool", "allow"),
        ("custom-tool", "deploy", "other_tool", "ask"),
        ("shell", "git status", "shell(git *)", "allow"),
        ("shell", "git", "shell(git *)", "ask"),
        ("shell", "gitx status", "shell(git *)", "ask"),
        ("shell", "rm -rf /", "shell", "allow"),
    ],
)
def test_a_rule_grants_what_it_matches(kind: PermissionKind, subject: str, rule: str, expected: Verdict) -> None:
    assert verdict(kind, subject, rule) == expected
    assert verdict(kind, subject, "no such rule)", rule) == expected


@pytest.mark.parametrize("rule", ["read", "write", "shell", "shell(*)", "write(*)", "read(*)"])
def test_a_tool_that_is_called_like_a_kind_is_not_covered_by_rules_for_that_kind(rule: str) -> None:
    name = rule.partition("(")[0]
    assert verdict("custom-tool", name, rule, tool=name) == "ask"
    assert verdict("custom-tool", name, f"custom-tool({name})", tool=name) == "allow"
    assert verdict("shell", "rm -rf x", "write(*)", "read(*)", tool="write") == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf x",
        "git status && rm -rf x",
        "git status | sh",
        "git log > /etc/passwd",
        "git log < x",
        "git log `rm x`",
        "git log $(rm x)",
        "git status\nrm x",
        "git status & rm x",
    ],
)
def test_a_rule_for_one_command_does_not_cover_a_second_command_after_it(command: str) -> None:
    assert verdict("shell", command, "shell(git *)") == "ask"
    assert verdict("shell", command, "shell(*)") == "allow"
    assert verdict("shell", command, "shell") == "allow"


def test_a_rule_may_itself_contain_a_chain_of_commands() -> None:
    assert verdict("shell", "make | tee log", "shell(make | tee *)") == "allow"
    assert verdict("shell", "make|tee 'a b'", "shell(make | tee *)") == "allow"
    assert verdict("shell", "make | tee log; rm x", "shell(make | tee *)") == "ask"
    assert verdict("shell", "make && tee log", "shell(make | tee *)") == "ask"
    assert verdict("shell", "make | tee log | tee x", "shell(make | tee *)") == "ask"
    assert verdict("shell", "make '| tee log'", "shell(make* | tee *)") == "ask", "that is one command"


def test_a_chain_is_covered_if_each_of_its_commands_is() -> None:
    rules = ("shell(git *)", "shell(ls *)", "shell(ls)", "shell(make)")
    assert verdict("shell", "git status && ls -la | ls docs; git log\nls x", *rules) == "allow"
    assert verdict("shell", "git status && ls", *rules) == "allow", "it may be run with any arguments, and without"
    assert verdict("shell", "make", *rules) == "allow"
    assert verdict("shell", "git status && make", *rules) == "ask", "just that text was approved"
    assert verdict("shell", "git status && rm x", *rules) == "ask"
    assert verdict("shell", "git status > x", *rules) == "ask"
    assert verdict("shell", "; ".join(["git log"] * 50), *rules) == "allow"
    assert verdict("shell", "; ".join(["git log"] * 51), *rules) == "ask", "nobody means that much by a rule"


@pytest.mark.parametrize(
    "command",
    [
        "echo ${x:=$'\\x60id\\x3ePWN\\x60'}${x@P}",
        "echo $HOME",
        "echo ~",
        "echo *",
        "echo {a,b}",
        "echo a # b",
        "echo a\r",
        "echo 2>&1",
        "X=1 echo a",
    ],
)
def test_a_pattern_never_covers_what_is_not_certain(command: str) -> None:
    patterns = ("shell(echo *)", "shell(* *)", "shell(*echo*)", "bash(e*)", "*(echo*)", "shell(?*)", "shell([!x]*)")
    assert verdict("shell", command, *patterns, tool="bash") == "ask"
    assert verdict("shell", command, f"shell({command.replace('*', '[*]')})") == "allow", "just this text"


@pytest.mark.parametrize(
    ("command", "rule", "expected"),
    [
        ("git   status", "shell(git s*)", "allow"),
        ("'git' \"status\"", "shell(git s*)", "allow"),
        ("git 'push --dry-run'", "shell(git push *)", "ask"),
        ("git push x\\ --dry-run", "shell(git push * --dry-run)", "ask"),
        ("'git push' x", "shell(git push *)", "ask"),
        ("git commit -m 'a b'", "shell(git commit -m 'a*')", "allow"),
        ('git commit -m "a b"', "shell(git commit -m 'a*')", "allow"),
        ("git  status", "shell(git status)", "ask"),
        ("'git' status", "shell(git status)", "ask"),
    ],
)
def test_a_pattern_matches_the_words_of_a_command_and_not_its_quoting(
    command: str, rule: str, expected: Verdict
) -> None:
    assert verdict("shell", command, rule) == expected


def test_access_outside_the_folder_needs_a_rule_that_names_it_or_everything() -> None:
    assert verdict("write", "/etc/hosts", "write", inside=False) == "deny"
    assert verdict("read", "/etc/hosts", "read", inside=False) == "deny"
    assert verdict("write", "/etc/hosts", "write(docs/*)", inside=False) == "deny"
    assert verdict("write", "/etc/hosts", "write(/etc/*)", inside=False) == "allow"
    assert verdict("write", "/etc/hosts", "*", inside=False) == "allow"
    assert verdict("write", "/etc/hosts", "some_tool", inside=False) == "allow"


def test_a_rule_still_grants_in_an_unattended_turn() -> None:
    assert verdict("write", "a", "write(a)", unattended=True) == "allow"
    assert verdict("write", "b", "write(a)", unattended=True) == "deny"


@pytest.mark.parametrize("rule", ["read", "write(docs/*)", "shell(git *)", "*", "*(x)", "my_tool", "mcp.tool-1(a b)"])
def test_valid_rules_are_parsed(rule: str) -> None:
    assert check_rule(rule) == rule


@pytest.mark.parametrize(
    "rule",
    [
        "",
        " ",
        "write(",
        "write()",
        "write)",
        "(docs)",
        "write docs",
        "1x",
        "**",
        "write(a)b",
        "read\n",
        "-rf",
        "read(\ud800)",
    ],
)
def test_invalid_rules_are_rejected(rule: str) -> None:
    with pytest.raises(BadRule, match="is not a permission rule"):
        check_rule(rule)
    assert verdict("write", "docs", rule) == "ask", "what can't be read grants nothing"


@pytest.mark.parametrize(
    ("kind", "subject", "rule"),
    [
        ("custom-tool", "deploy", "custom-tool(some_tool)"),
        ("write", "a.txt", "write"),
        ("read", "a.txt", "read"),
        ("shell", "ls *", "shell(ls [*])"),
    ],
)
def test_an_approval_for_the_session_grants_these_rules(kind: PermissionKind, subject: str, rule: str) -> None:
    ask = PermissionAsk(kind=kind, subject=subject)
    assert session_rule(ask, "some_tool") == rule
    assert verdict(kind, subject, rule) == "allow"


@settings(max_examples=200, deadline=None)
@given(command=st.text(max_size=30), other=st.text(max_size=30))
def test_an_approval_for_the_session_covers_that_command_only(command: str, other: str) -> None:
    rule = session_rule(PermissionAsk(kind="shell", subject=command), "bash")
    if command:
        assert verdict("shell", command, rule) == "allow"
    if other != command:
        assert verdict("shell", other, rule) == "ask"


@settings(max_examples=200, deadline=None)
@given(rule=st.text(max_size=60), subject=st.text(max_size=30))
def test_no_odd_rule_breaks_a_decision(rule: str, subject: str) -> None:
    assert verdict("write", subject, rule) in ("allow", "ask")


@settings(max_examples=1_000, deadline=None)
@given(pattern=st.text("ab[]*?!", min_size=1, max_size=10), subject=st.text("ab[]*?", max_size=6))
@example(pattern="[?[*]]", subject="[?]")
@example(pattern="[[][*]]", subject="[*]")
def test_a_rule_means_what_its_pattern_means_with_and_without_wildcards(pattern: str, subject: str) -> None:
    assert (verdict("write", subject, f"write({pattern})") == "allow") == fnmatchcase(subject, pattern)


def test_an_exact_rule_for_a_directory_counts_beside_a_pattern_in_that_directory_only() -> None:
    rules = ("shell(ls (in docs) )", "shell(ls *)", "shell(git *)")
    assert verdict("shell", "git log; ls (in docs) ", *rules) == "allow"
    assert verdict("shell", "git log; ls (in src) ", *rules) == "ask"
    assert verdict("shell", "git log; ls", *rules) == "ask"
    assert verdict("shell", "git log; ls", *rules, "shell(ls)") == "allow"
    spaced = ("shell(ls (in docs) )", "shell(ls (in docs)  *)")
    assert verdict("shell", "ls '(in docs) '; ls '(in docs) '", *spaced) == "ask", "that is an argument"


def test_a_hostile_rule_is_evaluated_in_bounded_time() -> None:
    """Patterns of nested stars must not take exponential time."""
    assert verdict("write", "a" * 5_000 + "b", f"write({'*a' * 200}c)") == "ask"
