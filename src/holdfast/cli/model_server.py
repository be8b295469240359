"""`holdfast model-server`: a scripted model that speaks the protocols of real ones."""

from pathlib import Path

import msgspec

from holdfast.cli.errors import Refusal, report
from holdfast.models.demo import DEMO_SCRIPT
from holdfast.models.scripted import Script
from holdfast.models.server import run


def serve(file: Path | None, host: str, port: int, window: int | None = None) -> int:
    try:
        run(_script(file), host, port, window=window)
    except (OSError, Refusal) as error:
        return report(error)
    return 0


def _script(file: Path | None) -> Script:
    if file is None:
        return DEMO_SCRIPT
    try:
        return Script.from_json(file.read_bytes())
    except msgspec.MsgspecError as error:
        raise Refusal("script_invalid", f"{file} is not a script: {error}.") from error
