"""Docstrings and signatures as Markdown."""

from __future__ import annotations

import inspect
import re
from typing import Any

_WIDTH = 100
_CODE = re.compile(r"``(.+?)``|:[a-z]+:`~?(.+?)`|`([^`]+)`", re.DOTALL)
# "x <- x + eta_g sum_S w_i (y_i - x)": a line by itself that assigns or defines, and is no sentence.
_FORMULA = re.compile(r"(<-|[^=<>!]=[^=]|<=|>=|\|)")
_SENTENCE = re.compile(r"[A-Z][a-z]* [a-z]{2,} ")


def signature(shown: str, function: Any, *, drop_first: bool = False) -> str:
    """The call as a block of Python; one argument a line where it is long."""
    try:
        known = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    parameters = list(known.parameters.values())[1 if drop_first else 0 :]
    arguments: list[str] = []
    for before, parameter in zip([None, *parameters], parameters, strict=False):
        starred = before is not None and before.kind in (before.KEYWORD_ONLY, before.VAR_POSITIONAL)
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            arguments.append("*")
        arguments.append(_argument(parameter))
    returns = _annotation(known.return_annotation)
    tail = f") -> {returns}" if returns and returns != "None" and not inspect.isclass(function) else ")"
    line = f"{shown}({', '.join(arguments)}{tail}"
    if len(line) > _WIDTH:
        line = f"{shown}(\n" + "".join(f"    {argument},\n" for argument in arguments) + tail
    return f"```python {{ .signature }}\n{line}\n```"


def _argument(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = _annotation(parameter.annotation)
    text = f"{stars}{parameter.name}" + (f": {annotation}" if annotation else "")
    if parameter.default is not parameter.empty:
        default = _default(parameter.default)
        text += f" = {default}" if annotation else f"={default}"
    return text


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    annotation = getattr(annotation, "__forward_arg__", annotation)
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text.strip("'\""))  # jax.Array, typing.Any: the last part says it
    return "" if text == "Any" else text


def _default(value: Any) -> str:
    text = repr(value)
    return getattr(value, "__name__", "...") if text.startswith("<") or " at 0x" in text else text


def rendered(text: str) -> str:
    """A Google-style docstring: its prose, then a table for each of its sections."""
    import griffe

    parts = []
    for section in griffe.parse_google(griffe.Docstring(text), warnings=False):
        kind, value = section.kind.value, section.value
        if kind == "text":
            parts.append(prose(value))
        elif kind == "examples":
            parts += [prose(code) if k.value == "text" else f"```pycon\n{code}\n```" for k, code in value]
        elif kind == "admonition":
            parts += [f"**{section.title}**", prose(value.description)]
        else:
            parts.append(f"**{_TITLES.get(kind, kind.capitalize())}**")
            parts.append(_items(value))
    return "\n\n".join(parts)


_TITLES = {"parameters": "Arguments", "attributes": "Attributes", "returns": "Returns", "raises": "Raises"}


def _items(items: list[Any]) -> str:
    """A table of names and what they are; without names, what is said of them."""
    named = [(getattr(item, "name", "") or item.annotation, " ".join(item.description.split())) for item in items]
    if not any(name for name, _ in named):
        return "\n\n".join(inline(said) for _, said in named)
    rows = [f"| `{name}` | {inline(said)} |" for name, said in ((n, s.replace("|", "\\|")) for n, s in named)]
    return "\n".join(["| | |", "|---|---|", *rows])


def prose(text: str) -> str:
    """Paragraphs and lists; formulas and what is indented become blocks, all else keeps its signs."""
    return "\n\n".join(_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)) if paragraph)


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if text.lstrip().startswith(">>>"):
        return "```pycon\n" + inspect.cleandoc(text) + "\n```"
    if lines[0].startswith("* "):
        items = re.split(r"^\* ", text, flags=re.MULTILINE)[1:]
        return "\n".join("- " + inline(" ".join(item.split())) for item in items)
    if all(line.startswith("  ") for line in lines) or _is_formula(lines):
        return "```text\n" + inspect.cleandoc(text).replace("``", "") + "\n```"
    return inline(text)


def _is_formula(lines: list[str]) -> bool:
    if lines[-1].rstrip().endswith((".", ":", "?", "!")) or _SENTENCE.match(lines[0]):
        return False
    return all(_FORMULA.search(line) for line in lines)


def inline(text: str) -> str:
    """``code`` and :role:`code` as code; signs that Markdown would read are escaped everywhere else."""
    parts, at = [], 0
    for match in _CODE.finditer(text):
        code = match[1] or match[2] or match[3]
        code = re.sub(r"^fedjax_sim(?=(?:\.\w+)+$)", "fjs", code)
        parts += [_escaped(text[at : match.start()]), f"`{code}`"]
        at = match.end()
    return "".join([*parts, _escaped(text[at:])])


def _escaped(text: str) -> str:
    kept = re.sub(r"(?<!\w)\*([A-Za-z][\w ]*)\*(?!\w)", "\0\\1\0", text)  # *emphasis* stays
    kept = re.sub(r"([\\*_\[\]`])", r"\\\1", kept).replace("<", "&lt;")
    return re.sub(r"^(\s*)([+#-])(?=\s)", r"\1\\\2", kept, flags=re.MULTILINE).replace("\0", "*")  # no list, no title
