"""Figures as people read them."""


def figure(value: float) -> str:
    """Three digits that count, no exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if 0 < abs(value) < 0.01 else f"{value:.3g}"
