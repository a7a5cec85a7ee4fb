"""What the card of an answer says, as plain data; each surface only draws it.

Every number is one of the answer's JSON, in base units, beside the text that surfaces print.
"""

from dataclasses import dataclass

from hardware.nouns import GPU, DeviceNoun


@dataclass(frozen=True, slots=True)
class CardFigure:
    """One number of the card."""

    key: str
    label: str
    value: float
    """In base units: s, bytes, tokens/s, fractions, US dollars."""
    text: str
    """The value with its unit, as printed."""
    note: str = ""
    """What belongs to it: its interval, its share, what is free."""
    interval: tuple[float, float] | None = None
    """80 % prediction interval, in the unit of `value`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a stacked bar."""

    key: str
    """Key of the legend (`planner.render.colours`)."""
    label: str
    amount: float
    """Seconds or bytes."""
    share: float
    """Of the whole bar, 0-1."""
    text: str
    """The amount with its unit."""
    terms: tuple[str, ...] = ()
    """Terms of the answer that it sums."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar; its segments sum to `total`."""

    key: str
    """`step` or `memory`."""
    title: str
    total: float
    """Seconds or bytes."""
    text: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """The ranks that one axis spans, and what their traffic crosses."""

    axis: str
    """`tp`, `cp`, `ep`, `pp` or `dp`; key of the legend."""
    label: str
    """`TP 4`."""
    size: int
    """Ranks of the group."""
    is_local: bool
    """Whether all its traffic stays inside a scale-up domain."""
    wire: str
    """What it crosses: NVLink, network, or both."""
    sent_bytes: float
    """Bytes that a rank sends in a step."""
    exposed_s: float
    """Time of the step that waits for it."""


@dataclass(frozen=True, slots=True)
class Box:
    """The devices that hold one stage of one replica."""

    replica: int
    stage: int
    first_gpu: int
    """Number of its first rank."""
    place: str
    """Nodes or racks that they lie on: `node 0`, `nodes 4-5`."""


@dataclass(frozen=True, slots=True)
class LayoutDrawing:
    """The layout on the cluster: replicas by stages, and what is inside a box."""

    replicas: int
    stages: int
    tp: int
    cp: int
    ep: int
    box_gpus: int
    """Devices of a box: TP x CP."""
    unit: str
    """`node` or `rack`: what a place is."""
    unit_gpus: int
    units: int
    """Nodes or racks in use."""
    boxes: tuple[tuple[Box, ...], ...]
    """By shown replica, then by shown stage."""
    groups: tuple[DrawnGroup, ...]
    noun: DeviceNoun = GPU
    """What a device is called."""


@dataclass(frozen=True, slots=True)
class PoolStage:
    """One stage of pipelines that are alike, on one pool."""

    pool: int
    """Place among the pools of the drawing."""
    layers: int
    text: str
    """What it is: pool, accelerator, layers, degrees, time, memory."""


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """Pipelines that are alike."""

    pipelines: int
    share: float
    """Of the global batch."""
    text: str
    """Stages, micro-batches, step."""
    stages: tuple[PoolStage, ...]
    """In model order."""


@dataclass(frozen=True, slots=True)
class PoolsDrawing:
    """A plan over several pools: which layers of which pipelines lie on which pool."""

    pools: tuple[str, ...]
    """Name and accelerator of each pool, with the devices in use."""
    rows: tuple[PipelineRow, ...]


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that the question left open."""

    text: str
    option: str
    """What is typed to change it."""


@dataclass(frozen=True, slots=True)
class ClosedAxis:
    """A choice that no search takes unless it is named, priced on the recommended layout."""

    option: str
    step_time_s: float
    change_frac: float
    """Of the step time; negative is faster."""
    peak_bytes: float
    is_fitting: bool
    """Whether the recommended layout fits with it."""
    text: str


@dataclass(frozen=True, slots=True)
class CardCounts:
    """How the legal plans divide: `legal` is the sum of the other three."""

    legal: int
    fitting: int
    too_large: int
    too_slow: int
    """Excluded by a lower bound."""


@dataclass(frozen=True, slots=True)
class NextCommand:
    """What to type next."""

    purpose: str
    line: str


@dataclass(frozen=True, slots=True)
class AnswerCard:
    """The card of an answer. Without a plan it says what would help."""

    sentence: str
    """The layout in words and digits, as an advice."""
    job: str
    cluster: str
    plan_id: str
    """Empty where nothing fits."""
    figures: tuple[CardFigure, ...]
    why: str
    """The bottleneck, in one line."""
    choice: str
    """How the recommended plan stands to the fastest."""
    proof: str
    counts: CardCounts
    closed: tuple[ClosedAxis, ...]
    assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    """Pools left out, parts that are not modelled, the framework that was chosen."""
    warnings: tuple[str, ...]
    drawing: LayoutDrawing | PoolsDrawing | None
    step: Bar | None
    memory: Bar | None
    commands: tuple[NextCommand, ...]

    @property
    def bars(self) -> tuple[Bar, ...]:
        """The bars of the card: the step, the memory of the fullest device."""
        return tuple(bar for bar in (self.step, self.memory) if bar)

    def figure(self, key: str) -> CardFigure:
        """Return a figure by its key; `KeyError` where the card has none of it."""
        for figure in self.figures:
            if figure.key == key:
                return figure
        raise KeyError(key)
