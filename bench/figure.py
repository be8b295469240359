"""Figures as people read them: three digits that count, and never an exponent."""


def figure(value: float, *, like: float | None = None) -> str:
    """The value with as many decimals as its size asks for, or as many as the figure `like` has: that of a spread."""
    return f"{value:,.{_decimals(value if like is None else like)}f}"


def _decimals(value: float) -> int:
    if value == 0 or abs(value) >= 100:
        return 0
    return 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
