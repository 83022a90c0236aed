"""Write the tables of docs/reports.md from the results of `headcount study reports`.

python -m tools.reports_page runs/reports            # print the tables
python -m tools.reports_page runs/reports --write    # write them into docs/reports.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headcount.exercise.comparison import PublishedComparison
from headcount.exercise.comparison_tables import describe
from headcount.files import write_atomically
from headcount.rendering.markdown import markdown_text

PAGE = Path(__file__).parents[1] / "docs" / "reports.md"
BEGIN, END = "<!-- study:begin -->\n", "<!-- study:end -->\n"
RESULT = Path("results") / "published-exercise.json"


def tables(study: Path) -> str:
    """Return the sentences and tables of a finished study as Markdown."""
    file = study / RESULT
    result = PublishedComparison.from_json(file.read_text(encoding="utf-8"), file)
    made = f"Made by `headcount study reports` from {result.n_runs} runs.\n\n"
    return made + markdown_text(describe(result).blocks).strip() + "\n"


def with_tables(page: str, text: str) -> str:
    """Return a page with other text between its markers."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page needs the markers {BEGIN.strip()} and {END.strip()} once each")
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2]


def main(arguments: list[str]) -> int:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("study", type=Path, help="the study's folder, such as runs/reports")
    parser.add_argument("--write", action="store_true", help="write docs/reports.md")
    args = parser.parse_args(arguments)
    text = tables(args.study)
    if args.write:
        write_atomically(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), text).encode())
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
