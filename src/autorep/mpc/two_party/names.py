"""Which ways of preparing there are, and what each demands of a program before anything runs."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from autorep.errors import ConfigError
from autorep.mpc.comparisons import ComparisonName
from autorep.program import ir
from autorep.program.quadratics import LARGEST_PRODUCT, largest_product

PreparationName = Literal["dealer", "two-party", "ot"]


def checked_comparison(preparation: str, comparison: ComparisonName | None) -> ComparisonName:
    """The comparison protocol to use; keys of comparison functions need somebody who knows the masks."""
    if preparation == "dealer":
        return comparison or "dcf"
    if comparison not in (None, "bits"):
        raise ConfigError(
            f"--preparation {preparation} --comparison {comparison}: comparison keys are made by a dealer, who knows "
            "the masks; use --comparison bits, or leave it out"
        )
    return "bits"


OWNERS_WORD, FITS = "two_party", "fits"


def check_parameters(program: ir.Program, preparation: str = "two-party") -> None:
    """Refuse, at the model's owner, coefficients whose products would not fit the slots' modulus."""
    if preparation != "two-party":
        return
    for op in program.ops:
        if not (isinstance(op, ir.Activation) and op.quad_count):
            continue
        a, b = (np.abs(ir.signed(program.encoded(op, name), 64)).max() for name in "ab")
        found = largest_product(op, float(a), float(b))
        if found >= LARGEST_PRODUCT:
            raise ConfigError(
                f"{op.name}: its quadratic's coefficients reach 2**{np.log2(found):.1f} with masks of two-party "
                f"preparation, more than 2**{np.log2(LARGEST_PRODUCT):.1f}: it is too steep for its input; "
                "train it flatter, or prepare with a dealer"
            )


def with_owners_word(program: ir.P) -> ir.P:
    """The owner's program with a public fact: whether its coefficients fit two-party preparation, or why not.

    Servers hold shares only and cannot check it themselves; with coefficients that do not fit, answers would be noise.
    """
    try:
        check_parameters(program)
    except ConfigError as error:
        word = str(error)
    else:
        word = FITS
    return dataclasses.replace(program, info={**program.info, OWNERS_WORD: word})


def check_owners_word(program: ir.Program, preparation: str) -> None:
    """Refuse, at a server, a program whose owner does not say that its quadratics fit."""
    quadratics = any(isinstance(op, ir.Activation) and op.quad_count for op in program.ops)
    word = program.info.get(OWNERS_WORD)
    if preparation == "two-party" and quadratics and word != FITS:
        raise ConfigError(
            word
            or "this bundle does not say whether its quadratics fit two-party preparation; its owner must make it "
            "with this release's `autorep compile`, or prepare with a dealer"
        )
