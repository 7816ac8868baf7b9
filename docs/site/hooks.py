"""What mkdocs does not do by itself: pages that are not in docs/, links that work in the repository and in the site."""

from __future__ import annotations

import json
import os
import posixpath
import re
import struct
import sys
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]
import programs  # noqa: E402
import reference  # noqa: E402

from notebooks.first_cells import BADGE, BRANCH, settings  # noqa: E402

_OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
_IMAGES = (".png", ".svg")
# A link's text ends with its paragraph or item: an interval, `[0, 1)`, begins none.
_LINK = re.compile(r"(!?)\[((?:(?!\n[-\n])[^\[\]]|\[[^\]]*\])+)\]\(([^()\s]+)\)")
_TEX = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
_NAMED = re.compile(r"(?<!\[)`(fjs(?:\.\w+)+)(\([^`]*\))?`(?!\])")


def notebooks() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def page_of(path: Path) -> str:
    """Where a file of the repository is in the site."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix in _IMAGES and not name.startswith("docs/"):
        return f"figures/{name}"
    return _OUTSIDE.get(name, f"tutorials/{path.stem}.md" if path.suffix == ".ipynb" else name.removeprefix("docs/"))


def on_config(config: Any) -> Any:
    sections = {
        "reference": ["reference/index.md", *({reference.title(page): page} for page in reference.places())],
        "tutorials": ["tutorials/index.md", *(page_of(path) for path in notebooks())],
    }
    config.nav = _filled(config.nav, sections)
    if repository := settings()[0]:  # in the footer: with repo_url every page would ask GitHub for the number of stars
        config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": repository, "name": "The repository"}]
    return config


def _filled(nav: Any, sections: dict[str, list[Any]]) -> Any:
    """The navigation with the pages of sections where it has their names."""
    if isinstance(nav, dict):
        return {name: _filled(value, sections) for name, value in nav.items()}
    return [_filled(item, sections) for item in nav] if isinstance(nav, list) else sections.get(nav, nav)


def on_files(files: Any, config: Any) -> Any:
    for name, page in _OUTSIDE.items():
        wide = "---\nhide: [toc]\n---\n\n" if name == "README.md" else ""
        files.append(File.generated(config, page, content=wide + (ROOT / name).read_text(encoding="utf-8")))
    for page, text in reference.pages().items():
        files.append(File.generated(config, page, content=text))
    titles = []
    for path in notebooks():
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n\n".join(_cell(cell) for cell in cells)
        link = f"[The notebook]({path.name}), to be opened in Jupyter.\n\n"
        titles.append(f"- [{re.search(r'^# (.+)$', text, re.MULTILINE)[1]}]({path.stem}.md)")
        text = re.sub(r"^(# .+\n+)", lambda title, link=link: title[1] + link, text, count=1, flags=re.MULTILINE)
        files.append(File.generated(config, page_of(path), content=text))
        files.append(File.generated(config, f"tutorials/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, "site.css", abs_src_path=str(HERE / "site.css")))
    files.append(File.generated(config, "llms.txt", content=programs.llms(_address)))
    files.append(File.generated(config, "names.json", content=json.dumps(programs.names(), indent=0)))
    for path in figures():
        files.append(File.generated(config, page_of(path), abs_src_path=str(path)))
    index = "# Tutorials\n\nNotebooks, each runs in minutes on two cores.\n\n" + "\n".join(titles) + "\n"
    files.append(File.generated(config, "tutorials/index.md", content=index))
    return files


def _address(file: str) -> str:
    """Where a page of the repository is in the built site."""
    return str(Path(page_of(ROOT / file)).with_suffix(".html"))


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"]).strip()
    if cell["id"] == BADGE:  # its image is elsewhere
        return re.sub(r"\[!\[(.+?)\]\(.+?\)\]", r"[\1]", source)
    if cell["cell_type"] == "markdown":
        return _TEX.sub(_mathml, source)
    code = f"```python\n{source}\n```"
    folded = "<details markdown=1><summary>The first cell installs the package where it is missing</summary>"
    return f"{folded}\n\n{code}\n\n</details>" if source.startswith("# Installs") else code


def figures() -> set[Path]:
    """The images outside of docs/ that pages show."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [(page, link) for page in pages for link in _LINK.finditer(page.read_text(encoding="utf-8"))]
    shown = {page.parent / link[3] for page, link in found if link[1]}
    inside = {Path(os.path.normpath(path)) for path in shown if path.suffix in _IMAGES}
    return {path for path in inside if path.exists() and ROOT / "docs" not in path.parents}


def _mathml(found: re.Match[str]) -> str:
    """A formula as the browser itself shows it: no script is needed."""
    tex, display = (found[1], "block") if found[1] else (found[2], "inline")
    mathml = re.sub(r"\s*\n\s*", "", latex2mathml.converter.convert(tex.strip(), display=display))
    return mathml if found[1] else f"<span>{mathml}</span>"  # or a line that begins with it would be a block


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    place = page.file.src_uri
    if place == "methods.md":  # its table needs the room of the two lines beside it
        page.meta["hide"] = ["toc"]
    if not place.startswith("reference/"):
        markdown = _outside_code(markdown, lambda text: _LINK.sub(lambda link: _mended(link, place), text))
    return _with_names(markdown, place)


def _outside_code(markdown: str, change: Any) -> str:
    """Changes what is not in a block of code. Spans are kept whole, as a link's text may be one."""
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def _mended(link: re.Match[str], place: str) -> str:
    """A link of the repository as one of the site; what is not in the site is linked there, or is only named."""
    mark, text, target = link.groups()
    if re.match(r"[a-z]+:|#", target):
        return link[0]
    target, hash_, anchor = target.partition("#")
    origin = _source(place)
    path = Path(os.path.normpath(origin.parent / target))
    if path.suffix == ".ipynb" and place.startswith("tutorials/"):
        return link[0]
    if not path.exists():
        return link[0]  # mkdocs will complain
    inside = path.relative_to(ROOT).as_posix()
    if path.is_file() and (inside.startswith("docs/") or inside in _OUTSIDE or path.suffix in (".ipynb", *_IMAGES)):
        return f"{mark}[{text}]({posixpath.relpath(page_of(path), posixpath.dirname(place) or '.')}{hash_}{anchor})"
    repository = settings()[0].removesuffix(".git")
    return f"[{text}]({repository}/blob/{BRANCH}/{inside})" if repository else text


def _source(place: str) -> Path:
    """The file of the repository that a page is made of."""
    by_page = {page: ROOT / name for name, page in _OUTSIDE.items()}
    if place.startswith("tutorials/"):
        return (ROOT / "notebooks" / posixpath.basename(place)).with_suffix(".ipynb")
    return by_page.get(place, ROOT / "docs" / place)


def _with_names(markdown: str, place: str) -> str:
    """Names of the package that are written as code (``fjs.simulate``) link to the reference."""
    known = reference.links()

    def linked(match: re.Match[str]) -> str:
        target = known.get(match[1])
        if target is None:
            return match[0]
        page, _, anchor = target.partition("#")
        path = posixpath.relpath(page, posixpath.dirname(place) or ".") if page != place else ""
        return f"[{match[0]}]({path}{'#' + anchor if anchor else ''})" if path or anchor else match[0]

    return _outside_code(
        markdown,
        lambda text: "\n".join(line if line.startswith("#") else _NAMED.sub(linked, line) for line in text.split("\n")),
    )


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Images are fetched when they are scrolled to; their sizes keep the place of what is below."""
    here = posixpath.dirname(page.file.dest_uri)

    def sized(image: re.Match[str]) -> str:
        file = files.get_file_from_path(posixpath.normpath(posixpath.join(here, image[1])))
        data = Path(file.abs_src_path).read_bytes()[:24] if file and image[1].endswith(".png") else b""
        size = 'width="{}" height="{}" '.format(*struct.unpack(">II", data[16:])) if data else ""
        return f'<img loading="lazy" {size}{image[0].removeprefix("<img ")}'

    return re.sub(r'<img [^>]*?src="([^"]+)"', sized, html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The theme's search is a dialog without a name."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_post_build(config: Any) -> None:
    """No page may load anything from elsewhere."""
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//|<link[^>]+(?:stylesheet|icon)[^>]+href=\"?https?:"
    )
    for page in Path(config.site_dir).rglob("*.html"):
        found = loads.search(page.read_text(encoding="utf-8"))
        if found:
            raise PluginError(f"{page.name} loads something from elsewhere: {found[0]}")
