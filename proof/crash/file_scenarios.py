"""The scenarios of the crash campaign with files: uploaded, kept, sent with messages, forgotten, and deleted, alone and
with their session. Every process has the same folder of files, and the last one sweeps it."""

from proof.crash.client import Client
from proof.crash.scenario import COMPLETED, M1, Scenario, rule, says


async def _files(client: Client) -> None:
    await client.upload("sent", "the same bytes")
    await client.upload("deleted", "the same bytes")
    await client.upload("kept", "other bytes")
    await client.keep_file("kept")
    await client.upload("used", "more bytes")
    await client.use_file("used")
    await client.upload("forgotten", "nobody needs these bytes")
    await client.send("m1", "first", files=("sent", "used"))
    await client.delete_file("deleted")
    await client.turns_end(1)
    await client.sweep()


async def _files_of_a_deleted_session(client: Client) -> None:
    await client.upload("sent", "some bytes")
    await client.upload("kept", "other bytes")
    await client.keep_file("kept")
    await client.send("m1", "first", files=("sent", "kept"))
    await client.turn_shows(1)
    await client.delete()
    await client.sweep()


FILE_SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="files",
        stages=(_files,),
        rules=(rule("first", says("All of it is done.")),),
        says=M1,
        ends={"m1": COMPLETED},
        files=("kept", "sent", "used"),
    ),
    Scenario(
        name="files-delete",
        stages=(_files_of_a_deleted_session,),
        rules=(rule("first", says("One two hold-for-ever three.")),),
        says=(),
        ends={},
        is_deleted=True,
        files=("kept",),
    ),
)
