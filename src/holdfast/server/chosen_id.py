"""Ids that clients choose, as the types of request bodies declare them."""

from typing import Annotated

from msgspec import Meta

from holdfast.events.ids import CHOSEN_ID

ChosenId = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 64, "pattern": f"^{CHOSEN_ID}$"})]
"""An id that the client chose. The schema states the rule; the operation that takes the id refuses a wrong one with a
sentence."""
