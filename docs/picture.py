"""Plays the story for real and draws what it printed: python docs/picture.py writes docs/story.svg."""

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("story.svg")
STYLES = {"✓": "bold green", "kill -9": "bold red", "(interrupted)": "yellow"}


def main() -> None:
    told = subprocess.run([sys.executable, "-m", "holdfast", "story"], capture_output=True, text=True, check=True)
    console = Console(record=True, width=100, file=sys.stdout, force_terminal=True)
    console.print(Text("$ make story", style="bold"))
    for line in told.stdout.splitlines():
        text = Text(line)
        text.highlight_regex(r"^ *[\d.]+ s", "dim")
        text.highlight_regex(r"(?<= s  )\d\. .*", "bold cyan")
        for word, style in STYLES.items():
            text.highlight_words([word], style)
        console.print(text)
    drawn = console.export_svg(title="holdfast")
    # The picture names no host: the fonts are those of whoever looks.
    drawn = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", drawn, flags=re.DOTALL)
    PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
