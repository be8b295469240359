"""Hints put together, so that a tick costs one message: whoever gets the whole reads what the parts would have told.

Only what follows on is joined. Hints that don't are kept apart and in their order, and the reader judges them as ever.
"""

from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Lost


def joined(first: Hint, then: Hint) -> Hint | None:
    """One hint that tells what both tell, or None where that takes two."""
    match first, then:
        case Lost(), _:
            # Whoever hears it reads from the store, and finds there whatever was committed before it was sent.
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
    """Both as one piece of their block."""
    if _place(first) != _place(then) or then.offset != end_of(first):
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


def _place(delta: Delta) -> tuple[str, int, str, str, str]:
    return delta.message_id, delta.block, delta.kind, delta.tool_call_id, delta.name


def end_of(delta: Delta) -> int:
    return delta.offset + len(delta.text.encode())


def _changed(first: Changed, then: Changed) -> Changed | None:
    if (first.promoted, first.queue) != (then.promoted, then.queue):
        return None
    tails = [tail for tail in (first.tail, then.tail) if tail is not None]
    return Changed(max(tails, default=None), promoted=first.promoted, queue=first.queue)
