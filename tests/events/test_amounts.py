"""Amounts of money are taken out of events for readers who do not see them, and nothing else is."""

import msgspec

from holdfast.events import codec
from holdfast.events.amounts import without_amounts
from holdfast.events.compaction import CompactionEnded
from holdfast.events.event import PROGRESS, RECORDS, Unknown
from holdfast.events.ids import CompactionId, MessageId
from holdfast.events.message import Sealed, Usage


def test_usage_and_compactions_lose_what_they_cost_and_keep_the_rest() -> None:
    usage = Usage(message_id=MessageId("m"), model="m", input_tokens=5, cost_microdollars=7)
    assert without_amounts(usage) == Usage(message_id=MessageId("m"), model="m", input_tokens=5)
    ended = CompactionEnded(
        compaction_id=CompactionId("c"), trigger="manual", success=True, cost_microdollars=7, summary="s"
    )
    shown = without_amounts(ended)
    assert shown == msgspec.structs.replace(ended, cost_microdollars=None)
    sealed = Sealed(message_id=MessageId("m"), next_message_id=MessageId("n"), cause="crash")
    assert without_amounts(sealed) is sealed


def test_no_event_says_what_it_cost_in_another_way() -> None:
    """A field for an amount is named for its unit, which `without_amounts` goes by."""
    fields = {name for kind in (*RECORDS, *PROGRESS) for name in kind.__struct_fields__}
    assert {name for name in fields if "cost" in name or "dollar" in name} == {"cost_microdollars"}


def test_an_event_of_a_newer_release_loses_its_amounts_too() -> None:
    data = b'{"type":"x.y","costMicrodollars":7,"parts":[{"saved_microdollars":1,"n":2}],"text":"costMicrodollars"}'
    shown = without_amounts(Unknown(original_type="x.y", original_version=9, data=msgspec.Raw(data)))
    name, version, kept = codec.encode(shown)
    assert (name, version) == ("x.y", 9)
    assert msgspec.json.decode(kept) == {"type": "x.y", "parts": [{"n": 2}], "text": "costMicrodollars"}
