"""The methods that a client may call. Importing this package registers them."""

from holdfast.server.copilot.methods import absent as absent
from holdfast.server.copilot.methods import account as account
from holdfast.server.copilot.methods import answers as answers
from holdfast.server.copilot.methods import event_log as event_log
from holdfast.server.copilot.methods import history as history
from holdfast.server.copilot.methods import messages as messages
from holdfast.server.copilot.methods import metadata as metadata
from holdfast.server.copilot.methods import permissions as permissions
from holdfast.server.copilot.methods import plan as plan
from holdfast.server.copilot.methods import queue as queue
from holdfast.server.copilot.methods import session_list as session_list
from holdfast.server.copilot.methods import sessions as sessions
from holdfast.server.copilot.methods import settings as settings
from holdfast.server.copilot.methods import shell as shell
from holdfast.server.copilot.methods import tasks as tasks
from holdfast.server.copilot.methods import tools as tools
from holdfast.server.copilot.methods import workspaces as workspaces
