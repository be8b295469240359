"""Every verb that a surface may call, one file per noun. Each returns when its effect is durable, and needs no lease.

A surface never talks to a worker: it puts items into the inbox, and the session's holder takes them from there.
All verbs share `session_access.py`, whose `_put` writes an item and announces it. Two files have no verbs: `new_log.py`
builds the log of a fork or of an import, and `session_document.py` cuts the document of an import. The verbs of tasks
(`tasks.py`) need the task desk as well, and are an object of their own.
"""

from holdfast.protocol.message import DeliveryChoice as DeliveryChoice
from holdfast.protocol.request import Answered as Answered
from holdfast.server.operations.activity import ActivityVerbs
from holdfast.server.operations.attachments import AttachmentVerbs
from holdfast.server.operations.budgets import BudgetVerbs
from holdfast.server.operations.compactions import CompactionVerbs
from holdfast.server.operations.contexts import ContextVerbs
from holdfast.server.operations.forks import ForkVerbs
from holdfast.server.operations.grants import GrantVerbs
from holdfast.server.operations.messages import MessageVerbs
from holdfast.server.operations.permissions import PermissionVerbs
from holdfast.server.operations.pins import PinVerbs
from holdfast.server.operations.queue import QueueVerbs
from holdfast.server.operations.requests import RequestVerbs
from holdfast.server.operations.rewinds import RewindVerbs
from holdfast.server.operations.sessions import SessionOptions as SessionOptions
from holdfast.server.operations.sessions import SessionVerbs
from holdfast.server.operations.settings import CHANGE_TRIES as CHANGE_TRIES
from holdfast.server.operations.settings import Change as Change
from holdfast.server.operations.settings import SettingsVerbs
from holdfast.server.operations.stops import StopVerbs
from holdfast.server.operations.transfers import TransferVerbs


class Operations(
    ForkVerbs,
    TransferVerbs,
    SessionVerbs,
    ActivityVerbs,
    MessageVerbs,
    QueueVerbs,
    StopVerbs,
    RewindVerbs,
    CompactionVerbs,
    PinVerbs,
    ContextVerbs,
    PermissionVerbs,
    GrantVerbs,
    SettingsVerbs,
    RequestVerbs,
    AttachmentVerbs,
    BudgetVerbs,
):
    """All verbs over one store, as one object: `send` is in `messages.py`, `stop` in `stops.py`, and so on."""
