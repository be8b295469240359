"""The answer to a question of the model. The first answer counts."""

from typing import Any

from holdfast.events.ids import RequestId
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.server.operations.requests import LEAVES_OPEN


@method("session.ui.handlePendingUserInput")
async def handle_user_input(call: RpcCall) -> Any:
    attached = call.attached()
    response = call.param("response", dict[str, Any], {})
    if not isinstance(response.get("answer"), str):
        raise Invalid("response_invalid", "Set `response` to an object whose `answer` is a string.")
    try:
        await call.service.operations.answer_question(
            attached.key,
            RequestId(call.text("requestId")),
            response["answer"],
            was_freeform=bool(response.get("wasFreeform", True)),
        )
    except (Conflict, NotFound) as error:
        if error.code in LEAVES_OPEN:
            raise
        return {"success": False}
    return {"success": True}
