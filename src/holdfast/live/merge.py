"""Merges consecutive hints, so that a tick costs one message: the merged hint tells a reader what its parts would.

Only hints that follow on each other are merged. The others stay separate and in order, and the reader checks each
against its cursor as usual.
"""

from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Lost


def merged(first: Hint, then: Hint) -> Hint | None:
    """One hint that tells what both tell, or None if they can't be merged."""
    match first, then:
        case Lost(), _:
            # Its receiver reads the store, which has everything that was committed before the message was sent.
            return first
        case _, Lost():
            return then
        case Grown(), Grown():
            return _grown(first, then)
        case Advanced(events=events), Advanced(events=more):
            return Advanced(events + more) if more[0].position == events[-1].position + 1 else None
        case Changed(), Changed():
            return _changed(first, then)
        case _:
            return None


def _grown(first: Grown, then: Grown) -> Grown | None:
    last = first.deltas[-1]
    follows_on = then.head == first.head and then.follows == (last.block, end_of(last))
    if not follows_on or then.deltas[0].message_id != last.message_id:
        return None
    longer = _longer(last, then.deltas[0])
    deltas = (*first.deltas[:-1], longer, *then.deltas[1:]) if longer else (*first.deltas, *then.deltas)
    return Grown(first.head, first.follows, deltas)


def _longer(first: Delta, then: Delta) -> Delta | None:
    """Both deltas as one, if the second continues the first in the same block."""
    if _block_of(first) != _block_of(then) or then.offset != end_of(first):
        return None
    return Delta(
        message_id=first.message_id,
        block=first.block,
        kind=first.kind,
        offset=first.offset,
        text=first.text + then.text,
        tool_call_id=first.tool_call_id,
        name=first.name,
    )


def _block_of(delta: Delta) -> tuple[str, int, str, str, str]:
    return delta.message_id, delta.block, delta.kind, delta.tool_call_id, delta.name


def end_of(delta: Delta) -> int:
    return delta.offset + len(delta.text.encode())


def _changed(first: Changed, then: Changed) -> Changed | None:
    if (first.promoted, first.queue) != (then.promoted, then.queue):
        return None
    tails = [tail for tail in (first.tail, then.tail) if tail is not None]
    return Changed(max(tails, default=None), promoted=first.promoted, queue=first.queue)
