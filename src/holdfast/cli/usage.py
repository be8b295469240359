"""`holdfast usage`: what model calls used and cost, as a table, as JSON or as comma-separated values."""

import csv
import datetime
import sys
from collections.abc import Sequence
from typing import Final, get_args

import msgspec
from msgspec import UNSET

from holdfast.cli.errors import Refusal
from holdfast.cli.escapes import visible
from holdfast.cli.runtime import open_runtime
from holdfast.config import Config
from holdfast.events.ids import Owner, SessionId
from holdfast.protocol.budget import UsageGroup, UsageRow, UsageView

GROUPS: Final[tuple[UsageGroup, ...]] = get_args(UsageGroup)

KEYS: Final = ("owner", "session", "model", "day")

FIGURES: Final = tuple(name for name in UsageRow.__struct_fields__ if name not in KEYS)

HEADINGS: Final = ("calls", "unknown", "input", "output", "read", "written", "cost", "charged", "saved")


class UsageChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What to show."""

    by: str
    first: str | None
    last: str | None
    owner: str | None
    session: str | None
    limit: int


async def show_usage(config: Config, choice: UsageChoice, *, as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise Refusal("option_not_usable", "--json and --csv exclude each other.")
    group = _group(choice.by)
    first, last = parsed_date(choice.first), parsed_date(choice.last)
    async with open_runtime(config, work=False) as runtime:
        usage = await runtime.operations.usage_by(
            group,
            first=first,
            last=last,
            owner=None if choice.owner is None else Owner(choice.owner),
            session=None if choice.session is None else SessionId(choice.session),
            limit=choice.limit,
        )
    if as_json:
        print(msgspec.json.encode(usage).decode())
    elif as_csv:
        _print_csv(usage)
    else:
        _print_table(usage)


def parsed_date(given: str | None) -> datetime.date | None:
    if given is None:
        return None
    try:
        return datetime.date.fromisoformat(given)
    except ValueError:
        raise Refusal("date_invalid", f"{given!r} is not a date. Allowed: such as 2026-11-20.") from None


def dollars(microdollars: int | None) -> str:
    if microdollars is None:
        return "?"
    return f"{'-' if microdollars < 0 else ''}${abs(microdollars) / 1_000_000:,.4f}"


def _group(given: str) -> UsageGroup:
    for group in GROUPS:
        if given == group:
            return group
    raise Refusal("group_invalid", f"Usage is not summed up by {given!r}. Allowed: {', '.join(GROUPS)}.")


def _columns(group: UsageGroup) -> tuple[str, ...]:
    return ("owner", "session") if group == "session" else (group,)


def _names(row: UsageRow, columns: Sequence[str]) -> list[str]:
    return ["" if (value := getattr(row, name)) is UNSET else str(value) for name in columns]


def _print_csv(usage: UsageView) -> None:
    """All figures as they are, amounts in microdollars; an unknown one is empty."""
    columns = _columns(usage.group)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow((*columns, *FIGURES))
    for row in usage.rows:
        figures = [getattr(row, name) for name in FIGURES]
        table.writerow((*_names(row, columns), *("" if figure is None else figure for figure in figures)))


def _print_table(usage: UsageView) -> None:
    columns = _columns(usage.group)
    print(f"Model calls from {usage.first} to {usage.last} (UTC).")
    if not usage.rows:
        print("There were none.")
        return
    lines = [[*columns, *HEADINGS]]
    lines += [[*(visible(name) or "-" for name in _names(row, columns)), *_figures(row)] for row in usage.rows]
    lines.append(["all together", *[""] * (len(columns) - 1), *_figures(usage.total)])
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for line in lines:
        names = [text.ljust(width) for text, width in zip(line, widths, strict=True)][: len(columns)]
        figures = [text.rjust(width) for text, width in zip(line, widths, strict=True)][len(columns) :]
        print("  ".join((*names, *figures)).rstrip())
    if usage.more:
        print(f"There are more; these {len(usage.rows)} were charged the most.")


def _figures(row: UsageRow) -> list[str]:
    tokens = (row.input_tokens, row.output_tokens, row.cache_read_tokens, row.cache_write_tokens)
    amounts = (row.cost_microdollars, row.charged_microdollars, row.saved_microdollars)
    return [f"{row.calls:,}", f"{row.unknown_calls:,}", *(f"{figure:,}" for figure in tokens), *map(dollars, amounts)]
