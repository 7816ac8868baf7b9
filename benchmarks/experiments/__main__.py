"""Performs the papers' experiments and keeps what is small: ``python -m benchmarks.experiments [NAME ...]``.

The same as ``fedjax-sim reproduce``, after which tables, claims and figures (with 128 colours) go to
``benchmarks/experiments/results``; of an experiment that is complete at the paper's size, those of that. Raw results
and finished runs stay in the folder given by ``--out``. The board and its two figures are made of all that is kept;
``--redraw`` makes them, and the heads and claims of tables.md, of the claims.json that are there.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.experiments.figures import forest, heat_map
from fedjax_sim.core.devices import use_cpu_devices
from fedjax_sim.core.files import write_atomically
from fedjax_sim.papers import overview, writing
from fedjax_sim.papers.catalogue import CATALOGUE
from fedjax_sim.papers.reproducing import reproduce_all

RESULTS = Path(__file__).parent / "results"
_MOST = 5_000_000  # bytes of all that is kept
_WIDEST = 1500  # pixels
_COLOURS = 128


def main() -> int:
    """Runs the command; 1 if an experiment ended with an error or too much would be kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments (default: all)")
    parser.add_argument("--out", default="results/reproduce", help="folder of complete results and finished runs")
    parser.add_argument("--size", choices=("cpu", "paper"), default="cpu", help="of what is run")
    parser.add_argument("--seeds", type=int, help="number of seeds (default: each experiment's own)")
    parser.add_argument("--only-keep", action="store_true", help="run nothing; keep what the folder has")
    parser.add_argument("--redraw", action="store_true", help="run and keep nothing; what is kept is written anew")
    options = parser.parse_args()
    names = options.names or list(CATALOGUE)
    if not (options.only_keep or options.redraw):
        use_cpu_devices()
        reproduce_all(names, size=options.size, seeds=options.seeds, out=options.out)
    out = Path(options.out)
    missing = []
    for name in names:
        if options.redraw and writing.read(RESULTS / name) is not None:
            writing.redraw(RESULTS / name)
        elif options.redraw or not any(keep(out / size / name, RESULTS / name) for size in ("paper", "cpu")):
            missing.append(name)
    known = {name: writing.read(RESULTS / name) for name in CATALOGUE}
    kept = [overview.Line(name, report, "") for name, report in known.items() if report is not None]
    write_atomically(RESULTS / "board.md", overview.board(kept).encode())
    for name, figure in (("claims", heat_map(kept)), ("effects", forest(kept))):
        write_atomically(RESULTS / f"{name}.png", _small(figure))
    total = sum(file.stat().st_size for file in RESULTS.rglob("*") if file.is_file())
    print(f"{RESULTS}: {len(kept)} of {len(CATALOGUE)} experiments, {total:,} bytes")
    if missing:
        print(f"not complete in {RESULTS if options.redraw else out}: {', '.join(missing)}", file=sys.stderr)
    return 1 if total > _MOST or missing else 0


def keep(complete: Path, kept: Path) -> bool:
    """Copies tables and claims of an experiment, and its figures with fewer colours; false if it is not complete."""
    if writing.read(complete) is None:
        return False
    shutil.rmtree(kept, ignore_errors=True)
    for name in (writing.TABLES, writing.CLAIMS):
        write_atomically(kept / name, (complete / name).read_bytes())
    for figure in sorted(complete.glob("*.png")):
        write_atomically(kept / figure.name, _fewer_colours(figure))
    return True


def _small(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    buffer.seek(0)
    return _fewer_colours(buffer)


def _fewer_colours(file: Path | io.BytesIO) -> bytes:
    from PIL import Image  # matplotlib needs it too

    image = Image.open(file).convert("RGB")
    if image.width > _WIDEST:
        image = image.resize((_WIDEST, round(image.height * _WIDEST / image.width)), Image.Resampling.LANCZOS)
    # By the median cut, Pillow's default, lines of few pixels get a colour of other lines: green became blue.
    few = image.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    few.save(buffer, "png", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
