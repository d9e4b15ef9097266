"""How much two prompts have in common."""

from array import array


def shared_tokens(one: "array[int]", other: "array[int]") -> int:
    """How many ids both begin with. Slices are compared in one go, whatever their length."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
