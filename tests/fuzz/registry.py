"""The fuzzers by name: each is a Hypothesis test without fixtures, which the suite runs for a moment where it stands
and `make fuzz` runs for as long as it is told.

To add one, write the test beside those of its parser and add a line here.
"""

from collections.abc import Callable
from typing import Any, Final

from tests.client.test_frames import test_any_bytes_give_the_same_frames_however_they_come
from tests.models.test_messages_stream import test_no_stream_however_broken_raises_or_ends_twice
from tests.models.test_responses_stream import test_no_stream_however_malformed_raises
from tests.security.page.test_markdown import test_no_markdown_however_hostile_becomes_more_than_text
from tests.security.test_parsers import (
    test_a_document_becomes_a_log_that_can_be_folded_or_is_refused,
    test_any_other_cursor_is_refused,
    test_frames_come_whole_however_they_are_cut_and_junk_after_them_is_refused,
    test_json_is_refused_just_when_it_is_too_deep_or_has_too_much_in_it,
    test_the_body_of_a_frame_is_json_or_refused,
    test_tokens_are_found_in_json_and_every_other_search_ends,
)
from tests.security.test_shell_rules import test_bash_starts_just_what_was_taken_apart
from tests.security.test_tokens import (
    test_any_key_set_is_refused_or_has_keys_that_can_verify,
    test_any_token_is_refused_or_says_who_it_is,
)
from tests.session.test_permissions import test_no_odd_rule_breaks_a_decision
from tests.session.test_wildcard import test_patterns_mean_the_same_as_in_fnmatch

Fuzzer = Callable[..., Any]

FUZZERS: Final[dict[str, Fuzzer]] = {
    "shell": test_bash_starts_just_what_was_taken_apart,
    "framing": test_frames_come_whole_however_they_are_cut_and_junk_after_them_is_refused,
    "responses": test_no_stream_however_malformed_raises,
    "frame-bodies": test_the_body_of_a_frame_is_json_or_refused,
    "sse": test_any_bytes_give_the_same_frames_however_they_come,
    "messages": test_no_stream_however_broken_raises_or_ends_twice,
    "import": test_a_document_becomes_a_log_that_can_be_folded_or_is_refused,
    "cursors": test_any_other_cursor_is_refused,
    "json-tokens": test_tokens_are_found_in_json_and_every_other_search_ends,
    "json-bounds": test_json_is_refused_just_when_it_is_too_deep_or_has_too_much_in_it,
    "bearers": test_any_token_is_refused_or_says_who_it_is,
    "key-sets": test_any_key_set_is_refused_or_has_keys_that_can_verify,
    "markdown": test_no_markdown_however_hostile_becomes_more_than_text,
    "rules": test_no_odd_rule_breaks_a_decision,
    "wildcards": test_patterns_mean_the_same_as_in_fnmatch,
}
