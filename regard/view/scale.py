"""From a weight to a colour: viridis, which keeps its order for colour-blind readers and in grey print."""

from __future__ import annotations

VIRIDIS = (
    "#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c",
    "#1f9f88", "#27ad81", "#3dbc74", "#5cc863", "#81d34d", "#aadc32", "#d5e21a", "#fde725",
)  # fmt: skip


def viridis(share: float) -> str:
    """The colour at `share` of the way from nothing (dark violet) to all (yellow), as #rrggbb."""
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    below = min(int(place), len(VIRIDIS) - 2)
    low, high = (bytes.fromhex(colour[1:]) for colour in VIRIDIS[below : below + 2])
    return "#" + "".join(f"{round(a + (b - a) * (place - below)):02x}" for a, b in zip(low, high, strict=True))
