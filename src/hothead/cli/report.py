"""``hothead report``: everything that was measured, in one HTML file that needs nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from hothead.cli import common
from hothead.cli.common import JsonOption, print_json
from hothead.cli.engine_options import option
from hothead.report.html import write_report


def report(
    files: Annotated[list[Path], typer.Argument(help="Result files, or folders that hold some.")],
    output: Annotated[Path, option("The page.", "--output", "-o", metavar="FILE")] = Path("report.html"),
    plots: Annotated[Path | None, option("Also write each plot there, .png and .svg.", metavar="FOLDER")] = None,
    as_json: JsonOption = False,
) -> None:
    """Report on result files in one HTML file: the choice, acceptance, times, speed, provenance."""
    common.check_output(output)
    evidence = write_report(files, output, plots)
    if as_json:
        read = [{"name": file.name, "kind": file.kind, "sha256": file.sha256} for file in evidence.files]
        print_json({"output": output, "plots": plots, "files": read})
        return
    kinds = ", ".join(f"{file.name} ({file.kind})" for file in evidence.files)
    common.stdout.print(f"{output}: {kinds}", soft_wrap=True, markup=False)
