"""What to cite: BibTeX of the package and of the papers of what a run is made of.

The entries are in ``citations.bib``; which paper a registered name belongs to is said here, or in a data set's record.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.resources
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fedjax_sim.core.descriptions import describe
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
    "algorithm.adaptively_clipped": ["andrew2021differentially"],
    "algorithm.afl": ["mohri2019agnostic"],
    "algorithm.aware": ["zeng2025power"],
    "algorithm.clipped": ["mcmahan2018learning"],
    "algorithm.dane": ["shamir2014communication"],
    "algorithm.dp": ["mcmahan2018learning"],
    "algorithm.ema": ["polyak1992acceleration"],
    "algorithm.fedadagrad": ["reddi2021adaptive"],
    "algorithm.fedadam": ["reddi2021adaptive"],
    "algorithm.fedams": ["wang2022communication"],
    "algorithm.fedavg": ["mcmahan2017communication"],
    "algorithm.fedavgm": ["hsu2019measuring"],
    "algorithm.fedaware": ["zeng2025power"],
    "algorithm.fedcm": ["xu2021fedcm"],
    "algorithm.feddane": ["li2019feddane"],
    "algorithm.feddyn": ["acar2021federated"],
    "algorithm.fednova": ["wang2020tackling"],
    "algorithm.fedprox": ["li2020federated"],
    "algorithm.fedyogi": ["reddi2021adaptive"],
    "algorithm.freeze": ["oh2022fedbabu"],
    "algorithm.keep": ["arivazhagan2019federated", "liang2020think", "li2021fedbn"],
    "algorithm.large_batch_sgd": ["karimireddy2020scaffold"],
    "algorithm.last_k": ["izmailov2018averaging"],
    "algorithm.local_sgd": ["stich2019local"],
    "algorithm.qfedavg": ["li2020fair"],
    "algorithm.quantised": ["alistarh2017qsgd"],
    "algorithm.random_k": ["stich2018sparsified", "konecny2016federated"],
    "algorithm.reweighted": ["xia2021auto"],
    "algorithm.scaffold": ["karimireddy2020scaffold"],
    "algorithm.top_k": ["stich2018sparsified", "karimireddy2019error"],
    "algorithm.vrl_sgd": ["liang2019variance"],
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
      *what: names (``"scaffold"``, ``"optim.fedyogi"``), objects that a factory of the package made, or results of
        runs: a ``History`` or a ``Sweep``, of which every part counts, in the order in which they come.

    Returns:
      One entry a paper, the package first. Parts that no paper is known of add nothing.

    Raises:
      ValueError: a name that has no paper here; the nearest ones are listed.
    """
    keys = [key for item in what for name in _names(item) for key in _papers().get(name, ())]
    return "\n\n".join([_package(), *(_entries()[key] for key in dict.fromkeys(keys))])


def _papers() -> dict[str, list[str]]:
    return _PAPERS | {f"dataset.{name}": list(of.papers) for name, of in sources().items() if of.papers}


def _names(item: Any) -> Iterator[str]:
    """The registered names in what is to be cited."""
    if isinstance(item, str):
        found = [name for name in _papers() if item in (name, name.partition(".")[2])]
        if not found:
            known = sorted({name.partition(".")[2] for name in _papers()})
            raise ValueError(f"cite({item!r}): no paper is known by that name: {suggest(item, known)}")
        yield from found
        return
    description = getattr(item, "description", None)
    yield from _described(description if isinstance(description, Mapping) else describe(item))


def _described(description: Any) -> Iterator[str]:
    if isinstance(description, Mapping):
        if isinstance(description.get("name"), str):
            yield description["name"]
        for part in description.values():
            yield from _described(part)
    elif isinstance(description, list):
        for part in description:
            yield from _described(part)


@functools.cache
def _entries() -> dict[str, str]:
    text = importlib.resources.files("fedjax_sim.reporting").joinpath("citations.bib").read_text(encoding="utf-8")
    return {re.match(r"@\w+\{(\w+),", entry)[1]: entry for entry in text.strip().split("\n\n")}  # type: ignore[index]


def _package() -> str:
    """The entry of the package itself; an address only where its metadata have one."""
    fields = {
        "title": "{fedjax_sim}: federated learning simulated in {JAX}",
        "author": "{The fedjax_sim authors}",
        "version": __version__,
        "url": _repository(),
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join(["@software{fedjax_sim,", *lines, "}"])


def _repository() -> str:
    try:
        urls = importlib.metadata.metadata("fedjax_sim").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    named: dict[str, str] = dict(url.split(", ", 1) for url in urls)
    return named.get("Repository", "")
