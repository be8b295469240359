"""A test kit for programs that use Holdfast: a scripted model and its server, a manual clock, and the conformance suite
for stores. `docs/testing.md` shows each in use.

`StoreConformance` is in `holdfast.testing.store_conformance`, because importing it needs pytest.
"""

from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.models.server import ModelServer
from holdfast.testing.clock import ManualClock

__all__ = [
    "Failure",
    "ManualClock",
    "ModelServer",
    "Reply",
    "Rule",
    "Script",
    "ScriptedCall",
    "ScriptedModel",
]
