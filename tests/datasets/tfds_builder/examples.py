"""What the examples of the test's data set hold, by their number."""

import numpy as np

WRITERS = ("ann", "bob", "cy", "dee")


def example(number: int) -> dict[str, object]:
    """All values follow from the number, so that a test can say what each must be."""
    return {
        "number": number,
        "image": (np.arange(5 * 4, dtype=np.uint8) + number).reshape(5, 4, 1),
        "label": number % 3,
        "score": np.float32(number / 4),
        "vector": np.arange(2, dtype=np.float32) * number,
        "writer": WRITERS[number % 4],
        "person": 10 + number % 4,
        "words": [number] * (1 + number % 3),
        "nested": {"flag": bool(number % 2)},
    }
