"""Who holds which examples: :class:`FederatedDataset`.

Values are looked at once, where :mod:`fedjax_sim.datasets.construct` makes a data set from concrete arrays; the
data set itself is a plain pytree that can be passed to ``jax.jit`` and mapped over without running any check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.core.fields import static
from fedjax_sim.core.tabular import in_notebook, table
from fedjax_sim.core.values import INT32_MAX, check_count, check_real, is_concrete, shown
from fedjax_sim.datasets.array_checks import host_array
from fedjax_sim.datasets.flat import default_float, int32, offsets_of, ranges
from fedjax_sim.datasets.placement import Placement, everywhere, lengthened_rows, padded, shared_out
from fedjax_sim.datasets.statistics import Statistics, label_table

T = TypeVar("T")
HELD_OUT = ("validation", "test")  # the parts that are not trained on


class FederatedDataset(struct.PyTreeNode, kw_only=True, eq=False):
    """The examples of N clients, n in all, end to end without padding; made by :mod:`fedjax_sim.datasets.construct`.

    Attributes:
      examples: pytree of flat arrays with the common leading axis n; ``{"x": ..., "y": ...}`` for classification.
      offsets: int32[N], first row of each client.
      sizes: int32[N], rows of each client, n_i.
      client_ids: int32[N], unique and non-negative. Random draws are keyed by them, so the storage order of the
        clients changes no result.
      order: int32[N], ``argsort(client_ids)``: the storage position of the client with the i-th smallest id.
      example_weights: float[n], or None when all examples weigh the same.
      validation: held-out examples of the same clients in the same order, to choose by, or None. Clients may be empty
        there.
      test: held-out examples, to report on, likewise.
      num_clients: N.
      num_examples: n.
      max_size: the largest n_i.
      num_classes: number of classes C, or None where the examples have no labels.
      placement: how it lies on several devices (:mod:`fedjax_sim.datasets.placement`), or None. Where the examples are
        sharded, rows of padding follow the n-th.
      largest: for each count c in 1, 2, 4, ... and N: (c, sum of the c largest sizes, the c-th largest size).
    """

    known_apart = True  # by a checksum where one is asked for, not in every description

    examples: Any
    offsets: jax.Array
    sizes: jax.Array
    client_ids: jax.Array
    order: jax.Array
    validation: FederatedDataset | None = None
    example_weights: jax.Array | None = None
    test: FederatedDataset | None = None
    num_clients: int = static()
    num_examples: int = static()
    max_size: int = static()
    num_classes: int | None = static(default=None)
    largest: tuple[tuple[int, int, int], ...] = static()
    placement: Placement | None = static(default=None)

    @property
    def shares(self) -> jax.Array:
        """p_i = n_i / n, float[N] in the default float type."""
        dtype = default_float()
        return self.sizes.astype(dtype) / jnp.asarray(self.num_examples, dtype)

    def largest_total(self, count: int) -> int:
        """An upper bound of the number of examples that any ``count`` distinct clients (N at most) hold together.

        Exact at the stored counts. Between two of them, a < count < b, the sum T(c) of the c largest sizes is
        concave, so T(count) <= min(T(a) + (count - a) s_a, T(b) - (b - count) s_b), with s_c the c-th largest size.
        """
        check_count("largest_total(count)", count, low=0)
        below, total_below, size_below = 0, 0, self.max_size
        for at, total, size in self.largest:
            if count <= at:
                return min(total_below + (count - below) * size_below, total - (at - count) * size)
            below, total_below, size_below = at, total, size
        return total_below

    def client(self, position: int) -> Any:
        """The examples of the client stored at ``position``, as host arrays (a pytree like ``examples``).

        Raises:
          IndexError: no such position.
        """
        if not 0 <= position < self.num_clients:
            raise IndexError(f"client({position}): storage positions are 0 to {self.num_clients - 1}")
        first = int(self.offsets[position])
        rows = slice(first, first + int(self.sizes[position]))
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], self.examples)

    def statistics(self) -> Statistics:
        """Sizes of the clients and, for labelled examples, how many of each class every client holds."""
        sizes = np.asarray(self.sizes)
        table = None
        if self.num_classes is not None:
            labels = np.asarray(self.examples["y"])[: self.num_examples]  # rows that are shared out are padded
            table = label_table(labels, sizes, self.num_classes)
        held_out = {f"{name}_sizes": np.asarray(part.sizes) for name, part in held_out_parts(self).items()}
        return Statistics(sizes, table, **held_out)

    def subset(self, positions: Sequence[int] | np.ndarray) -> FederatedDataset:
        """The clients stored at ``positions``, in that order, with their ids, names, held-out examples and weights.

        Ids stay, so a client draws what it draws among all. A held-out part in which none of them has examples is left
        out.

        Raises:
          TypeError: no integers, or none at all.
          ValueError: a position given twice, or one that is not stored.

        Example:
          >>> from fedjax_sim.datasets import synthetic
          >>> data = synthetic(1.0, 1.0, num_clients=30, seed=0)
          >>> unseen, train = data.subset(range(5)), data.subset(range(5, 30))
          >>> unseen.num_clients, train.num_clients, train.client_ids[0].item()
          (5, 25, 5)
        """
        chosen = np.asarray(positions)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or chosen.size == 0:
            raise TypeError(
                f"subset: {shown(positions)}: give the storage positions of one client or more, np.flatnonzero(mask)"
            )
        if chosen.min() < 0 or chosen.max() >= self.num_clients or np.unique(chosen).size < chosen.size:
            known = f"storage positions are 0 to {self.num_clients - 1}"
            raise ValueError(f"subset: {shown(positions)}: {known}, and each is given once")
        sizes = np.asarray(self.sizes)[chosen]
        rows = ranges(np.asarray(self.offsets)[chosen], sizes)
        examples = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], self.examples)
        weights = self.example_weights
        made = packed(examples, sizes, np.asarray(self.client_ids)[chosen], self.num_classes).replace(
            example_weights=None if weights is None else jnp.asarray(np.asarray(weights)[rows]),
            **{name: part.subset(chosen) for name, part in held_out_parts(self).items() if part.sizes[chosen].any()},
        )
        names = getattr(self, "_client_names", None)
        return made if names is None else named(made, [names[at] for at in chosen])

    def with_example_weights(self, weights: Any) -> FederatedDataset:
        """The same data set with a weight for every training example (None removes them).

        F_i = (1/n_i) sum_j v_j loss_j, in training and where the loss is recorded: by the number of examples, not the
        sum of their weights, so weights with the mean 1 keep the size of the steps. Metrics and scores, such as the
        accuracy, count every example the same, and so do clients' shares n_i/n; test examples have no weights.

        Args:
          weights: float[n], in the stored order of the examples. Traced: a run of ``make_train`` with one that is
            negative or not finite is NaN.

        Raises:
          ValueError: another shape, or a concrete weight that is negative or not finite.
        """
        if weights is None:
            return self.replace(example_weights=None)
        if is_concrete(weights):
            weights = host_array("with_example_weights(weights)", weights)
            check_real("with_example_weights(weights)", weights, low=0.0)
        array = jnp.array(weights, default_float())
        if array.shape != (self.num_examples,):
            raise ValueError(
                f"with_example_weights: the weights have shape {array.shape}; there must be one for each of the "
                f"{self.num_examples} training examples"
            )
        return self.replace(example_weights=array)

    def __repr__(self) -> str:
        return in_short(self)

    def _repr_html_(self) -> str:
        return in_html(self)


def packed(examples: Any, sizes: np.ndarray, client_ids: np.ndarray, num_classes: int | None) -> FederatedDataset:
    """The data set of checked arrays of its own that lie client after client."""
    total = int(sizes.sum())
    if total > INT32_MAX:
        raise ValueError(f"{total} examples: at most {INT32_MAX} can be indexed; use fewer clients or cap their sizes")
    decreasing = np.sort(sizes)[::-1]
    totals = np.cumsum(decreasing)
    counts = sorted({2**power for power in range(sizes.size.bit_length())} | {sizes.size})
    return FederatedDataset(
        # Not jnp.asarray, which copies: these arrays are nobody else's, so a CPU may use their memory as it is.
        examples=jax.tree.map(jax.device_put, examples),
        offsets=int32(offsets_of(sizes)),
        sizes=int32(sizes),
        client_ids=int32(client_ids),
        order=int32(np.argsort(client_ids)),
        num_clients=int(sizes.size),
        num_examples=total,
        max_size=int(decreasing[0]),
        num_classes=num_classes,
        largest=tuple((count, int(totals[count - 1]), int(decreasing[count - 1])) for count in counts),
    )


def held_out_parts(dataset: T) -> dict[str, T]:
    """The parts of a data set, on the device or the host, that are not trained on, by name."""
    parts = {name: getattr(dataset, name) for name in HELD_OUT}
    return {name: part for name, part in parts.items() if part is not None}


def check_copy(dataset: FederatedDataset) -> None:
    """Checks a copy made by ``replace``: a row for each example, labels that are classes, the same clients throughout.

    Once for each data set, labels while they are concrete. The frame of data on the host has no rows to look at.

    Raises:
      ValueError: other shapes, with which rows would be read as those of other clients, or other labels.
    """
    if type(dataset) is not FederatedDataset or dataset.placement is not None or "_looked_at" in dataset.__dict__:
        return  # padded ones are of one that was looked at
    count = dataset.num_examples
    named_leaves = jax.tree_util.tree_leaves_with_path(dataset.examples)
    arrays = {f"examples{jax.tree_util.keystr(path)}": leaf for path, leaf in named_leaves}
    for name, leaf in (arrays | {"example_weights": dataset.example_weights}).items():
        if leaf is not None and (shape := jnp.shape(leaf))[:1] != (count,):
            raise ValueError(
                f"the data set's {name} has the shape {list(shape)}, and its clients have {count} examples together: "
                "replace(...) keeps the clients' sizes, so make one with other rows by from_clients, from_ids or subset"
            )
    labels = arrays.get("examples['y']")
    known = dataset.num_classes is not None and count > 0 and can_be_read(labels)
    if known:
        values = np.asarray(labels)
        if values.dtype.kind in "iu" and not 0 <= values.min() <= values.max() < dataset.num_classes:
            raise ValueError(
                f"the data set has labels from {values.min()} to {values.max()}, and {dataset.num_classes} classes: "
                "number them from 0, and where there are more of them, replace(num_classes=...) in every part"
            )
    for name, part in held_out_parts(dataset).items():
        ids, other = dataset.client_ids, part.client_ids
        if ids.shape != other.shape or (can_be_read(ids) and can_be_read(other) and not np.array_equal(ids, other)):
            raise ValueError(
                f"the {name} part's clients are not those of the data set in their order ({part.num_clients} and "
                f"{dataset.num_clients}): held-out examples are of the same; what others have is for evaluate= or "
                "fjs.evaluate"
            )
        if part.num_classes != dataset.num_classes:
            raise ValueError(
                f"the {name} part has {part.num_classes} classes and the data set {dataset.num_classes}: "
                "replace(num_classes=...) in every part"
            )
        check_copy(part)
    if known or labels is None:
        object.__setattr__(dataset, "_looked_at", True)


def can_be_read(values: Any) -> bool:
    """Whether an array has values here and now: it is not traced, and no part of it lies with another process."""
    return values is not None and is_concrete(values) and getattr(values, "is_fully_addressable", True)


def training_part(dataset: FederatedDataset) -> FederatedDataset:
    """The data set without what is held out."""
    return dataset.replace(**dict.fromkeys(HELD_OUT))


def in_short(dataset: Any) -> str:
    """A data set of either kind in one line."""
    held_out = (f", {part.num_examples} {name} examples" for name, part in held_out_parts(dataset).items())
    classes = "" if dataset.num_classes is None else f", {dataset.num_classes} classes"
    counts = f"{dataset.num_clients} clients, {dataset.num_examples} examples{''.join(held_out)}{classes}"
    return f"{type(dataset).__name__}({counts})"


def in_html(dataset: Any) -> str:
    """For notebooks: how many examples clients have, by part."""
    sizes = {name: np.asarray(part.sizes) for name, part in {"training": dataset, **held_out_parts(dataset)}.items()}
    figures: dict[str, Any] = {"examples": np.sum, "least of a client": np.min, "median": np.median, "most": np.max}
    columns = [(title, [f"{of(held):,.15g}" for held in sizes.values()]) for title, of in figures.items()]
    return in_notebook(dataset, table([("part", list(sizes)), *columns], "html"))


def named(data: T, names: Sequence[str]) -> T:
    """``data``, remembering the names of its clients in storage order.

    They are no part of the pytree, so programs are not compiled again for other names, and a copy has none.

    Raises:
      ValueError: not one name for each client, or a name used twice.
    """
    count: int = data.num_clients  # type: ignore[attr-defined]  # both kinds have it
    if len(names) != count or len(set(names)) != len(names):
        raise ValueError(f"{len(names)} names ({len(set(names))} different) for {count} clients: give each one")
    object.__setattr__(data, "_client_names", tuple(str(name) for name in names))
    return data


def client_names(data: Any) -> tuple[str, ...]:
    """The names of the clients in storage order: speaking roles, accounts, LEAF users, file names, table entries.

    Raises:
      ValueError: ``data`` was not read from a source with names, or is a changed copy that forgot them.

    Example:
      >>> import numpy as np
      >>> from fedjax_sim.datasets import from_table
      >>> data = from_table({"who": ["rob", "ann", "rob"], "x": np.ones(3)}, client="who", x="x")
      >>> client_names(data)
      ('ann', 'rob')
    """
    names: tuple[str, ...] | None = getattr(data, "_client_names", None)
    if names is None:
        raise ValueError(
            f"{data!r} has no client names: it was not read from a source that has them, or is a changed copy (ask "
            "the data set that it was made from); its ids are data.client_ids"
        )
    return names


def placed(dataset: FederatedDataset, placement: Placement) -> FederatedDataset:
    """The data set on a mesh, held-out parts included: what it consists of besides examples is everywhere.

    Rows of sharded examples are padded to a multiple of the groups; no client holds a row of the padding.
    """
    dataset = whole(dataset)
    mesh = placement.mesh
    rest, examples = training_part(dataset).replace(examples=None), dataset.examples
    if placement.sharded:
        extra = padded(dataset.num_examples, placement.parts) - dataset.num_examples
        examples = shared_out(lengthened_rows(examples, extra), mesh)
    else:
        examples = everywhere(examples, mesh)
    held_out = {name: placed(part, placement) for name, part in held_out_parts(dataset).items()}
    return everywhere(rest, mesh).replace(examples=examples, placement=placement, **held_out)


def whole(dataset: FederatedDataset) -> FederatedDataset:
    """The data set without a placement and without the padding that sharded rows have, held-out parts included."""
    placement = dataset.placement
    if placement is None:
        return dataset
    rows = dataset.num_examples
    return dataset.replace(
        examples=jax.tree.map(lambda leaf: leaf[:rows], dataset.examples) if placement.sharded else dataset.examples,
        placement=None,
        **{name: whole(part) for name, part in held_out_parts(dataset).items()},
    )
