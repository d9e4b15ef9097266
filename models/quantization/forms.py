"""The forms that `mererun models convert` makes. Light enough for the command line."""

from dataclasses import dataclass

GROUP_SIZE = 64  # inputs that share a scale and a bias; what kernels are written for


@dataclass(frozen=True, slots=True)
class Form:
    """Codes of `bits` for groups of weights. A `symmetric` one has zero as a code of its own."""

    id: str
    display: str
    bits: int
    symmetric: bool = False


FORMS = {
    form.id: form
    for form in (
        Form("q8-symmetric", "8-bit, exact zero", 8, symmetric=True),
        Form("q8-affine", "8-bit", 8),
        Form("q4-affine", "4-bit", 4),
    )
}
