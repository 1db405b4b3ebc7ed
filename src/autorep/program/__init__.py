"""The Program between training and cryptography: what it is (`ir`), how it is made (`compile`), how it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

    from autorep.program.ir import Program

Mode = Literal["float", "fixed", "secure"]


def run(program: Program, x: np.ndarray, mode: Mode = "float", **options: Any) -> Any:
    """Logits of a batch (N, *input shape).

    Options: float: dtype; fixed: rounding; secure: those of `autorep.mpc.local.run_secure` (trace=True returns more).
    """
    if mode == "float":
        from autorep.program.floating import run_float

        return run_float(program, x, **options)
    if mode == "fixed":
        from autorep.program.fixed import run_fixed

        return run_fixed(program, x, **options)
    if mode == "secure":
        from autorep.mpc.local import run_secure

        return run_secure(program, x, **options)
    from autorep.errors import ConfigError

    raise ConfigError(f"mode {mode!r}; valid: float, fixed, secure")
