"""Cases that cover combinations of parameters without running through their whole product."""

import itertools


def covering(*axes, strength=2):
    """Choose few combinations of values such that any `strength` values of different axes occur together in one.

    A fault that shows where some values of so many axes meet is then found as surely as by the whole product.

    Parameters
    ----------
    *axes : sequences
        The values of each parameter.
    strength : int
        How many axes bear on each other.

    Returns
    -------
    list of tuple
        One value of each axis, always the same choice, in the order of the product.
    """
    product = list(itertools.product(*(range(len(axis)) for axis in axes)))
    together = list(itertools.combinations(range(len(axes)), strength))
    missing = {(places, tuple(case[i] for i in places)) for case in product for places in together}
    covers = {case: {(places, tuple(case[i] for i in places)) for places in together} for case in product}
    chosen = []
    while missing:
        best = max(covers, key=lambda case: len(covers[case] & missing))
        missing -= covers.pop(best)
        chosen.append(best)
    return [tuple(axis[i] for axis, i in zip(axes, case)) for case in sorted(chosen)]
