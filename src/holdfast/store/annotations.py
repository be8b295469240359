"""Rules for an owner's annotations of a session: how metadata is merged, and when it is too large."""

from collections.abc import Mapping

from holdfast.store.store import Refused


def merged(kept: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The metadata after `changes`: a value sets its entry, None removes it, and all other entries stay."""
    whole = {**kept, **changes}
    return {name: value for name, value in whole.items() if value is not None}


def too_large(metadata: Mapping[str, str], *, max_entries: int, max_characters: int) -> Refused | None:
    characters = sum(len(name) + len(value) for name, value in metadata.items())
    if len(metadata) > max_entries:
        return Refused(
            "metadata_too_large", f"Metadata has at most {max_entries:,} entries; this would have {len(metadata):,}."
        )
    if characters > max_characters:
        return Refused(
            "metadata_too_large",
            f"Metadata has at most {max_characters:,} characters; this would have {characters:,}.",
        )
    return None
