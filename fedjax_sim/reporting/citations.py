"""What to cite: BibTeX of the package and of the papers of what a run is made of.

The entries are in ``citations.bib``. Which paper a method or a data set belongs to is said in its record
(:mod:`fedjax_sim.core.records`, :mod:`fedjax_sim.datasets.sources.record`), that of everything else here.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Any

from fedjax_sim.core import descriptions, records
from fedjax_sim.core.values import suggest
from fedjax_sim.core.version import __version__
from fedjax_sim.datasets.sources.record import sources

_PAPERS = {
    "aggregator.centered_clipping": ["karimireddy2021learning"],
    "aggregator.geometric_median": ["pillutla2022robust"],
    "aggregator.krum": ["blanchard2017machine"],
    "aggregator.median": ["yin2018byzantine"],
    "aggregator.multi_krum": ["blanchard2017machine"],
    "aggregator.trimmed_mean": ["yin2018byzantine"],
    "asynchronous.fedasync": ["xie2019asynchronous"],
    "asynchronous.fedbuff": ["nguyen2022federated"],
    "attack.gaussian": ["blanchard2017machine"],
    "attack.inner_product": ["xie2020fall"],
    "attack.little_is_enough": ["baruch2019little"],
    "cohort.with_replacement": ["li2020convergence"],
    "optim.fedadagrad": ["reddi2021adaptive"],
    "optim.fedadam": ["reddi2021adaptive"],
    "optim.fedams": ["wang2022communication"],
    "optim.fedyogi": ["reddi2021adaptive"],
}


def cite(*what: Any) -> str:
    """BibTeX of the package, and of the papers of methods or of whole runs.

    Args:
      *what: names (``"scaffold"``, ``"optim.fedyogi"``), objects that a factory of the package made or their
        descriptions, or results of runs: a ``History`` or a ``Sweep``, of which every part counts, in the order in
        which they come.

    Returns:
      One entry a paper, the package first. Parts that no paper is known of add nothing.

    Raises:
      ValueError: a name that has no paper here; the nearest ones are listed.
    """
    known, entries = papers(), records.entries()
    keys = [key for item in what for name in _names(item, list(known)) for key in known.get(name, ())]
    return "\n\n".join([_package(), *(entries[key] for key in dict.fromkeys(keys))])


def papers() -> dict[str, list[str]]:
    """The keys of the papers of every registered name that has any."""
    descriptions.all_registered()
    of_methods = {name: list(record.entries) for name, record in records.RECORDS.items() if record.cite}
    of_data = {f"dataset.{name}": list(of.papers) for name, of in sources().items() if of.papers}
    return dict(sorted({**_PAPERS, **of_methods, **of_data}.items()))


def _names(item: Any, papers: list[str]) -> Iterator[str]:
    """The registered names in what is to be cited."""
    if isinstance(item, str):
        found = [name for name in papers if item in (name, name.partition(".")[2])]
        if not found:
            known = sorted({name.partition(".")[2] for name in papers})
            raise ValueError(f"cite({item!r}): no paper is known by that name: {suggest(item, known)}")
        yield from found
        return
    description = item if isinstance(item, Mapping) else getattr(item, "description", None)
    yield from _described(description if isinstance(description, Mapping) else descriptions.describe(item))


def _described(description: Any) -> Iterator[str]:
    if isinstance(description, Mapping):
        if isinstance(description.get("name"), str):
            yield description["name"]
        for part in description.values():
            yield from _described(part)
    elif isinstance(description, list):
        for part in description:
            yield from _described(part)


def _package() -> str:
    """The entry of the package itself; an address only where its metadata have one."""
    try:
        urls = importlib.metadata.metadata("fedjax_sim").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        urls = []
    named: dict[str, str] = dict(url.split(", ", 1) for url in urls)
    fields = {
        "title": "{fedjax_sim}: federated learning simulated in {JAX}",
        "author": "{The fedjax_sim authors}",
        "version": __version__,
        "url": named.get("Repository", ""),
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join(["@software{fedjax_sim,", *lines, "}"])
