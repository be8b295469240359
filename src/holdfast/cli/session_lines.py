"""Sessions and their usage, in a line each. Pure."""

from collections.abc import Sequence
from datetime import datetime

from holdfast.cli.home import CallUsage
from holdfast.cli.request_lines import short
from holdfast.cli.transcript import one_line
from holdfast.protocol.session import SessionView


def session_line(session: SessionView, *, width: int = 100) -> str:
    """The short id, the time of the last change, the status with the open requests and queued messages, and the
    title."""
    counts = [f"{session.pending_requests} to answer"] if session.pending_requests else []
    counts += [f"{session.waiting_messages} in queue"] if session.waiting_messages else []
    state = session.status + (f" ({', '.join(counts)})" if counts else "")
    start = f"{short(session.id):8}  {when(session.updated_at)}  {state:22}  "
    return start + one_line(session.title or "(no title)", max(width - len(start), 20))


def when(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).strftime("%Y-%m-%d %H:%M")


def cost(entries: Sequence[CallUsage]) -> str:
    """The usage of model calls. A figure that a provider did not report is called unknown, never counted as zero."""
    if not entries:
        return "No model call yet."
    parts = [f"{len(entries)} model call{'s' if len(entries) > 1 else ''}"]
    parts.append(_sum("input tokens", [entry.input_tokens for entry in entries]))
    if share := cache_share(entries):
        parts[-1] += f" ({share} from the cache)"
    parts.append(_sum("output tokens", [entry.output_tokens for entry in entries]))
    known = [entry.cost_microdollars for entry in entries if entry.cost_microdollars is not None]
    unknown = len(entries) - len(known)
    if known:
        parts.append(f"${sum(known) / 1_000_000:.4f}" + (f" and {unknown} calls of unknown cost" if unknown else ""))
    else:
        parts.append("cost unknown")
    return ", ".join(parts) + "."


def cache_share(entries: Sequence[CallUsage]) -> str:
    """The share of the input that providers read from their caches; empty if none reported any."""
    read = sum(entry.cache_read_tokens or 0 for entry in entries)
    total = sum(entry.input_tokens or 0 for entry in entries)
    return f"{read * 100 // total} %" if read and total else ""


def _sum(what: str, figures: Sequence[int | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return f"{what} unknown"
    more = " and more (some calls did not report any)" if len(known) < len(figures) else ""
    return f"{sum(known):,} {what}{more}"
