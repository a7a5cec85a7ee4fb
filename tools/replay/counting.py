"""Sums of what was seen of one rank's collectives, of micro-batches and of steps. Needs no torch.

Counts are {(axis, collective, type, ranks, bytes of a call): (calls, bytes, sent bytes)}: `bytes`
those of the logical tensors, `n_calls` times `message_bytes` of the `comm` rows of a plan, sent
bytes what the rank puts on the wire by ring volumes, the `bytes` of those rows.
"""

from collections import defaultdict

CONTROL_BYTES = 1024
"""Messages up to this size that carry no activations, weights or gradients (norms, counts,
losses, tokens an expert) are listed apart; a plan has them in its fixed time of a step."""
ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all-gather", "reduce-scatter", "all-reduce"


def sent_bytes(name, payload, ranks):
    """Return what a rank sends for one call over a logical tensor of `payload` bytes.

    >>> sent_bytes("all-gather", 8.0, 4), sent_bytes("all-reduce", 8.0, 4)
    (6.0, 12.0)
    """
    if name in ("point-to-point", "receive", "broadcast"):
        return payload
    return payload * (ranks - 1) / ranks * (2 if name == ALL_REDUCE else 1)


def weight_bytes(zero, n_params, sharded_fp32_bytes, is_mixed):
    """Return what the weights take that a step computes with, beside the 32-bit ones.

    FSDP2 casts what it gathers: between forward and backward 2 bytes each stay with ZeRO 0 to 2
    and none with ZeRO 3. Without a cast the 32-bit ones are all there is, and with ZeRO 0 to 2
    4 bytes each stay.

    >>> weight_bytes(2, 10, 8, True), weight_bytes(3, 10, 8, True), weight_bytes(3, 10, 8, False)
    (20, 0, 8)
    """
    if zero == 3:
        return 0 if is_mixed else sharded_fp32_bytes
    return (2 if is_mixed else 4) * n_params


def repeated(first, second, times):
    """Return the counts of a run whose part between two marks happens `times` more.

    >>> repeated({"a": (1, 8.0, 4.0)}, {"a": (3, 24.0, 12.0)}, 2)
    {'a': (7, 56.0, 28.0)}
    """
    nothing = (0, 0.0, 0.0)
    return {
        key: tuple(b + times * (b - a) for a, b in zip(first.get(key, nothing), row, strict=True))
        for key, row in second.items()
    }


def added(counts, first, second):
    """Return counts with what happened between two marks.

    >>> added({"a": (7, 56.0, 28.0)}, {}, {"b": (1, 4.0, 3.0)})
    {'a': (7, 56.0, 28.0), 'b': (1, 4.0, 3.0)}
    """
    nothing, found = (0, 0.0, 0.0), dict(counts)
    for key, row in second.items():
        columns = zip(found.get(key, nothing), first.get(key, nothing), row, strict=True)
        found[key] = tuple(now - a + b for now, a, b in columns)
    return found


def as_rows(counts):
    """Return (collectives, control) as records, sizes of one kind together.

    What only comes in counts with its sender.
    """
    kinds = defaultdict(lambda: [0, 0.0, 0.0])
    small = defaultdict(lambda: [0, 0.0, 0.0])
    for (axis, name, dtype, ranks, payload), row in counts.items():
        if name == "receive":
            continue
        counted = axis in ("world", "loss") or dtype.startswith("int")
        control = payload <= CONTROL_BYTES or counted
        held = (small if control else kinds)[axis, name, dtype, ranks]
        for i, value in enumerate(row):
            held[i] += value
    return records(kinds), records(small)


def records(kinds):
    """Return counts as the records of an answer."""
    names = ("axis", "collective", "dtype", "group_size")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "n_calls": int(row[0]),
            "bytes": round(row[1]),
            "sent_bytes": round(row[2]),
        }
        for key, row in sorted(kinds.items(), key=str)
        if row[0]
    ]
